"""Kernels against the floor of one pass of memory: `python benchmarks/kernels.py`.

For float32 gradients of several sizes with 1% kept, in one run with contenders in turns: x + e (two arrays
read, one written: the least that error feedback can cost), the fused pack, the exact threshold, and the ways
that other libraries go. The last line is JSON.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from timing import alternate, donated, finish, table

from dct_jax import kernels

SIZES = flags.DEFINE_list('sizes', ['65536', '1048576', '4194304', '67108864'],
                          'Numbers of entries that kernels work on.')
KEEP = flags.DEFINE_float('keep', 0.01, 'Share of the entries that is kept.')
SECONDS = flags.DEFINE_float('seconds', 6.0, 'Seconds that each size takes.')
MAIN_SIZE = 4194304


def make_pair(n, seed=0):
  rng = np.random.default_rng(seed)
  return (jnp.asarray(rng.standard_normal(n, np.float32)),
          jnp.asarray(0.3 * rng.standard_normal(n, np.float32)))


def contenders(n, keep):
  """Every way through a gradient of n entries; names are the table's rows."""
  g, e = make_pair(n)
  k = max(1, int(n * keep))
  rank = jnp.array([n - k + 1], jnp.uint32)
  tau = jax.jit(lambda g, e: kernels.threshold((g,), (e,), rank)[0])(g, e)
  room = 2 * k

  def pack(e, g, tau):
    s = kernels.pack((g,), (e,), tau, limit=room, capacity=room)
    return s.residual[0], (s.indices, s.value, s.sent)

  def pack_twin(e, g, tau):
    with kernels.use_native(False):
      return pack(e, g, tau)

  def top_k_path(e, g):
    x = g + e
    _, index = jax.lax.top_k(jnp.abs(x), k)
    return x.at[index].set(0), (index, x[index])

  # x + e is given its output buffer too (donated), like the pack. Gradients alternate in sign, so
  # that residuals keep their size and about 1% is selected every time.
  turns, same = (g, -g), jnp.full(n, 0.7, jnp.float32)
  pack_copy = jax.jit(pack)
  threshold = jax.jit(lambda g, e: kernels.threshold((g,), (e,), rank))
  calls = {
      'x + e': donated(lambda e, g: (g + e, ()), e, turns),
      'fused pack': donated(lambda e, g: pack(e, g, tau), e, turns),
      'fused pack, not donated': lambda: pack_copy(e, g, tau),
      'exact threshold': lambda: threshold(g, e),
      'exact threshold, all values alike': lambda: threshold(same, same),
  }
  if n <= MAIN_SIZE:
    calls['lax.top_k path'] = donated(top_k_path, e, turns)
    calls['fused pack, pure-JAX twin'] = donated(lambda e, g: pack_twin(e, g, tau), e, turns)
  calls.update(torch_contenders(np.asarray(g), np.asarray(e), k, float(tau[0])))
  return calls


def torch_contenders(g, e, k, tau):
  """The same in PyTorch, when it is installed."""
  try:
    import torch
  except ImportError:
    return {}
  tg, te = torch.tensor(g), torch.tensor(e)

  def top_k():
    x = tg + te
    index = torch.topk(x.abs(), k, sorted=False).indices
    value = x[index]
    x[index] = 0
    return value.numpy()

  def threshold():
    x = tg + te
    index = (x.abs() >= tau).nonzero().flatten()
    value = x[index]
    x[index] = 0
    return value.numpy()

  return {'PyTorch topk': top_k, 'PyTorch threshold + nonzero': threshold}


def rice_over_entropy(density, n=1 << 22, seed=0):
  """Bits of a Rice-coded index set over its entropy, n * H(density)."""
  rng = np.random.default_rng(seed)
  index = np.flatnonzero(rng.random(n) < density).astype(np.uint32)
  words = jax.jit(lambda i: kernels.encode(
      i, jnp.zeros(i.size), jnp.zeros(0, jnp.uint32), count=i.size, wanted=i.size, budget=0,
      capacity=2 * i.size + 16, universe=n, index_codec='rice'))(jnp.asarray(index))
  index_words = int(words[1]) - 6 - index.size
  p = index.size / n
  return 32 * index_words / (n * -(p * math.log2(p) + (1 - p) * math.log2(1 - p)))


def show_all(found):
  """One table of all sizes: size -> name -> seconds."""
  floors = {n: times['x + e'] for n, times in found.items()}
  rows = [('over the time of x + e', *(f'{n:,}' for n in found)),
          ('x + e, ms', *(f'{1e3 * t:.2f}' for t in floors.values()))]
  names = dict.fromkeys(name for times in found.values() for name in times if name != 'x + e')
  rows += [(name, *(f'{times[name] / floors[n]:.2f}' if name in times else '' for n, times in found.items()))
           for name in names]
  table('over_add', f'all sizes, {KEEP.value:.0%} kept', rows)


def main(_):
  result, found = {}, {}
  for n in map(int, SIZES.value):
    found[n] = times = alternate(contenders(n, KEEP.value), seconds=SECONDS.value)
    floor = times['x + e']
    table(f'entries_{n}', f'{n:,} float32, {KEEP.value:.0%} kept', [('', 'ms', 'over x + e')] + [
        (name, f'{1e3 * t:.3f}', f'{t / floor:.2f}') for name, t in times.items()])
    if n == MAIN_SIZE:
      slowest = max(times['exact threshold'], times['exact threshold, all values alike'])
      result.update(
          pack_over_add=times['fused pack'] / floor,
          top_k_over_pack=times['lax.top_k path'] / times['fused pack'],
          threshold_over_add=slowest / floor)
  show_all(found)
  rice = {d: rice_over_entropy(d) for d in (0.05, 0.01, 0.001)}
  table('rice', 'Rice-coded indices', [('density', 'bits over entropy'), *(
      (f'{d:.1%}', f'{r:.4f}') for d, r in rice.items())])
  result['rice_over_entropy'] = max(rice.values())
  result = {k: round(v, 3) for k, v in result.items()}
  finish(result | {'native': kernels.native_in_use()}, seed=0)


if __name__ == '__main__':
  app.run(main)
