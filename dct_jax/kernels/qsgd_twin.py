"""Pure-JAX twins of the QSGD kernels: the same bits as the native ones, on any platform."""

from __future__ import annotations

import jax.numpy as jnp

from dct_jax.arrays import ceil_div, u32, words_of
from dct_jax.kernels.bit_packing import pack
from dct_jax.kernels.blocks import BlockCodec
from dct_jax.kernels.hashing import noise
from dct_jax.kernels.levels import MOST, TINY, dequantize, levels
from dct_jax.wire.format import QSGD_CODES
from dct_jax.wire.size import qsgd_words


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
  return jnp.concatenate([words_of(m), pack(codes, bits)])


def codec(bits: int, bucket: int) -> BlockCodec:
  return BlockCodec(
      QSGD_CODES[bits], lambda n: qsgd_words(n, bits, bucket),
      lambda x, at, seed: quantize(x, at, seed, bits, bucket),
      lambda words, n: dequantize(words, n, bits, bucket),
      lambda n: ceil_div(n, bucket), MOST)
