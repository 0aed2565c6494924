"""The reducer of rows that should be fastest, chosen in every step by the cost model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dct_jax import axes
from dct_jax.arrays import u32
from dct_jax.collectives.algorithms import number
from dct_jax.collectives.costs import Costs, Instance, features, random_union
from dct_jax.kernels import bitmaps
from dct_jax.tables.reducers import RowReducer, dense_rows, gather_rows, padded, split_rows, union_rows
from dct_jax.transport import Transport

# What rows may be added up by, and the work that it takes beside the line: how often a worker handles as many numbers
# as it gets in an all-gather. Measured with 4 and 8 hosts at 1 Gbit (benchmarks/s2.py).
CHOICES = {'all_gather': 1.0, 'split_all_gather': 2.5, 'union': 1.25, 'dense': 0.0}


class AutoRowsState(NamedTuple):
  """State of `auto_rows`, equal on all workers."""

  entries: jax.Array  # float32: rows that a worker had in the last step, on average; 0 before the first one
  union: jax.Array  # float32: rows that somebody had
  chosen: jax.Array  # uint32: which of `CHOICES` was taken


def auto_rows(costs: Costs, transport: Transport) -> RowReducer:
  """Gathered, split, by their union or dense: whichever should take the least time for as many rows as last time.

  Args:
    costs: measured by `dct_jax.netlab.calibrate`, or `Costs.of_network` for a guess.
    transport: from `dct_jax.connect`.

  Raises:
    ValueError: if the costs are of another number of workers.
  """
  if costs.workers != transport.size:
    raise ValueError(f'the costs were measured with {costs.workers} workers, got {transport.size=}')
  factories: dict[str, Callable[..., RowReducer]] = {
      'all_gather': gather_rows, 'split_all_gather': split_rows, 'union': union_rows, 'dense': dense_rows}
  reducers = [factories[name](transport=transport) for name in CHOICES]

  def reduce(stream, rows, state, axis_name):
    workers, width, room = axes.axis_size(axis_name), stream.values.shape[1], stream.indices.size
    first = float(min(room / 2, rows))
    entries = jnp.where(state.entries > 0, state.entries, first)
    union = jnp.where(state.entries > 0, state.union, random_union(rows, first / rows, workers))
    chosen = _cheapest(costs, Instance(workers, rows * width, width * entries, width * union, dense_result=False,
                                       unit=width, summed_unit=width))
    branches = [lambda r=r: padded(r.reduce(stream, rows, (), axis_name), workers * room, rows) for r in reducers]
    summed = lax.switch(chosen, branches)
    found = bitmaps.size(bitmaps.of_ids(u32(summed.ids), u32(summed.ids.size), rows)).astype(jnp.float32)
    known = jnp.where(summed.entries > 0, summed.entries.astype(jnp.float32), entries)
    return summed._replace(state=AutoRowsState(known, found, u32(chosen)))

  zero = lambda: jnp.zeros((), jnp.float32)
  return RowReducer(lambda: AutoRowsState(zero(), zero(), jnp.zeros((), jnp.uint32)), reduce)


def _cheapest(costs: Costs, instance: Instance) -> Any:
  """Which choice takes the least time on the line and with its numbers."""
  a_round, a_byte, *_ = costs.table[number('dense')]
  a_number = costs.table[number('all_gather')][2]
  line = features(instance, jnp)[:, :2] @ jnp.array([a_round, a_byte])
  gathered = instance.workers * instance.entries * a_number
  seconds = [line[number(name)] + work * gathered for name, work in CHOICES.items()]
  return jnp.argmin(jnp.stack(seconds)).astype(jnp.int32)
