"""Pure-JAX twins of the 3LC kernels: the same bits as the native ones, on any platform."""

from __future__ import annotations

import jax.numpy as jnp

from dct_jax.arrays import add_residual, ceil_div, floats_of, u32, words_of
from dct_jax.kernels import blocks, cuts, zero_runs
from dct_jax.kernels.bit_packing import bytes_to_words, words_to_bytes
from dct_jax.kernels.hashing import checksum
from dct_jax.kernels.three_values import MOST, dequantize, fold, quantize, scale, unfold
from dct_jax.wire.format import HEADER, MAGIC, THREE_LC_CODE
from dct_jax.wire.size import three_lc_bytes


def fixed_words(layers, dense_words: int) -> int:
  """Words before the bytes: header, dense values, a scale and a length for each layer."""
  return HEADER + dense_words + 2 * len(layers)


def encode(layers, residual, dense, live, silent, budget, capacity, multiplier, shorten):
  sums = add_residual(layers, residual)
  scales = [scale(x, multiplier) for x in sums]
  values = [quantize(x, m) for x, m in zip(sums, scales, strict=True)]
  fixed = fixed_words(layers, dense.size)
  silent = (silent != 0) | (live == 0)
  most = max(0, capacity - fixed)
  room = 4 * jnp.clip(u32(budget).astype(jnp.int32) - fixed, 0, most)
  coded = [_symbols(fold(q), shorten) for q in values]
  wanted = sum((length for _, length, _ in coded), u32(0))
  cut = cuts.even(room, wanted)
  body, at, before, kept, said = jnp.zeros(4 * most, jnp.uint8), jnp.int32(0), u32(0), [], []
  for (symbols, length, stands_for), q, m in zip(coded, values, scales, strict=True):
    places, before = jnp.arange(symbols.size), before + length
    take = cut.at(before).astype(jnp.int32) - at
    body = body.at[jnp.where(places < take, at + places, body.size)].set(symbols, mode='drop')
    covered = jnp.where(take > 0, stands_for[jnp.maximum(take - 1, 0)], 0) if symbols.size else 0
    told = jnp.tile(places < covered, 5)[:q.size]
    said.append((dequantize(q, m), told))
    at = at + take
    kept.append(take.astype(jnp.uint32))
  parts = [dense, *(words_of(m).reshape(1) for m in scales), *(k.reshape(1) for k in kept)]
  body = jnp.concatenate([*parts, bytes_to_words(body)])[:capacity - HEADER]
  full = fixed + ceil_div(at, 4).astype(jnp.uint32)
  words = blocks.seal(THREE_LC_CODE, jnp.where(silent, 0, body), jnp.where(silent, HEADER, full),
                          jnp.where(live == 0, fixed, fixed + ceil_div(wanted, 4)), live)
  if residual is None:
    return words, None
  # As the native kernel has it: all is taken away, and what did not fit is put back.
  left = [jnp.where(silent, x, jnp.where(told, x - value, x - value + value))
          for x, (value, told) in zip(sums, said, strict=True)]
  return words, blocks.new_residual(left, residual, live)


def _symbols(code, shorten):
  """The bytes of a layer, how many of them mean something, and how many codes each and those before it stand for."""
  return zero_runs.encode(code) if shorten else (code, u32(code.size), jnp.arange(code.size) + 1)


def sum_messages(words, layers, dense):
  """Adds messages in their order; `layers` and `dense` are the shapes of what they carry."""
  dense_words = sum(x.size for x in dense)
  fixed, n = fixed_words(layers, dense_words), len(layers)
  first = HEADER + dense_words

  def read(message):
    length = message[1]
    empty = length == HEADER
    known = (message[0] == u32(MAGIC | THREE_LC_CODE)) & (message[3] == 0) & (checksum(message, length) == message[5])
    if fixed > message.size:
      return known & empty, [jnp.zeros(x.size, jnp.float32) for x in (*layers, *dense)]
    sizes = message[first + n:fixed]
    inside = (sizes <= u32([three_lc_bytes(x.size) for x in layers])).all() if n else jnp.bool_(True)
    ends = jnp.cumsum(jnp.where(inside, sizes, 0), dtype=jnp.uint32)
    total = ends[-1] if n else u32(0)
    valid = inside & (length <= message.size) & (length == fixed + ceil_div(total, 4))
    valid &= (message[first:first + n] <= words_of(jnp.float32(MOST))).all()
    # The shortest rung ends here, and nothing can be taken from nothing.
    body, parts = words_to_bytes(jnp.pad(message[fixed:], (0, max(0, fixed + 1 - message.size)))), []
    for i, x in enumerate(layers):
      size = three_lc_bytes(x.size)
      begin = (ends[i] - sizes[i]).astype(jnp.int32)
      symbols = jnp.take(body, begin + jnp.arange(size), mode='fill', fill_value=0)
      code, stands_for = zero_runs.decode(symbols, sizes[i], size)
      valid &= stands_for <= size
      parts.append(dequantize(unfold(code, x.size), floats_of(message[first + i])))
    valid = known & (empty | valid)
    use = valid & ~empty
    return valid, [jnp.where(use, p, 0) for p in (*parts, *blocks.dense_parts(message, dense))]

  return blocks.add_up(read, words, layers, dense)
