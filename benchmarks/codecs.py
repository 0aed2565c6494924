"""3LC's codec against the floor of one pass of memory: `python benchmarks/codecs.py`.

Float32 gradients with error feedback, in one run with contenders in turns: x + e (two arrays read, one
written: the least that error feedback can cost), a copy, 3LC whole (add the residual, quantize, five in a byte,
zero runs, new residual), the same in pure JAX as one would write it first, decoding, and general compressors.
The last line is JSON.
"""

from __future__ import annotations

import zlib

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from timing import Meanwhile, alternate, donated, finish, table

import dct_jax
from dct_jax import kernels
from dct_jax.kernels import three_values, zero_runs

SIZES = flags.DEFINE_list('sizes', ['65536', '4194304', '33554432'], 'Numbers of entries that are encoded.')
MULTIPLIERS = flags.DEFINE_list('multipliers', ['1.0', '1.75'], 'Sparsity multipliers of 3LC that are compared.')
SECONDS = flags.DEFINE_float('seconds', 6.0, 'Seconds that each size takes.')
MAIN_SIZE = 4194304
GRADIENTS = 8  # independent ones, which come in turn
SETTLING = 400  # steps until the residual is as full as it gets; s = 1.75 takes the longest


def gradient(n, seed=0):
  """Normal entries without tails: the largest is 3.5 deviations at any size, 8% are above half of that."""
  x = np.random.default_rng(seed).standard_normal(n, np.float32)
  return jnp.asarray(np.clip(x, -3.5, 3.5))


def first_try(e, g, s):
  """3LC in pure JAX as its formulas read: round(), then five in a byte, then runs."""
  x = g + e
  m = jnp.max(jnp.abs(x)) * s
  q = jnp.round(x / m)
  code, length, _ = zero_runs.encode(three_values.fold(q.astype(jnp.int8)))
  return x - m * q, (code, length, m)


def whole(compressor, n):
  """compress(residual, gradient) -> (residual, message) of one layer."""
  room = dct_jax.whole_room(compressor, (jax.ShapeDtypeStruct((n,), jnp.float32),))

  def compress(e, g):
    packed = compressor.compress((g,), (e,), (), room)
    return packed.residual[0], packed.message

  return compress


def contenders(n):
  """Calls by name, and what they make: bits an entry."""
  turns, zero, sizes = [gradient(n, seed) for seed in range(GRADIENTS)], jnp.zeros(n), {}
  g = turns[0]
  calls = {'x + e': donated(lambda e, g: (g + e, ()), zero, turns), 'copy': lambda: jnp.copy(g)}
  for s in map(float, MULTIPLIERS.value):
    compressor = dct_jax.three_lc(s)
    compress = whole(compressor, n)
    name = f'3LC, s = {s}'
    steady, e = jax.jit(compress), zero
    for i in range(SETTLING):
      e, message = steady(e, turns[i % GRADIENTS])
    sizes[f'{name}: encode'] = 32 * int(message[1]) / n
    calls[f'{name}: encode'] = donated(compress, e, turns)
    decode = jax.jit(lambda m, c=compressor: c.decompress(m[None], (g,), ()).layers[0])
    calls[f'{name}: decode'] = lambda m=message, decode=decode: decode(m)
    if n <= MAIN_SIZE:
      calls[f'{name}: encode, pure JAX with round()'] = donated(
          lambda e, g, s=s: first_try(e, g, s), e, turns)
  compress = whole(dct_jax.three_lc(zero_runs=False), n)
  sizes['3LC without zero runs: encode'] = 32 * int(jax.jit(compress)(zero, g)[1][1]) / n
  calls['3LC without zero runs: encode'] = donated(compress, zero, turns)
  calls |= general(np.asarray(g), sizes) if n <= MAIN_SIZE else {}
  return calls, sizes


def general(g, sizes):
  """Lossless compressors, of the floats and of 3LC's bytes before zero-run encoding."""
  q = three_values.quantize(jnp.asarray(g), three_values.scale(jnp.asarray(g), 1.0))
  inputs = {'float32': g.tobytes(), "3LC's bytes": np.asarray(three_values.fold(q)).tobytes()}
  tools = {'zlib, level 1': lambda data: zlib.compress(data, 1)}
  try:
    import zstandard
    tools['zstd, level 1'] = zstandard.ZstdCompressor(level=1).compress
  except ImportError:
    print('zstandard is not installed: no row for zstd')
  calls = {}
  for tool, run in tools.items():
    for what, data in inputs.items():
      name = f'{tool}, of {what}'
      sizes[name] = 8 * len(run(data)) / g.size
      calls[name] = lambda run=run, data=data: np.frombuffer(run(data), np.uint8)[:1]
  return calls


def main(_):
  result = {}
  meanwhile = Meanwhile()
  for n in map(int, SIZES.value):
    calls, sizes = contenders(n)
    times = alternate(calls, seconds=SECONDS.value)
    floor = times['x + e']
    table(f'entries_{n}', f'{n:,} float32', [('', 'ms', 'GB/s of float32', 'over x + e', 'bits an entry')] + [
        (name, f'{1e3 * t:.3f}', f'{4e-9 * n / t:.2f}', f'{t / floor:.2f}',
         f'{sizes[name]:.3f}' if name in sizes else '') for name, t in times.items()])
    if n == MAIN_SIZE:
      names = [f'3LC, s = {float(s)}' for s in MULTIPLIERS.value]
      result = {'encode_over_add': max(times[f'{x}: encode'] for x in names) / floor,
                'decode_over_add': max(times[f'{x}: decode'] for x in names) / floor,
                'pure_jax_over_encode': min(times[f'{x}: encode, pure JAX with round()'] / times[f'{x}: encode']
                                            for x in names)}
      result |= {f'encode_over_add_s{float(s)}': times[f'3LC, s = {float(s)}: encode'] / floor
                 for s in MULTIPLIERS.value}
  result = {k: round(v, 3) for k, v in result.items()}
  finish(result | {'native': kernels.native_in_use(), 'others': round(meanwhile.others(), 3)},
         seed=list(range(GRADIENTS)))


if __name__ == '__main__':
  app.run(main)
