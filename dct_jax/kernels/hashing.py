"""Mixed bits: random numbers that need no state, and checksums. The native kernels have the same ones."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dct_jax.arrays import u32

GOLDEN = 0x9E3779B1


def mix(x: jax.Array) -> jax.Array:
  """A uint32 for each uint32, in which every bit depends on all others."""
  x = (x ^ x >> 16) * u32(0x7FEB352D)
  x = (x ^ x >> 15) * u32(0x846CA68B)
  return x ^ x >> 16


def noise(seed: Any, index: jax.Array) -> jax.Array:
  """16 random bits for every index, as uint32."""
  return mix(index ^ mix(u32(seed) + u32(GOLDEN))) >> 16


def checksum(words: jax.Array, length: jax.Array, skip: int | None = 5) -> jax.Array:
  """A sum over the first words of a message, each mixed in a way of its own place, in any order of adding.

  Args:
    words: uint32.
    length: how many count.
    skip: the one that does not, because the checksum goes there; None for words that have no such place.

  Returns:
    uint32. A change of one word is always noticed, any other once in 2^32 not (docs/wire_format.md).
  """
  i = jnp.arange(words.size, dtype=jnp.uint32)
  key = (i + 1) * u32(GOLDEN)
  each = mix(words ^ key) * ((key ^ key >> 15) * u32(0x2C1B3C6D) | 1)
  counts = i < length if skip is None else (i < length) & (i != skip)
  return mix(jnp.sum(jnp.where(counts, each, 0), dtype=jnp.uint32))


def keys(seed: Any, step: Any, count: int) -> jax.Array:
  """uint32[count]: keys of hash functions, others in every step, the same for whoever has the same numbers."""
  start = mix(mix(u32(seed) + u32(GOLDEN)) ^ u32(step))
  return mix(start ^ jnp.arange(count, dtype=jnp.uint32) * u32(GOLDEN))
