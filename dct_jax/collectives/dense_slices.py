"""The dense all-gather of slices: what coordinate descent would do without sparse streams."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from dct_jax import axes
from dct_jax.collectives.streams import Stream


def allgather_dense(stream: Stream, size: int, axis_name: str) -> jax.Array:
  """All workers' streams as float32[size], sent as dense slices.

  Args:
    stream: this worker's, with indices of its own slice only: worker w has those from w * n until
      (w + 1) * n, n = ceil(size / workers).
    size: of the dense vector.
    axis_name: axis of the workers.
  """
  width = -(-size // axes.axis_size(axis_name))
  start = jnp.uint32(width) * lax.axis_index(axis_name).astype(jnp.uint32)
  live = jnp.arange(stream.indices.size) < stream.count
  place = jnp.where(live, stream.indices - start, jnp.uint32(width))
  mine = axes.vary_as(jnp.zeros(width, jnp.float32), stream).at[place].set(stream.values, mode='drop')
  return axes.gather(mine, axis_name).reshape(-1)[:size]
