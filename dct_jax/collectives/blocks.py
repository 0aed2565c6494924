"""The blocks that a worker has, in two forms that sums of unions and sketches treat alike.

A gradient of which most blocks are zero has its blocks in place (`InPlace`). A gradient of embedding rows is a list of
them (`Listed`), and never becomes as large as the table.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dct_jax import axes, kernels
from dct_jax.arrays import Stream, u32
from dct_jax.kernels import bitmaps


class Union(NamedTuple):
  """The blocks that somebody has, equal on all workers."""

  words: jax.Array  # the set, one bit a block
  ids: jax.Array  # uint32[capacity]: its blocks in their order, then the number of all blocks
  count: jax.Array  # type: ignore[assignment]  # uint32


def union_of(words: jax.Array, universe: int, capacity: int) -> Union:
  """A set with its blocks listed."""
  return Union(words, bitmaps.to_ids(words, universe, capacity), bitmaps.size(words))


class InPlace(NamedTuple):
  """Every block, most of them zero."""

  units: jax.Array  # float32[universe, unit]

  @property
  def universe(self) -> int:
    return self.units.shape[0]

  @property
  def unit(self) -> int:
    return self.units.shape[1]

  @property
  def most(self) -> int:
    """How many blocks there may be, at most."""
    return self.universe

  def bitmap(self) -> jax.Array:
    return bitmaps.of_mask(jnp.any(self.units != 0, axis=1))

  def laid_out(self, union: Union, length: int) -> jax.Array:
    """This worker's values at the places that blocks have in the union, float32[length, unit]."""
    return self.units.at[union.ids[:length]].get(mode='fill', fill_value=0)

  def sketch(self, words: jax.Array, keys: jax.Array, buckets: int) -> jax.Array:
    """A sketch of the blocks of the own bitmap."""
    ids = bitmaps.to_ids(words, self.universe, self.universe)
    return kernels.sketch_insert(ids, bitmaps.size(words), self.units, keys, buckets=buckets, by_id=True)

  def placed(self, union: Union, values: jax.Array) -> InPlace:
    """Values of the union's first blocks, as blocks in place."""
    empty = axes.vary_as(jnp.zeros(self.units.shape, jnp.float32), (values,))
    return InPlace(empty.at[union.ids[:values.shape[0]]].set(values, mode='drop'))

  def estimated(self, union: Union, table: jax.Array, keys: jax.Array) -> InPlace:
    """What a sketch says about the union's blocks."""
    return InPlace(kernels.sketch_query(union.ids, union.count, table, keys, unit=self.unit, rows=self.universe))


@functools.partial(jax.tree_util.register_dataclass, data_fields=['blocks'], meta_fields=['universe'])
@dataclasses.dataclass(frozen=True)
class Listed:
  """Some blocks with their numbers; those that are all zero count, too."""

  blocks: Stream  # values are float32[capacity, unit]
  universe: int

  @property
  def unit(self) -> int:
    return self.blocks.values.shape[1]

  @property
  def most(self) -> int:
    """How many blocks there may be, at most."""
    return min(self.blocks.indices.size, self.universe)

  def bitmap(self) -> jax.Array:
    return bitmaps.of_ids(self.blocks.indices, self.blocks.count, self.universe)

  def laid_out(self, union: Union, length: int) -> jax.Array:
    """This worker's values at the places that blocks have in the union, float32[length, unit]."""
    at = jnp.where(self.blocks.used, bitmaps.rank(union.words, self.blocks.indices), u32(length))
    empty = axes.vary_as(jnp.zeros((length, self.unit), jnp.float32), self.blocks)
    return empty.at[at].set(self.blocks.values, mode='drop')

  def sketch(self, words: jax.Array, keys: jax.Array, buckets: int) -> jax.Array:
    """A sketch of the blocks, which are listed, so that the own bitmap is not needed."""
    del words
    ids, values, count = self.blocks
    return kernels.sketch_insert(ids, count, values, keys, buckets=buckets)

  def placed(self, union: Union, values: jax.Array) -> Listed:
    """Values of the union's first blocks, with their numbers."""
    rest = union.ids.size - values.shape[0]
    return Listed(Stream(union.ids, jnp.pad(values, ((0, rest), (0, 0))), union.count), self.universe)

  def estimated(self, union: Union, table: jax.Array, keys: jax.Array) -> Listed:
    """What a sketch says about the union's blocks."""
    values = kernels.sketch_query(union.ids, union.count, table, keys, unit=self.unit)
    return Listed(Stream(union.ids, values, union.count), self.universe)


Blocks = InPlace | Listed
