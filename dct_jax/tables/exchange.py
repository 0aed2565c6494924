"""Rows of tables that are dealt out over workers: fetched for a batch, their gradients given back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import lax

from dct_jax import axes
from dct_jax.state import INNER, NEVER, own
from dct_jax.tables.layout import TableLayout
from dct_jax.tables.optimizers import RowOptimizer
from dct_jax.wire import values

CODECS = ('float32', 'float16', 'int8')


class Asked(NamedTuple):
  """What all workers' batches have asked this one for."""

  ids: jax.Array  # int32[workers, batch, slots]


def _dealt(state):
  return NEVER if state.dealing is None else state.dealing.rule


@own(inner=INNER, tables=_dealt, rows=_dealt)
class RowsState(NamedTuple):
  """State of a training with tables. They are here, not among the parameters, as every worker has its own."""

  inner: Any  # of the optimizer of everything else
  tables: Any  # float32[rows, width], by worker
  rows: Any  # of the optimizer of rows, by worker: arrays with a row for each of the tables
  dealing: Any = None  # a `Dealing`, static: how all this goes to another number of workers


class RowExchange:
  """Rows from their owners, and gradients to them, in all-to-alls: every row travels once each way.

  Args:
    layout: from `deal`.
    axis_name: mapped axis of the workers; None for one worker that has all tables.
    codec: how rows and gradients travel: 'float32', 'float16', or 'int8' with a scale for each row.
    column: the column of a batch that says which rows it wants; steps and pipelines ask `wanted` for it.
  """

  replicated = False

  def __init__(self, layout: TableLayout, axis_name: str | None = 'data', *, codec: str = 'float32',
               column: str = 'categories'):
    if codec not in CODECS:
      raise ValueError(f'codec must be one of {CODECS}, got {codec=}')
    if axis_name is None and len(layout.slots) > 1:
      raise ValueError(f'without an axis there is one worker, got slots of {len(layout.slots)}')
    self.layout = layout
    self._slots, self._begin, self._place = layout.slots, layout.begin, layout.place
    self._axis, self._codec, self._column = axis_name, codec, column

  @property
  def workers(self) -> int:
    return len(self._slots)

  def wanted(self, batch: Mapping[str, Any]) -> Any:
    """The ids of a batch, int32[batch, fields], for `fetch`."""
    if self._column not in batch:
      raise ValueError(f'the ids of rows are in column {self._column!r}, got a batch with {sorted(batch)}')
    return batch[self._column]

  def fetch(self, tables: jax.Array, ids: jax.Array) -> tuple[jax.Array, Asked]:
    """A batch's rows.

    Args:
      tables: float32[rows, width], those of this worker.
      ids: int32[batch, fields], from 0 in each field.

    Returns:
      float32[batch, fields, width], and whom to update later.
    """
    workers, slots = self._slots.shape
    # One column would broadcast over all fields, and give rows that nobody asked for.
    chex.assert_shape(ids, (None, len(self._begin)), exception_type=ValueError,
                      custom_message='ids of rows are int[batch, fields], one column for each table')
    chex.assert_type(ids, int, exception_type=ValueError, custom_message='ids of rows are whole numbers')
    local = ids + self._begin
    nobody = jnp.zeros((local.shape[0], 1), local.dtype)  # row 0, for slots without a field
    asking = jnp.concatenate([nobody, local], axis=1)[:, self._slots.reshape(-1) + 1]
    asked = self._swap(asking.reshape(-1, workers, slots).swapaxes(0, 1))
    found = self._travel(tables[asked])
    rows = found.swapaxes(0, 1).reshape(local.shape[0], workers * slots, tables.shape[1])
    return rows[:, self._place], Asked(asked)

  def give_back(self, gradients: jax.Array, asked: Asked) -> tuple[jax.Array, jax.Array]:
    """The gradients of this worker's rows: ids int32[n], and float32[n, width]; ids may repeat.

    Args:
      gradients: float32[batch, fields, width], of the rows of `fetch`.
      asked: from `fetch`.
    """
    workers, slots = self._slots.shape
    chex.assert_shape(gradients, (asked.ids.shape[1], len(self._begin), None), exception_type=ValueError,
                      custom_message='gradients are those of the rows that were fetched, [batch, fields, width]')
    batch, _, width = gradients.shape
    empty = axes.vary_as(jnp.zeros((batch, workers * slots, width), gradients.dtype), [gradients])
    spread = empty.at[:, self._place].set(gradients).reshape(batch, workers, slots, width)
    received = self._travel(spread.swapaxes(0, 1))
    return asked.ids.reshape(-1), received.reshape(-1, width)

  def absorb(self, optimizer: RowOptimizer, state: RowsState, gradients: jax.Array,
             asked: Asked) -> tuple[RowsState, int]:
    """The state after a step, from the gradients of the rows of `fetch`; and the bytes that a worker sends for it."""
    ids, at_home = self.give_back(gradients, asked)
    tables, rows = optimizer.update(state.tables, state.rows, ids, at_home)
    return state._replace(tables=tables, rows=rows), self.sent_bytes(gradients.shape[0], gradients.shape[2])

  def sent_bytes(self, batch: int, width: int) -> int:
    """Of one worker in one step, both ways, the questions included."""
    workers, slots = self._slots.shape
    row = width * {'float32': 4, 'float16': 2, 'int8': 1}[self._codec] + 4 * (self._codec == 'int8')
    return (workers - 1) * batch * slots * (2 * row + 4)

  def _swap(self, x):
    return x if self._axis is None else lax.all_to_all(x, self._axis, 0, 0)

  def _travel(self, x):
    """All-to-all of float32[workers, ..., width] in the codec's bits: XLA widens narrow floats on the way."""
    if self._axis is None and self._codec == 'float32':
      return x
    if self._codec == 'int8':
      whole, scale = (self._swap_bits(part) for part in values.int8_rows(x))
      return whole * scale
    return self._swap_bits(values.narrow(x, self._codec, keep_infinity=True)).astype(jnp.float32)

  def _swap_bits(self, x):
    bits = jnp.dtype(f'uint{8 * x.dtype.itemsize}')
    return lax.bitcast_convert_type(self._swap(lax.bitcast_convert_type(x, bits)), x.dtype)
