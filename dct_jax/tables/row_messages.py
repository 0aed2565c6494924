"""Messages of rows: a number and values for each. Rows are long, so that their numbers need no codec."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dct_jax.arrays import Stream, floats_of, u32, words_of
from dct_jax.kernels import bitmaps
from dct_jax.tables.optimizers import sum_duplicates

# A message of rows: their number, the words that are used (as in every message), two notes, and a record for each row,
# which is its number and its values.
HEAD = 4


def as_stream(ids: jax.Array, gradients: jax.Array, rows: int) -> Stream:
  """The rows of a batch, each once, its gradients added up; a row whose gradients add up to zero is still a row.

  Args:
    ids: int[n], which may repeat.
    gradients: float[n, width].
    rows: of the table; ids beyond them are left out.

  Raises:
    ValueError: for no ids at all, or shapes that do not fit.
  """
  if not ids.size or not rows:
    raise ValueError(f'a gradient of rows needs at least one id, and a table at least one row, got {ids.shape=} and '
                     f'{rows=}')
  ids = ids.astype(jnp.int32)  # narrow ids may have no number for what is no row
  known = jnp.where((ids >= 0) & (ids < rows), ids, rows)
  distinct, sums = sum_duplicates(known, gradients.astype(jnp.float32), rows)
  return Stream(u32(distinct), sums, jnp.sum(distinct < rows, dtype=jnp.uint32))


def write(stream: Stream, notes: tuple[Any, Any] = (0, 0)) -> jax.Array:
  """The message of a stream of rows; notes are any words."""
  records = jnp.concatenate([stream.indices[:, None], words_of(stream.values)], axis=1)
  head = jnp.stack([stream.count, HEAD + stream.count * u32(records.shape[1]), *map(u32, notes)])
  return jnp.concatenate([head, records.reshape(-1)])


def read(messages: jax.Array, rows: int, width: int, most: int | None = None) -> tuple[jax.Array, jax.Array]:
  """Ids int32[n] and values float32[n, width] of several messages, one after the other.

  Args:
    messages: uint32[messages, words].
    rows: of the table; it stands where there is none.
    width: of a row.
    most: rows that all messages have together, at most. Where they have room for more, used places are moved
      together, so that nobody has to look at the others again.
  """
  records = messages[:, HEAD:].reshape(messages.shape[0], -1, 1 + width)
  used = (jnp.arange(records.shape[1], dtype=jnp.uint32) < messages[:, :1]).reshape(-1)
  records = records.reshape(used.size, 1 + width)
  if most is not None and most < used.size:
    at = bitmaps.to_ids(bitmaps.of_mask(used), used.size, most)
    used, records = at < used.size, records.at[at].get(mode='fill', fill_value=0)
  ids = jnp.where(used & (records[:, 0] < rows), records[:, 0], u32(rows)).astype(jnp.int32)
  return ids, jnp.where(used[:, None], floats_of(records[:, 1:]), 0)


def to_owners(stream: Stream, workers: int) -> jax.Array:
  """A message for the owner of each row: row i belongs to worker i modulo their number."""
  owner = jnp.where(stream.used, stream.indices % workers, u32(workers)).astype(jnp.int32)
  at = lambda w: jnp.cumsum(owner == w) - 1
  place = jnp.sum(jnp.stack([jnp.where(owner == w, at(w), 0) for w in range(workers)]), axis=0)

  def to(w):
    where = jnp.where(owner == w, place, stream.indices.size)
    move = lambda x: jnp.zeros_like(x).at[where].set(x, mode='drop')
    return write(Stream(move(stream.indices), move(stream.values), jnp.sum(owner == w, dtype=jnp.uint32)))

  return jnp.stack([to(w) for w in range(workers)])
