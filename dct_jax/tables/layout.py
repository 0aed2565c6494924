"""Where the rows of embedding tables live."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dct_jax.state import Dealt


class TableLayout(NamedTuple):
  """Tables dealt out over workers, equally many slots to each; static."""

  slots: np.ndarray  # int32[workers, slots]: the field of each slot, -1 where there is none
  begin: np.ndarray  # int32[fields]: where a field's rows begin on its worker
  rows: int  # of every worker, the longest one's
  vocabularies: tuple[int, ...]

  @property
  def place(self) -> np.ndarray:
    """int32[fields]: number of each field's slot, all workers' slots in a row."""
    flat = self.slots.reshape(-1)
    place = np.zeros(len(self.vocabularies), np.int32)
    place[flat[flat >= 0]] = np.flatnonzero(flat >= 0)
    return place

  def first(self, field: int) -> int:
    """Where a field's rows begin in all workers' tables, laid end to end."""
    return int(self.place[field]) // self.slots.shape[1] * self.rows + int(self.begin[field])


def deal(vocabularies: Sequence[int], workers: int = 1) -> TableLayout:
  """Deals tables out over workers: the largest first, each to the worker with the fewest rows so far.

  Raises:
    ValueError: for an empty vocabulary, or no workers.
  """
  if workers < 1 or not vocabularies or min(vocabularies) < 1:
    raise ValueError(f'every table needs a row and there must be workers, got {vocabularies=} and {workers=}')
  most = -(-len(vocabularies) // workers)
  hands: list[list[int]] = [[] for _ in range(workers)]
  rows, begin = [0] * workers, np.zeros(len(vocabularies), np.int32)
  for field in sorted(range(len(vocabularies)), key=lambda f: -vocabularies[f]):
    owner = min((w for w in range(workers) if len(hands[w]) < most), key=lambda w: rows[w])
    begin[field] = rows[owner]
    hands[owner].append(field)
    rows[owner] += vocabularies[field]
  slots = np.array([hand + [-1] * (most - len(hand)) for hand in hands], np.int32)
  return TableLayout(slots, begin, max(rows), tuple(vocabularies))


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Dealing:
  """What a state has to know of its tables to go to another number of workers; static."""

  vocabularies: tuple[int, ...]

  @property
  def rule(self) -> Dealt:
    """Of arrays with a row for each row of the tables."""
    return Dealt(lambda shape, workers: (workers * deal(self.vocabularies, workers).rows, *shape[1:]), self._move)

  def _move(self, array, old, new, conserve):
    """Every table as it was, on its new worker; rows that belong to none are zero."""
    there, here = deal(self.vocabularies, old), deal(self.vocabularies, new)
    moved = np.zeros((new * here.rows, *array.shape[1:]), array.dtype)
    for field, size in enumerate(self.vocabularies):
      moved[here.first(field):here.first(field) + size] = array[there.first(field):there.first(field) + size]
    return moved


def init_tables(key: jax.Array, layout: TableLayout, width: int) -> jax.Array:
  """float32[workers * rows, width]: uniform within 1 / sqrt(vocabulary), as the public DLRM begins.

  A table's numbers depend on its field alone, not on how many workers there are.
  """
  tables = np.zeros((len(layout.slots) * layout.rows, width), np.float32)
  for field, size in enumerate(layout.vocabularies):
    bound = size ** -0.5
    values = jax.random.uniform(jax.random.fold_in(key, field), (size, width), minval=-bound, maxval=bound)
    tables[layout.first(field):layout.first(field) + size] = np.asarray(values)
  return jnp.asarray(tables)
