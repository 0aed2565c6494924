"""Tables that every worker has: rows are read at home, and their gradients summed by a reducer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dct_jax import axes
from dct_jax.state import INNER, own
from dct_jax.tables.optimizers import RowOptimizer
from dct_jax.tables.reducers import RowReducer, as_stream


@own(inner=INNER)
class ReplicatedRowsState(NamedTuple):
  """State of a training with replicated tables; all of it but `inner` is equal on all workers."""

  inner: Any  # of the optimizer of everything else
  tables: dict[str, jax.Array]  # float32[rows, width]
  rows: dict[str, Any]  # of the optimizer of rows
  reducers: dict[str, Any]


class ReplicatedRows:
  """Rows of tables that every worker has, in the place of a `RowExchange`.

  Args:
    wanted: batch -> {table: ids}, where ids are a tree of int arrays of any shapes. Rows come in the same trees,
      `float32[*shape, width]`; an id that is no row reads as NaN, which no training goes on with.
    reducers: {table: reducer}.
    axis_name: mapped axis of the workers; None for a single one.

  Raises:
    ValueError: without tables, or for something that is no reducer.
  """

  replicated = True

  def __init__(self, wanted: Callable[[Mapping[str, Any]], dict[str, Any]], reducers: Mapping[str, RowReducer],
               axis_name: str | None = 'data'):
    if not reducers or not all(isinstance(r, RowReducer) for r in reducers.values()):
      raise ValueError(f'every table needs a reducer, as gather_rows() or union_rows(), got {reducers=}')
    self._wanted, self._reducers, self._axis = wanted, dict(reducers), axis_name

  @property
  def workers(self) -> int:
    return axes.axis_size(self._axis)

  def init(self, optimizer: RowOptimizer, tables: Mapping[str, jax.Array], opt_state: Any, specs: Any,
           mesh: Mesh) -> tuple[ReplicatedRowsState, ReplicatedRowsState]:
    """Puts tables beside an optimizer's state, as `init_rows` does.

    Args:
      optimizer: a `RowOptimizer`.
      tables: {table: float32[rows, width]}; every process passes the same.
      opt_state: of everything else, from `dct_jax.init`.
      specs: likewise.
      mesh: from `make_mesh`.

    Returns:
      The state and its specs.
    """
    self._check(tables, 'tables')
    whole = PartitionSpec()
    place = lambda x: jax.make_array_from_callback(
        np.shape(x), NamedSharding(mesh, whole), lambda index: np.asarray(x)[index])
    rows = {name: optimizer.init(table) for name, table in tables.items()}
    reducers = {name: reducer.init() for name, reducer in self._reducers.items()}
    new = [jax.tree.map(place, x) for x in (dict(tables), rows, reducers)]
    return ReplicatedRowsState(opt_state, *new), ReplicatedRowsState(specs, *jax.tree.map(lambda _: whole, new))

  def wanted(self, batch: Mapping[str, Any]) -> dict[str, Any]:
    """The ids of a batch, for `fetch`."""
    ids = self._wanted(batch)
    self._check(ids, 'ids')
    return ids

  def fetch(self, tables: Mapping[str, jax.Array], ids: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A batch's rows, in the trees of its ids; and the ids, for `absorb`."""
    # Negative ids are no rows, and not rows from the end: a gradient has no place for them either.
    read = lambda table: lambda i: table.at[i].get(mode='fill', fill_value=jnp.nan, wrap_negative_indices=False)
    return {name: jax.tree.map(read(tables[name]), asked) for name, asked in ids.items()}, ids

  def absorb(self, optimizer: RowOptimizer, state: ReplicatedRowsState, gradients: dict[str, Any],
             asked: dict[str, Any]) -> tuple[ReplicatedRowsState, jax.Array]:
    """The state after a step, and the bytes that a worker sends for it.

    Args:
      optimizer: of the rows.
      state: before.
      gradients: of the rows of `fetch`.
      asked: from there, too.
    """
    tables, rows, reducers, total = {}, {}, {}, jnp.uint32(0)
    for name, reducer in self._reducers.items():
      table = state.tables[name]
      flat = jnp.concatenate([i.reshape(-1) for i in jax.tree.leaves(asked[name])])
      given = jnp.concatenate([g.reshape(-1, table.shape[1]) for g in jax.tree.leaves(gradients[name])])
      stream = as_stream(flat, given, table.shape[0])
      summed = reducer.reduce(stream, table.shape[0], state.reducers[name], self._axis)
      tables[name], rows[name] = optimizer.update(table, state.rows[name], summed.ids, summed.values)
      reducers[name], total = summed.state, total + summed.sent
    return ReplicatedRowsState(state.inner, tables, rows, reducers), total

  def _check(self, given, what):
    if set(given) != set(self._reducers):
      raise ValueError(f'{what} must be of the tables {sorted(self._reducers)}, got {sorted(given)}')


def check_ids(ids: Any, rows: int, what: str = 'a row') -> None:
  """Refuses ids that are no rows of a table; for batches on their way to a step, which cannot tell.

  Args:
    ids: NumPy integers of any shape.
    rows: of the table.
    what: what is numbered, for the message.

  Raises:
    ValueError: with the first bad id and its place.
  """
  ids = np.asarray(ids)
  bad = (ids < 0) | (ids >= rows)
  if bad.any():
    where = tuple(int(i) for i in np.argwhere(bad)[0])
    raise ValueError(f'the number of {what} must be from 0 to {rows - 1}, got {int(ids[where])} at {where}')
