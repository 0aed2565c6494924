"""Small codes in words, and bytes in words: lowest bits first."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dct_jax.arrays import u32


def pack(codes: jax.Array, bits: int) -> jax.Array:
  """uint32 codes below 2^bits -> words."""
  per = 32 // bits
  rows = jnp.pad(codes, (0, -codes.size % per)).reshape(-1, per)
  return jnp.sum(rows << (bits * jnp.arange(per, dtype=jnp.uint32)), axis=1, dtype=jnp.uint32)


def unpack(words: jax.Array, count: int, bits: int) -> jax.Array:
  """The inverse of `pack`."""
  shift = bits * jnp.arange(32 // bits, dtype=jnp.uint32)
  return ((words[:, None] >> shift) & u32(2**bits - 1)).reshape(-1)[:count]


def bytes_to_words(body: jax.Array) -> jax.Array:
  """uint8[4 n] -> uint32[n]."""
  four = body.reshape(-1, 4).astype(jnp.uint32)
  return four[:, 0] | four[:, 1] << 8 | four[:, 2] << 16 | four[:, 3] << 24


def words_to_bytes(words: jax.Array) -> jax.Array:
  """The inverse of `bytes_to_words`."""
  return (words[:, None] >> (8 * jnp.arange(4, dtype=jnp.uint32))).astype(jnp.uint8).reshape(-1)
