"""Sparse streams and their sum over a mesh axis.

A stand-in: every algorithm but 'dense' and 'dsar' is one all-gather of padded streams, merged by a sort.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dct_jax import axes

ALGORITHMS = ('recursive_double', 'split_all_gather', 'dsar', 'all_gather', 'dense', 'auto')


class Stream(NamedTuple):
  """A sparse vector."""

  indices: jax.Array  # uint32[capacity], strictly increasing; the first `count` mean something
  values: jax.Array  # float32[capacity]
  count: jax.Array  # type: ignore[assignment]  # uint32


def allreduce(stream: Stream, size: int, axis_name: str, *, algorithm: str = 'auto', op: str = 'sum',
              transport: Any = None) -> Stream | jax.Array:
  """The sum of all workers' streams.

  Args:
    stream: this worker's.
    size: of the dense vector.
    axis_name: axis of the workers.
    algorithm: one of `ALGORITHMS`.
    op: only 'sum' here.
    transport: only None here.

  Returns:
    A `Stream` of capacity workers * capacity; for 'dsar' and 'dense' a dense array.
  """
  if algorithm not in ALGORITHMS or op != 'sum' or transport is not None:
    raise ValueError(f'not in this stand-in, got {algorithm=}, {op=}, {transport=}')
  if algorithm == 'dense':
    return lax.psum(densify(stream, size), axis_name)
  merged = _merge(size, *_gathered(stream, size, axis_name))
  return densify(merged, size) if algorithm == 'dsar' else merged


def allgather_disjoint(stream: Stream, size: int, axis_name: str, transport: Any = None) -> Stream:
  """All workers' streams as one, where no two have an index in common."""
  del transport
  return _merge(size, *_gathered(stream, size, axis_name))


def account(algorithm: str, stream: Stream, size: int, workers: int,
            disjoint: bool = False) -> dict[str, jax.Array]:
  """Bytes of an exchange as a worker sees them: moved (its own message) and sent (its interface).

  Dense exchanges say what they encode, too: for others that is up to the stream.

  Args:
    algorithm: of `allreduce`; with `disjoint`, 'dense' is an all-gather of dense slices.
    stream: of this worker, for its capacity.
    size: of the dense vector.
    workers: how many.
    disjoint: whether streams are gathered, and not added.
  """
  number = lambda x: jnp.asarray(x, jnp.uint32)
  if algorithm == 'dense':
    own = 4 * -(-size // workers) if disjoint else 4 * size
    sent = own * (workers - 1) if disjoint else 2 * own * (workers - 1) // workers
    return {'encoded_bytes': number(own), 'moved_bytes': number(own), 'sent_bytes': number(sent)}
  moved = 4 + 8 * stream.indices.size
  return {'moved_bytes': number(moved), 'sent_bytes': number(moved * (workers - 1))}


def densify(stream: Stream, size: int) -> jax.Array:
  """A stream as float32[size]."""
  live = jnp.arange(stream.indices.size) < stream.count
  return jnp.zeros(size, jnp.float32).at[jnp.where(live, stream.indices, size)].add(
      stream.values, mode='drop')


def _gathered(stream, size, axis_name):
  live = jnp.arange(stream.indices.size) < stream.count
  indices = jnp.where(live, stream.indices, jnp.uint32(size))
  return (axes.gather(indices, axis_name).reshape(-1),
          axes.gather(jnp.where(live, stream.values, 0), axis_name).reshape(-1))


def _merge(size, indices, values):
  indices, values = lax.sort((indices, values), num_keys=1)
  first = jnp.concatenate([jnp.ones(1, bool), indices[1:] != indices[:-1]])
  at = jnp.cumsum(first.astype(jnp.int32)) - 1
  # Places after the last one keep increasing, too.
  places = jnp.arange(indices.size, dtype=jnp.uint32) + jnp.uint32(size)
  return Stream(places.at[at].set(indices, indices_are_sorted=True),
                jnp.zeros_like(values).at[at].add(values, indices_are_sorted=True),
                jnp.sum(first & (indices < size), dtype=jnp.uint32))
