"""Numbers as whole multiples of a scale: what QSGD and 8-bit integers read."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dct_jax.arrays import ceil_div, floats_of, u32, words_of
from dct_jax.kernels import bit_packing

TINY = 1e-30  # what is below it counts as zero, so that nothing here is ever denormal
MOST = 2.0**127  # the largest scale: q * (m / s) stays finite


def levels(bits: int) -> int:
  """Magnitudes above zero that a code can have."""
  return 2 ** (bits - 1) - 1


def dequantize(words: jax.Array, count: int, bits: int, bucket: int) -> jax.Array:
  """A block's words (scales of buckets, then codes) -> float32[count]."""
  s, buckets = levels(bits), ceil_div(count, bucket)
  m = floats_of(words[:buckets])
  # Dividing by a constant would be compiled to a product with its inverse, which rounds differently.
  unit = m / jnp.where(m > 0, jnp.float32(s), 1)
  q = jnp.minimum(bit_packing.unpack(words[buckets:], count, bits), 2 * s).astype(jnp.int32) - s
  magnitude = jnp.abs(q).astype(jnp.float32) * jnp.repeat(unit, bucket)[:count]
  # The sign is set among the bits, so that integers stand between this product and a sum that follows: together
  # they would become an FMA, even through a select of zeros (on processors with AVX-512).
  return floats_of(words_of(magnitude) | u32(q < 0) << 31)
