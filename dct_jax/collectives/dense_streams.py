"""Streams exchanged as dense vectors through XLA: the baseline that sparse exchanges are compared with."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from dct_jax import axes
from dct_jax.arrays import Stream
from dct_jax.collectives.costs import Costs
from dct_jax.collectives.streams import Exchange, scatter
from dct_jax.contract import as_bytes
from dct_jax.transport import Transport

Reduced = Stream | jax.Array


def allreduce_dense(stream: Stream, size: int, axis_name: str) -> tuple[jax.Array, jax.Array]:
  """The sum of all workers' streams as float32[size], by XLA's own all-reduce.

  Returns:
    The sum, and the bytes that a worker sends in a ring.
  """
  workers = axes.axis_size(axis_name)
  total = lax.psum(scatter(stream, size), axis_name)
  return total, as_bytes(8 * size * (workers - 1) // workers)


def allgather_dense(stream: Stream, size: int, axis_name: str) -> tuple[jax.Array, jax.Array]:
  """All workers' streams as float32[size], gathered as dense slices.

  Args:
    stream: this worker's, with indices of its own slice only: worker w has those from w * n until
      (w + 1) * n, n = ceil(size / workers).
    size: of the dense vector.
    axis_name: axis of the workers.

  Returns:
    The vector, and the bytes that a worker sends.
  """
  workers = axes.axis_size(axis_name)
  width = -(-size // workers)
  start = jnp.uint32(width) * lax.axis_index(axis_name).astype(jnp.uint32)
  gathered = axes.gather(scatter(stream._replace(indices=stream.indices - start), width), axis_name)
  return gathered.reshape(-1)[:size], as_bytes(4 * width * (workers - 1))


def open_exchange(size: int, axis_name: str, *, algorithm: str, transport: Transport | None = None,
                  disjoint: bool = False, costs: Costs | None = None,
                  ) -> Callable[[Stream], tuple[Reduced, dict[str, jax.Array]]]:
  """An exchange of streams for a step in sections, `Exchange` or its dense baseline.

  Args:
    size: coordinates of the vectors.
    axis_name: axis of the workers.
    algorithm: as for `Exchange`; 'dense' without a transport is XLA's own all-reduce.
    transport: from `dct_jax.connect`. Without one the sparse algorithms are all the same through XLA.
    disjoint: whether every worker's indices are of its own slice; 'dense' gathers slices then.
    costs: for 'auto' with a transport, from `dct_jax.netlab.calibrate`.

  Returns:
    stream -> (sum, bytes: `sent_bytes`, and `encoded_bytes` where they are dense).
  """
  send = Exchange(size, axis_name, transport=transport, algorithm=algorithm, costs=costs)
  dense = algorithm == 'dense'

  def exchange(stream):
    if dense and (disjoint or transport is None):
      baseline = allgather_dense if disjoint else allreduce_dense
      result: tuple[Reduced, jax.Array] = baseline(stream, size, axis_name)
    else:
      result = send(stream)
    own = -(-size // axes.axis_size(axis_name)) if disjoint else size
    return result[0], {'sent_bytes': result[1]} | ({'encoded_bytes': as_bytes(4 * own)} if dense else {})

  return exchange
