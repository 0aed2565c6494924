"""Sets of blocks as bits: one bit a block, lowest first, so that a set of 32 blocks is a word."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dct_jax import axes
from dct_jax.arrays import ceil_div, u32
from dct_jax.kernels import bit_packing


def num_words(universe: int) -> int:
  return ceil_div(universe, 32)


def of_mask(mask: jax.Array) -> jax.Array:
  """bool[universe] -> words."""
  return bit_packing.pack(u32(mask), 1)


def of_ids(ids: jax.Array, count: jax.Array, universe: int) -> jax.Array:
  """The set of the first `count` ids; those beyond the universe are left out."""
  used = jnp.arange(ids.size, dtype=jnp.uint32) < count
  empty = axes.vary_as(jnp.zeros(universe, bool), (ids, count))
  return of_mask(empty.at[jnp.where(used, u32(ids), u32(universe))].set(True, mode='drop'))


def size(words: jax.Array) -> jax.Array:
  """How many blocks a set has."""
  return jnp.sum(jax.lax.population_count(words), dtype=jnp.uint32)


def to_ids(words: jax.Array, universe: int, capacity: int) -> jax.Array:
  """The blocks of a set in their order, uint32[capacity]; `universe`, which is no block, where none is left."""
  bits = bit_packing.unpack(words, universe, 1)
  rank = jnp.cumsum(bits, dtype=jnp.uint32) - bits
  empty = axes.vary_as(jnp.full(capacity, u32(universe)), (words,))
  at = jnp.where(bits != 0, rank, u32(capacity))
  return empty.at[at].set(jnp.arange(universe, dtype=jnp.uint32), mode='drop')


def rank(words: jax.Array, ids: jax.Array) -> jax.Array:
  """How many blocks of a set come before each of the ids."""
  ones = jax.lax.population_count(words)
  before = jnp.cumsum(ones, dtype=jnp.uint32) - ones
  at = jnp.minimum(ids // 32, words.size - 1)
  below = words[at] & ((u32(1) << (ids % 32)) - 1)
  return before[at] + jax.lax.population_count(below)
