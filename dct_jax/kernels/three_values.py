"""Numbers as -1, 0 or 1 of a scale, five in a byte: what 3LC and stochastic 3-value quantization share."""

from __future__ import annotations

import jax
import jax.numpy as jnp

TINY = 1e-30  # a layer below it counts as zero, so that nothing here is ever denormal
MOST = float(jnp.finfo(jnp.float32).max)


def scale(x: jax.Array, multiplier: float) -> jax.Array:
  """m: the largest magnitude times the sparsity multiplier, or 0."""
  largest = jnp.max(jnp.abs(x), initial=0)
  return jnp.where(largest < TINY, 0, jnp.minimum(largest * jnp.float32(multiplier), MOST))


def quantize(x: jax.Array, m: jax.Array) -> jax.Array:
  """-1, 0 or 1 for every entry; exactly half becomes 0."""
  half = m * jnp.float32(0.5)
  return jnp.where(m > 0, (x > half).astype(jnp.int8) - (x < -half).astype(jnp.int8), jnp.int8(0))


def dequantize(q: jax.Array, m: jax.Array) -> jax.Array:
  """Without a product: with a sum that follows it would be fused, and round differently."""
  return jnp.where(q > 0, m, jnp.where(q < 0, -m, 0))


def fold(q: jax.Array) -> jax.Array:
  """Five 3-values a byte, of five equal parts of the array; the last part is padded with the digit 0."""
  digits = jnp.pad((q + 1).astype(jnp.uint8), (0, -q.size % 5)).reshape(5, -1)
  code = digits[0]
  for k in range(1, 5):
    code = code * jnp.uint8(3) + digits[k]
  return code


def unfold(code: jax.Array, count: int) -> jax.Array:
  """The inverse of `fold`."""
  digits = []
  for _ in range(5):
    digits.append(code % jnp.uint8(3))
    code = code // jnp.uint8(3)
  return (jnp.concatenate(digits[::-1])[:count]).astype(jnp.int8) - jnp.int8(1)
