"""Sums of row-sparse gradients over workers, for tables that every worker has: which rows travel, and how.

A reducer takes each worker's rows, every row once, and gives the rows that somebody has, summed. Nothing as large as a
table is made on the way (but by `dense_rows`, which is there to be compared with).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dct_jax import axes
from dct_jax.arrays import Stream, floats_of, u32, words_of
from dct_jax.collectives import ladder
from dct_jax.collectives.accounts import FRAME_HEAD, check_size, mean_words
from dct_jax.collectives.blocks import Listed
from dct_jax.collectives.parts import Summation, traffic
from dct_jax.collectives.s2 import S2State, Sketch, sum_sketched
from dct_jax.collectives.streams import scatter
from dct_jax.collectives.union_sum import lengths, sum_union
from dct_jax.contract import ADD_F32, Part, as_bytes
from dct_jax.kernels import bitmaps
from dct_jax.tables.row_messages import HEAD, as_stream, read, to_owners, write
from dct_jax.transport import Transport, gather_messages, is_bulk, scatter_messages

RUNGS = 24


class RowSum(NamedTuple):
  """Rows that somebody has, summed over workers; all of it is equal on all of them."""

  ids: jax.Array  # int32[n]; they may repeat, and a number that is no row stands where there is none
  values: jax.Array  # float32[n, width]
  state: Any
  sent: jax.Array  # uint32: bytes that a worker sends
  entries: jax.Array  # uint32: rows that a worker has, on average; 0 where nobody knows


@dataclasses.dataclass(frozen=True)
class RowReducer:
  """How rows become a sum over workers.

  Attributes:
    init: () -> state, equal on all workers.
    reduce: (a worker's rows as a `Stream` with values float32[capacity, width], number of rows of the table, state,
      axis_name) -> RowSum.
  """

  init: Callable[[], Any]
  reduce: Callable[[Stream, int, Any, axes.AxisName | None], RowSum]


def gather_rows(*, transport: Transport | None = None, rungs: int = RUNGS) -> RowReducer:
  """Everybody's rows to everybody: P - 1 times what a worker has is sent, and every worker adds up all of it.

  Args:
    transport: from `dct_jax.connect`; as many rows travel as there are. Without one they travel through XLA, in one of
      a few lengths, which all workers agree on first.
    rungs: how many.
  """
  channel = 0 if transport is None else transport.open()

  def reduce(stream, rows, state, axis_name):
    if axis_name is None:
      return _alone(stream, rows, state)
    if transport is None:
      return _gather_through_xla(stream, rows, state, axis_name, rungs)
    check_size(transport, axis_name)
    everyone, sent = _gather(write(stream), channel, transport.size)
    return RowSum(*read(everyone, rows, stream.values.shape[1]), state, sent, mean_words(everyone[:, 0]))

  return RowReducer(lambda: (), reduce)


def split_rows(transport: Transport) -> RowReducer:
  """SparCML's SSAR_Split_AllGather: every worker adds up the rows that it owns, and shows them to all.

  Rows are dealt out one by one: with words in the order of their frequency, the owner of a contiguous slice has four
  to five times as many as the mean.

  Args:
    transport: from `dct_jax.connect`.
  """
  push, show = transport.open(), transport.open()

  def reduce(stream, rows, state, axis_name):
    if axis_name is None:
      return _alone(stream, rows, state)
    check_size(transport, axis_name)
    workers, width = transport.size, stream.values.shape[1]
    messages = to_owners(stream, workers)
    ids, values = read(scatter_messages(messages, push), rows, width)
    most = min(ids.size, -(-rows // workers))
    mine = as_stream(ids, values, rows)
    mine = Stream(mine.indices[:most], mine.values[:most], mine.count)
    away = jnp.sum(messages[:, 1], dtype=jnp.uint32) - messages[axes.worker(axis_name), 1]
    everyone, sent = _gather(write(mine, (away, stream.count)), show, workers)
    sent += 4 * mean_words(everyone[:, 2]) + as_bytes(FRAME_HEAD * (workers - 1))
    found = read(everyone, rows, width, most=min(workers * stream.indices.size, rows))
    return RowSum(*found, state, sent, mean_words(everyone[:, 3]))

  return RowReducer(lambda: (), reduce)


def union_rows(*, transport: Transport | None = None, rungs: int = RUNGS) -> RowReducer:
  """The exact sum of the union's rows: an OR of bitmaps, then a plain sum; see `dct_jax.union_sum`."""
  add = Summation(transport)

  def reduce(stream, rows, state, axis_name):
    total = sum_union(Listed(stream, rows), jnp.zeros(0, jnp.float32), stream.count.reshape(1), add, axis_name, rungs)
    return _rows_of(total, state)

  return RowReducer(lambda: (), reduce)


def sketch_rows(lam: float, rows: int = 1, *, of: str = 'worker', values: str = 'float32', seed: int = 0,
                rungs: int = 16, transport: Transport | None = None) -> RowReducer:
  """S2 Reducer of rows: unbiased, with an error that depends on `lam`; arguments as for `dct_jax.s2`."""
  sketch = Sketch(lam, rows, of, values, seed, rungs).check()
  add = Summation(transport)

  def reduce(stream, table_rows, state, axis_name):
    blocks = Listed(stream, table_rows)
    most = min(blocks.most * (axes.axis_size(axis_name) if of == 'union' else 1), table_rows) * blocks.unit
    steps = sketch.lengths(most // 2, most)
    total, new, _ = sum_sketched(blocks, jnp.zeros(0, jnp.float32), stream.count.reshape(1), sketch, steps, state,
                                 add, axis_name)
    return _rows_of(total, new)

  return RowReducer(S2State.first, reduce)


def dense_rows(*, transport: Transport | None = None) -> RowReducer:
  """A plain sum of whole tables, zeros and all: what every other reducer is compared with.

  Rows that are zero in the sum are left out of the result.
  """
  add = Summation(transport)

  def reduce(stream, rows, state, axis_name):
    table = scatter(stream, rows)
    parts = (Part(ADD_F32, table.size),)
    total = floats_of(add(words_of(table.reshape(-1)), parts, axis_name)).reshape(table.shape)
    _, sent = traffic(add, (parts,), axes.axis_size(axis_name))
    most = min(axes.axis_size(axis_name) * stream.indices.size, rows)
    ids = bitmaps.to_ids(bitmaps.of_mask(jnp.any(total != 0, axis=1)), rows, most).astype(jnp.int32)
    return RowSum(ids, total.at[ids].get(mode='fill', fill_value=0), state, sent, jnp.uint32(0))

  return RowReducer(lambda: (), reduce)


def _gather(message, channel, workers):
  """All messages, and the bytes that a worker sends for them, on average."""
  everyone = gather_messages(message, channel, workers, is_bulk(message.size // 2))
  return everyone, (4 * mean_words(everyone[:, 1]) + FRAME_HEAD) * u32(workers - 1)


def _gather_through_xla(stream, rows, state, axis_name, rungs):
  workers, width = axes.axis_size(axis_name), stream.values.shape[1]
  message, steps = write(stream), lengths(stream.indices.size, rungs)
  most = lax.pmax(stream.count, axis_name)

  def exchange(length):
    part = message[:HEAD + length * (1 + width)]
    everyone = axes.gather(part, axis_name)
    sent = as_bytes(4 * part.size * (workers - 1))
    return padded(RowSum(*read(everyone, rows, width), state, sent, mean_words(everyone[:, 0])),
                  workers * stream.indices.size, rows)

  return ladder.take(ladder.first_holding(steps, most), [partial(exchange, n) for n in steps])


def padded(summed: RowSum, length: int, rows: int) -> RowSum:
  """With so many places, empty ones at the end."""
  rest = length - summed.ids.size
  return summed._replace(ids=jnp.pad(summed.ids, (0, rest), constant_values=rows),
                         values=jnp.pad(summed.values, ((0, rest), (0, 0))))


def _alone(stream, rows, state):
  ids = jnp.where(stream.used, stream.indices, u32(rows)).astype(jnp.int32)
  return RowSum(ids, stream.values, state, jnp.uint32(0), stream.count)


def _rows_of(total, state):
  ids, values, _ = total.blocks.blocks
  return RowSum(ids.astype(jnp.int32), values, state, total.sent, mean_words(total.notes[:, 0]))
