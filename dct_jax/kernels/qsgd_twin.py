"""Pure-JAX twins of the QSGD kernels: the same bits as the native ones, on any platform."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from dct_jax.kernels.block_twin import BlockCodec
from dct_jax.kernels.stream_twin import ceil_div, u32

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
  return jnp.concatenate([lax.bitcast_convert_type(m, jnp.uint32), pack(codes, bits)])


def pack(codes, bits: int):
  """uint32 codes below 2^bits -> words, lowest bits first."""
  per = 32 // bits
  rows = jnp.pad(codes, (0, -codes.size % per)).reshape(-1, per)
  return jnp.sum(rows << (bits * jnp.arange(per, dtype=jnp.uint32)), axis=1, dtype=jnp.uint32)


def unpack(words, count: int, bits: int):
  """The inverse of `pack`."""
  shift = bits * jnp.arange(32 // bits, dtype=jnp.uint32)
  return ((words[:, None] >> shift) & u32(2**bits - 1)).reshape(-1)[:count]


def dequantize(words, count: int, bits: int, bucket: int):
  """The block's words -> float32[count]."""
  s, buckets = levels(bits), ceil_div(count, bucket)
  m = lax.bitcast_convert_type(words[:buckets], jnp.float32)
  # Dividing by a constant would be compiled to a product with its inverse, which rounds differently.
  unit = m / jnp.where(m > 0, jnp.float32(s), 1)
  q = jnp.minimum(unpack(words[buckets:], count, bits), 2 * s).astype(jnp.int32) - s
  value = q.astype(jnp.float32) * jnp.repeat(unit, bucket)[:count]
  # The select stands between this product and a sum that follows: together they would become an FMA.
  return jnp.where(q == 0, 0, value)


def codec(bits: int, bucket: int) -> BlockCodec:
  return BlockCodec(
      CODECS[bits], lambda n: num_words(n, bits, bucket),
      lambda x, at, seed: quantize(x, at, seed, bits, bucket),
      lambda words, n: dequantize(words, n, bits, bucket),
      lambda n: ceil_div(n, bucket), MOST)
