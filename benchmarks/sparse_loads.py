"""What sparse gradients look like in training, and rivals that the library does not have: for benchmarks/s2.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import dct_jax
from dct_jax import streams, tables
from dct_jax.data import words
from dct_jax.tables import row_messages
from dct_jax.transport import Transport, scatter_messages

WIDTH = 200  # of an embedding
ROWS_OF_STREAMS = 20  # a worker reads so many places of the text at once


class Load(NamedTuple):
  """Blocks that workers have."""

  name: str
  universe: int
  unit: int
  ids: Callable[[int, int], np.ndarray]  # (worker, step) -> its blocks, increasing

  def most(self, workers: int) -> int:
    """Room for any worker's blocks, and a few more."""
    return int(1.1 * max(len(self.ids(w, s)) for w in range(workers) for s in range(4))) + 1


def text_rows(data: str, name: str, tokens: int, width: int = WIDTH) -> Load:
  """Rows of an embedding: the different words of so many tokens of a text, read as a language model reads it."""
  text = words.load(data)
  length = tokens // ROWS_OF_STREAMS

  def ids(worker, step):
    begins = (np.arange(ROWS_OF_STREAMS) * 9973 + worker * 104729 + step * 7919 * length) % (len(text.train) - length)
    return np.unique(np.concatenate([text.train[b:b + length] for b in begins])).astype(np.uint32)

  return Load(name, len(text.vocabulary), width, ids)


def top_blocks(name: str, size: int = 2**22, unit: int = 256, keep: float = 1 / 32) -> Load:
  """The blocks with the largest norms, of gradients that are by half what all workers have and by half their own."""
  universe = size // unit
  signal = np.random.default_rng(0).standard_normal(universe)

  def ids(worker, step):
    norms = signal + np.random.default_rng([1, worker, step]).standard_normal(universe)
    return np.sort(np.argpartition(-norms, int(keep * universe))[:int(keep * universe)]).astype(np.uint32)

  return Load(name, universe, unit, ids)


def in_blocks(load: Load, unit: int = 256) -> Load:
  """The same entries as OmniReduce sees them: blocks of a fixed length, wherever rows begin."""

  def ids(worker, step):
    rows = load.ids(worker, step).astype(np.int64)
    inside = (rows[:, None] * load.unit + np.arange(load.unit)) // unit
    return np.unique(inside).astype(np.uint32)

  return Load(load.name, -(-load.universe * load.unit // unit), unit, ids)


def stream_of(load: Load, worker: int, step: int, capacity: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Indices, values and count, as one worker of `shard_batch` has them."""
  ids = load.ids(worker, step)[:capacity]
  indices = np.full((1, capacity), load.universe, np.uint32)
  indices[0, :ids.size] = ids
  values = np.zeros((1, capacity, load.unit), np.float32)
  values[0, :ids.size] = np.random.default_rng([2, worker, step]).standard_normal((ids.size, load.unit), np.float32)
  return indices, values, np.array([ids.size], np.uint32)


def parallax(transport: Transport) -> tables.RowReducer:
  """Parallax: every worker is a server of some rows; gradients are pushed there, and wanted rows asked for and pulled.

  A worker gets the rows that it asks for, here those that it has pushed, where others give everybody the whole sum.
  Its servers would update their rows, which takes the same bytes as answering with sums.
  """
  push, ask, answer = transport.open(), transport.open(), transport.open()

  def reduce(stream, rows, state, axis_name):
    del axis_name
    workers, width = transport.size, stream.values.shape[1]
    arrived = scatter_messages(row_messages.to_owners(stream, workers), push)
    held = row_messages.as_stream(*row_messages.read(arrived, rows, width), rows)
    wanted = dct_jax.Stream(stream.indices, jnp.zeros((stream.indices.size, 0), jnp.float32), stream.count)
    asked = scatter_messages(row_messages.to_owners(wanted, workers), ask)
    answers = jax.vmap(lambda message: _answer(message, held, rows))(asked)
    ids, values = row_messages.read(scatter_messages(answers, answer), rows, width)
    return tables.RowSum(ids, values, state, jnp.uint32(0), stream.count)

  return tables.RowReducer(lambda: (), reduce)


def _answer(message, held, rows):
  """The rows that a message asks for, of those that a server has."""
  ids, _ = row_messages.read(message[None], rows, 0)
  place = jnp.searchsorted(held.indices, ids.astype(jnp.uint32))
  values = held.values.at[place].get(mode='fill', fill_value=0)
  return row_messages.write(dct_jax.Stream(ids.astype(jnp.uint32), values, message[0]))


def doubling(transport: Transport, universe: int, unit: int) -> tables.RowReducer:
  """SSAR_Recursive_Double, whose streams have an index for every number."""
  exchange = streams.Exchange(universe * unit, 'data', transport=transport, algorithm='recursive_double')

  def reduce(stream, rows, state, axis_name):
    del rows, axis_name
    entries = (stream.indices[:, None] * np.uint32(unit) + jnp.arange(unit, dtype=jnp.uint32)).reshape(-1)
    total, sent = exchange(dct_jax.Stream(entries, stream.values.reshape(-1), stream.count * np.uint32(unit)))
    return tables.RowSum(total.indices, total.values, state, sent, stream.count)

  return tables.RowReducer(lambda: (), reduce)
