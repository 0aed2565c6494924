"""Pure-JAX twins of the 3LC kernels: the same bits as the native ones, on any platform."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from dct_jax.kernels import block_twin
from dct_jax.kernels.select_twin import add_residual
from dct_jax.kernels.stream_twin import HEADER, MAGIC, ceil_div, checksum, u32

CODEC = 19  # value codec of docs/wire_format.md
ZERO = 121  # a byte of five zeros
FIRST_RUN, LONGEST_RUN = 243, 14  # codes 243 to 255 stand for 2 to 14 such bytes
TINY = 1e-30  # a layer below it counts as zero, so that nothing here is ever denormal
MOST = float(jnp.finfo(jnp.float32).max)


def scale(x, multiplier):
  """m: the largest magnitude times the sparsity multiplier, or 0."""
  largest = jnp.max(jnp.abs(x), initial=0)
  return jnp.where(largest < TINY, 0, jnp.minimum(largest * jnp.float32(multiplier), MOST))


def quantize(x, m):
  """-1, 0 or 1 for every entry; exactly half becomes 0."""
  half = m * jnp.float32(0.5)
  return jnp.where(m > 0, (x > half).astype(jnp.int8) - (x < -half).astype(jnp.int8), jnp.int8(0))


def dequantize(q, m):
  """Without a product: with a sum that follows it would be fused, and round differently."""
  return jnp.where(q > 0, m, jnp.where(q < 0, -m, 0))


def fold(q):
  """Five 3-values a byte, of five equal parts of the array; the last part is padded with the digit 0."""
  digits = jnp.pad((q + 1).astype(jnp.uint8), (0, -q.size % 5)).reshape(5, -1)
  code = digits[0]
  for k in range(1, 5):
    code = code * jnp.uint8(3) + digits[k]
  return code


def unfold(code, count: int):
  """The inverse of `fold`."""
  digits = []
  for _ in range(5):
    digits.append(code % jnp.uint8(3))
    code = code // jnp.uint8(3)
  return (jnp.concatenate(digits[::-1])[:count]).astype(jnp.int8) - jnp.int8(1)


def zero_run(code):
  """Zero-run encoding: bytes in a buffer of the same size, how many of them mean something, and, for each, how
  many bytes of `code` it and those before it stand for."""
  n = code.size
  at = jnp.arange(n)
  zero = code == ZERO
  last_other = lax.cummax(jnp.where(zero, -1, at))
  next_other = lax.cummin(jnp.where(zero, n, at), reverse=True)
  begins = ~zero | ((at - last_other - 1) % LONGEST_RUN == 0)
  run = jnp.minimum(next_other - at, LONGEST_RUN)
  symbol = jnp.where(zero & (run > 1), FIRST_RUN - 2 + run, code).astype(jnp.uint8)
  place = jnp.where(begins, jnp.cumsum(begins) - 1, n)
  put = lambda x: jnp.zeros(n, x.dtype).at[place].set(x, mode='drop')
  return put(symbol), jnp.sum(begins, dtype=jnp.uint32), put(at + jnp.where(zero, run, 1))


def zero_run_decode(symbols, length, size: int):
  """The inverse; what is missing at the end is zero. Also how many bytes the symbols stand for."""
  used = jnp.arange(symbols.size) < length
  is_run = symbols >= FIRST_RUN
  run = jnp.where(used, jnp.where(is_run, symbols.astype(jnp.int32) - (FIRST_RUN - 2), 1), 0)
  ends = jnp.cumsum(run)
  place = jnp.where(used & ~is_run, ends - run, size)
  code = jnp.full(size, ZERO, jnp.uint8).at[place].set(symbols, mode='drop')
  return code, ends[-1] if symbols.size else jnp.int32(0)


def code_bytes(count: int) -> int:
  """Bytes of `count` entries before zero-run encoding, which never makes them more."""
  return ceil_div(count, 5)


def fixed_words(layers, dense_words: int) -> int:
  """Words before the bytes: header, dense values, a scale and a length for each layer."""
  return HEADER + dense_words + 2 * len(layers)


def _as_words(body):
  """Bytes as little-endian words."""
  four = body.reshape(-1, 4).astype(jnp.uint32)
  return four[:, 0] | four[:, 1] << 8 | four[:, 2] << 16 | four[:, 3] << 24


def _as_bytes(words):
  return (words[:, None] >> (8 * jnp.arange(4, dtype=jnp.uint32))).astype(jnp.uint8).reshape(-1)


def encode(layers, residual, dense, live, silent, budget, capacity, multiplier, zero_runs):
  sums = add_residual(layers, residual)
  scales = [scale(x, multiplier) for x in sums]
  values = [quantize(x, m) for x, m in zip(sums, scales, strict=True)]
  fixed = fixed_words(layers, dense.size)
  silent = (silent != 0) | (live == 0)
  most = max(0, capacity - fixed)
  room = 4 * jnp.clip(u32(budget).astype(jnp.int32) - fixed, 0, most)
  body, at, wanted, kept, said = jnp.zeros(4 * most, jnp.uint8), jnp.int32(0), u32(0), [], []
  for q, m in zip(values, scales, strict=True):
    code = fold(q)
    places = jnp.arange(code.size)
    symbols, length, stands_for = (
        zero_run(code) if zero_runs else (code, u32(code.size), places + 1))
    take = jnp.clip(room - at, 0, length.astype(jnp.int32))
    body = body.at[jnp.where(places < take, at + places, body.size)].set(symbols, mode='drop')
    covered = jnp.where(take > 0, stands_for[jnp.maximum(take - 1, 0)], 0) if code.size else 0
    told = jnp.tile(places < covered, 5)[:q.size]
    said.append((dequantize(q, m), told))
    at, wanted = at + take, wanted + length
    kept.append(take.astype(jnp.uint32))
  parts = [dense, *(block_twin.words_of(m).reshape(1) for m in scales), *(k.reshape(1) for k in kept)]
  body = jnp.concatenate([*parts, _as_words(body)])[:capacity - HEADER]
  full = fixed + ceil_div(at, 4).astype(jnp.uint32)
  words = block_twin.seal(CODEC, jnp.where(silent, 0, body), jnp.where(silent, HEADER, full),
                          jnp.where(live == 0, fixed, fixed + ceil_div(wanted, 4)), live)
  if residual is None:
    return words, None
  # As the native kernel has it: all is taken away, and what did not fit is put back.
  left = [jnp.where(silent, x, jnp.where(told, x - value, x - value + value))
          for x, (value, told) in zip(sums, said, strict=True)]
  return words, block_twin.new_residual(left, residual, live)


def sum_messages(words, layers, dense):
  """Adds messages in their order; `layers` and `dense` are the shapes of what they carry."""
  dense_words = sum(x.size for x in dense)
  fixed, n = fixed_words(layers, dense_words), len(layers)
  first = HEADER + dense_words

  def read(message):
    length = message[1]
    empty = length == HEADER
    known = (message[0] == u32(MAGIC | CODEC)) & (message[3] == 0) & (checksum(message, length) == message[5])
    if fixed > message.size:
      return known & empty, [jnp.zeros(x.size, jnp.float32) for x in (*layers, *dense)]
    sizes = message[first + n:fixed]
    inside = (sizes <= u32([code_bytes(x.size) for x in layers])).all() if n else jnp.bool_(True)
    ends = jnp.cumsum(jnp.where(inside, sizes, 0), dtype=jnp.uint32)
    total = ends[-1] if n else u32(0)
    valid = inside & (length <= message.size) & (length == fixed + ceil_div(total, 4))
    valid &= (message[first:first + n] <= block_twin.words_of(jnp.float32(MOST))).all()
    body, parts = _as_bytes(message[fixed:]), []
    for i, x in enumerate(layers):
      size = code_bytes(x.size)
      begin = (ends[i] - sizes[i]).astype(jnp.int32)
      symbols = jnp.take(body, begin + jnp.arange(size), mode='fill', fill_value=0)
      code, stands_for = zero_run_decode(symbols, sizes[i], size)
      valid &= stands_for <= size
      parts.append(dequantize(unfold(code, x.size), block_twin.floats_of(message[first + i])))
    valid = known & (empty | valid)
    use = valid & ~empty
    return valid, [jnp.where(use, p, 0) for p in (*parts, *block_twin.dense_parts(message, dense))]

  return block_twin.add_up(read, words, layers, dense)
