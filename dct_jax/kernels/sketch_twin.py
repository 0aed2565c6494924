"""Pure-JAX twins of the count-sketch kernels: the same bits as the native ones, on any platform."""

from __future__ import annotations

import jax.numpy as jnp

from dct_jax import axes
from dct_jax.arrays import u32
from dct_jax.kernels.cuts import high_product
from dct_jax.kernels.hashing import mix


def insert(ids, count, values, keys, buckets: int, by_id: bool):
  """float32[r, buckets]; see `kernels.sketch_insert`."""
  used = jnp.arange(ids.size, dtype=jnp.uint32) < count
  rows = values[jnp.where(used, ids, 0)] if by_id else values
  flat = jnp.where(used[:, None], rows, 0).reshape(-1)
  index = _entries(ids, values.shape[1])
  empty = axes.vary_as(jnp.zeros(buckets, jnp.float32), (flat, index, keys))

  def one(key):
    bucket, negative = _place(index, key, buckets)
    return empty.at[bucket].add(jnp.where(negative, -flat, flat))

  return jnp.stack([one(key) for key in keys])


def query(ids, count, table, keys, unit: int, rows: int):
  """float32[ids, unit], or at the ids of float32[rows, unit]; see `kernels.sketch_query`."""
  index, buckets = _entries(ids, unit), table.shape[1]
  used = jnp.arange(ids.size, dtype=jnp.uint32) < count

  def one(row, key):
    bucket, negative = _place(index, key, buckets)
    return jnp.where(negative, -row[bucket], row[bucket])

  middle = _median([one(table[j], keys[j]) for j in range(table.shape[0])])
  middle = jnp.where(used[:, None], middle.reshape(-1, unit), 0)
  if not rows:
    return middle
  empty = axes.vary_as(jnp.zeros((rows, unit), jnp.float32), (middle, ids))
  return empty.at[jnp.where(used, ids, u32(rows))].set(middle, mode='drop')


def _median(estimates):
  if len(estimates) == 1:
    return estimates[0]
  ordered, half = jnp.sort(jnp.stack(estimates), axis=0), len(estimates) // 2
  if len(estimates) % 2:
    return ordered[half]
  return (ordered[half - 1] + ordered[half]) * 0.5


def _entries(ids, unit):
  return (ids[:, None] * u32(unit) + jnp.arange(unit, dtype=jnp.uint32)).reshape(-1)


def _place(index, key, buckets):
  """Bucket and sign of every entry: the high bits of its hash, and the lowest one."""
  h = mix(index ^ key)
  return high_product(h, u32(buckets)), (h & 1) != 0
