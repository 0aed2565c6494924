"""Pure-JAX twins of the QSGD kernels: the same bits as the native ones, on any platform."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from dct_jax import axes
from dct_jax.kernels.select_twin import add_residual
from dct_jax.kernels.stream_twin import HEADER, MAGIC, ceil_div, checksum, u32

CODECS = {2: 16, 4: 17, 8: 18}  # bits -> value codec of docs/wire_format.md
TINY = 1e-30  # a bucket below it counts as zero, so that nothing here is ever denormal
MOST = 2.0**127  # the largest scale: q * (m / s) stays finite


def levels(bits: int) -> int:
  """Magnitudes above zero that a code can have."""
  return 2 ** (bits - 1) - 1


def num_words(count: int, bits: int, bucket: int) -> int:
  """Words of a block of `count` entries."""
  return ceil_div(count, bucket) + ceil_div(count * bits, 32)


def mix(x):
  x = (x ^ x >> 16) * u32(0x7FEB352D)
  x = (x ^ x >> 15) * u32(0x846CA68B)
  return x ^ x >> 16


def noise(seed, index):
  """16 random bits for every index, as uint32."""
  return mix(index ^ mix(u32(seed) + u32(0x9E3779B1))) >> 16


def quantize(x, first_index, seed, bits: int, bucket: int):
  """float32[count] -> the block's words; `first_index` and `seed` may be traced."""
  s, count = levels(bits), x.size
  table = jnp.pad(x, (0, -count % bucket)).reshape(-1, bucket)
  m = jnp.max(jnp.abs(table), axis=1)
  m = jnp.where(m < TINY, 0, jnp.minimum(m, MOST))
  factor = jnp.where(m > 0, (s * 65536) / jnp.where(m > 0, m, 1), 0)
  t = jnp.minimum(jnp.abs(table) * factor[:, None], s * 65536).astype(jnp.uint32)
  u = noise(seed, u32(first_index) + jnp.arange(table.size, dtype=jnp.uint32))
  q = jnp.minimum((t + u.reshape(t.shape)) >> 16, s).astype(jnp.int32)
  codes = u32(jnp.where(table < 0, -q, q) + s).reshape(-1)[:count]
  return jnp.concatenate([lax.bitcast_convert_type(m, jnp.uint32), _pack(codes, bits)])


def _pack(codes, bits):
  per = 32 // bits
  rows = jnp.pad(codes, (0, -codes.size % per)).reshape(-1, per)
  return jnp.sum(rows << (bits * jnp.arange(per, dtype=jnp.uint32)), axis=1, dtype=jnp.uint32)


def dequantize(words, count: int, bits: int, bucket: int):
  """The block's words -> float32[count]."""
  s, buckets = levels(bits), ceil_div(count, bucket)
  m = lax.bitcast_convert_type(words[:buckets], jnp.float32)
  # Dividing by a constant would be compiled to a product with its inverse, which rounds differently.
  unit = m / jnp.where(m > 0, jnp.float32(s), 1)
  shift = bits * jnp.arange(32 // bits, dtype=jnp.uint32)
  codes = (words[buckets:, None] >> shift) & u32(2**bits - 1)
  q = jnp.minimum(codes.reshape(-1)[:count], 2 * s).astype(jnp.int32) - s
  value = q.astype(jnp.float32) * jnp.repeat(unit, bucket)[:count]
  # The select stands between this product and a sum that follows: together they would become an FMA.
  return jnp.where(q == 0, 0, value)


def encode(layers, residual, dense, seed, live, silent, capacity, bits, bucket):
  sums, blocks, left, at = add_residual(layers, residual), [], [], 0
  for x in sums:
    blocks.append(quantize(x, at, seed, bits, bucket))
    at += x.size
  silent = (silent != 0) | (live == 0)
  body = jnp.concatenate([dense, *blocks])
  full = HEADER + body.size
  length = jnp.where(silent, HEADER, u32(full))
  body = jnp.pad(jnp.where(silent, 0, body), (0, max(0, capacity - full)))[:capacity - HEADER]
  head = [u32(MAGIC | CODECS[bits]), length, u32(full), u32(0), u32(live == 0), u32(0)]
  words = jnp.concatenate([jnp.stack(head), body])
  words = words.at[5].set(checksum(words, length))
  if residual is None:
    return words, None
  for x, e, block in zip(sums, residual, blocks, strict=True):
    sent = jnp.where(silent, 0, dequantize(block, x.size, bits, bucket))
    left.append(jnp.where(live == 0, e, (x - sent).reshape(e.shape)))
  return words, tuple(left)


def _valid(words, starts, layers, bits, bucket):
  """Whether a message holds; `starts` is where the blocks begin, and last the length."""
  length = words[1]
  fits = (length == HEADER) | (length == starts[-1] if starts[-1] <= words.size else False)
  valid = (words[0] == u32(MAGIC | CODECS[bits])) & (words[3] == 0) & fits
  valid &= checksum(words, length) == words[5]
  if starts[-1] > words.size:
    return valid
  most = lax.bitcast_convert_type(jnp.float32(MOST), jnp.uint32)
  for start, x in zip(starts, layers, strict=False):
    scales = words[start:start + ceil_div(x.size, bucket)]
    valid &= (length == HEADER) | (scales <= most).all()
  return valid


def sum_messages(words, layers, dense, bits, bucket):
  """Adds messages in their order; `layers` and `dense` are the shapes of what they carry."""
  starts = [HEADER + sum(x.size for x in dense)]
  for x in layers:
    starts.append(starts[-1] + num_words(x.size, bits, bucket))

  def add(total, message):
    valid = _valid(message, starts, layers, bits, bucket)
    use = valid & (message[1] != HEADER)
    message = jnp.pad(message, (0, max(0, starts[-1] - message.size)))
    parts = [dequantize(message[a:b], x.size, bits, bucket).reshape(x.shape)
             for a, b, x in zip(starts, starts[1:], layers, strict=False)]
    at = HEADER
    for x in dense:
      parts.append(lax.bitcast_convert_type(message[at:at + x.size], jnp.float32).reshape(x.shape))
      at += x.size
    return [t + jnp.where(use, p, 0) for t, p in zip(total, parts, strict=True)], u32(valid)

  zero = [jnp.zeros(x.shape, jnp.float32) for x in (*layers, *dense)]
  total, intact = lax.scan(add, axes.vary_as(zero, (words,)), words)
  return intact, tuple(total)
