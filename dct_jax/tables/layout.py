"""Where the rows of embedding tables live."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


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


def init_tables(key: jax.Array, layout: TableLayout, width: int) -> jax.Array:
  """float32[workers * rows, width]: uniform within 1 / sqrt(vocabulary), as the public DLRM begins.

  A table's numbers depend on its field alone, not on how many workers there are.
  """
  tables = np.zeros((len(layout.slots), layout.rows, width), np.float32)
  for field, size in enumerate(layout.vocabularies):
    owner = int(layout.place[field]) // layout.slots.shape[1]
    bound = size ** -0.5
    values = jax.random.uniform(jax.random.fold_in(key, field), (size, width), minval=-bound, maxval=bound)
    tables[owner, layout.begin[field]:layout.begin[field] + size] = np.asarray(values)
  return jnp.asarray(tables.reshape(-1, width))
