"""Value codecs: how a float32 travels (docs/wire_format.md). Pure JAX; small enough for every platform."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

BITS = {'float32': 32, 'float16': 16, 'bfloat16': 16}
# Largest code -> a scale of which so many are infinity. Its inverse is no denormal: some divide by multiplying with it.
INFINITE = {127: 2.0**125, 7: 2.0**126}


def num_words(count: int, codec: str) -> int:
  """Words that `count` values take; works for ints and arrays."""
  return count if codec == 'float32' else (count + 1) // 2


def narrow(x: jax.Array, codec: str, *, keep_infinity: bool = False) -> jax.Array:
  """Rounds float32 values to the codec's type; what is too large becomes its largest number.

  Infinity does so as well, unless it is to be kept; NaN stays NaN.
  """
  if codec == 'float32':
    return x
  limit = float(jnp.finfo(codec).max)
  clipped = jnp.clip(x, -limit, limit)
  return (jnp.where(jnp.isinf(x), x, clipped) if keep_infinity else clipped).astype(codec)


def round_trip(x: jax.Array, codec: str) -> jax.Array:
  """The float32 value that arrives when `x` is sent."""
  return narrow(x, codec).astype(jnp.float32)


def int8_rows(x: jax.Array) -> tuple[jax.Array, jax.Array]:
  """int8 numbers and a scale for each row (the last axis), float32[..., 1]; their product is near `x`.

  A row with an infinity has a scale of which 127 are infinite; the rest of it rounds to multiples of that, which
  is to say, to zero. A row with a NaN has NaN as its scale, so that all of it is NaN on the other side.
  """
  return _rows(x, 127)


def int4_rows(x: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Numbers from -7 to 7, two in a byte, the first in its low half, and a scale for each row, as of `int8_rows`."""
  whole, scale = _rows(x, 7)
  half = (whole & 15).astype(jnp.uint8)
  half = jnp.pad(half, [(0, 0)] * (x.ndim - 1) + [(0, x.shape[-1] % 2)])
  return half[..., ::2] | half[..., 1::2] << 4, scale


def from_int4_rows(packed: jax.Array, scale: jax.Array, width: int) -> jax.Array:
  """float32[..., width] that arrive when `int4_rows` are sent."""
  half = jnp.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)[..., :width]
  return ((half.astype(jnp.int8) ^ 8) - 8).astype(jnp.float32) * scale  # the sign is in bit 3


def _rows(x, most):
  largest = jnp.max(jnp.abs(x), axis=-1, keepdims=True)
  scale = jnp.where(jnp.isinf(largest), INFINITE[most], largest / most)
  return jnp.clip(jnp.round(x / jnp.where(scale > 0, scale, 1)), -most, most).astype(jnp.int8), scale


def scaled(x: jax.Array, codec: str) -> tuple[jax.Array, jax.Array]:
  """Values in the codec's type and one scale, a power of two: small numbers keep their bits.

  NaN and infinity have no part in the scale and stay what they are.
  """
  largest = jnp.max(jnp.where(jnp.isfinite(x), jnp.abs(x), 0))
  bits = lax.bitcast_convert_type(largest, jnp.uint32) & jnp.uint32(0x7F800000)
  scale = lax.bitcast_convert_type(jnp.where(bits > 0, bits, jnp.uint32(0x3F800000)), jnp.float32)
  return narrow(x / scale, codec, keep_infinity=True), scale.reshape((1,) * x.ndim)


def to_words(x: jax.Array, codec: str) -> jax.Array:
  """Packs a flat float32 array into uint32 words."""
  if codec == 'float32':
    return lax.bitcast_convert_type(x, jnp.uint32)
  half = lax.bitcast_convert_type(narrow(x, codec), jnp.uint16)
  return pair(half.astype(jnp.uint32))


def pair(half: jax.Array) -> jax.Array:
  """Packs 16-bit numbers two a word, the first in the low half."""
  half = jnp.pad(half, (0, half.size % 2)).reshape(-1, 2)
  return half[:, 0] | half[:, 1] << 16


def unpair(words: jax.Array) -> jax.Array:
  """The inverse of `pair`: twice as many numbers as words."""
  return jnp.stack([words & 0xFFFF, words >> 16], axis=1).reshape(-1)


def from_words(words: jax.Array, count: int, codec: str) -> jax.Array:
  """The inverse of `to_words`, as float32."""
  if codec == 'float32':
    return lax.bitcast_convert_type(words[:count], jnp.float32)
  half = unpair(words)[:count].astype(jnp.uint16)
  return lax.bitcast_convert_type(half, jnp.dtype(codec)).astype(jnp.float32)
