"""Columns of sparse rows, and random picks of them, for coordinate descent."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dct_jax.data.linear.csr import Csr
from dct_jax.data.linear.entries import padded


class Columns(NamedTuple):
  """A data set by column; every worker picks from the features of one slice of the model."""

  indptr: np.ndarray  # int64[num_features + 1]
  rows: np.ndarray  # int32[entries]
  values: np.ndarray  # float32[entries]
  slices: tuple[np.ndarray, ...]  # by worker: features that occur, ascending
  num_rows: int
  row_entries: int  # of the longest row
  picks: int  # of a worker in a step
  seed: int
  steps: int  # of a pass: each feature that occurs once, on average
  capacity: int  # entries of the largest pick of a worker

  @property
  def features(self) -> int:
    """Those that occur."""
    return sum(map(len, self.slices))


def cut(data: Csr, workers: int, picks: int, seed: int, passes: int, steps: int = 0) -> Columns:
  """Sorts a data set by column, and looks ahead at what will be picked.

  Slice w is features w * n until (w + 1) * n, n = ceil(features / workers). Features that occur in no row are
  never picked: without a row they have no gradient.

  Args:
    data: all rows.
    workers: how many.
    picks: features of a worker in a step; all of its slice, if it has fewer.
    seed: of the picks; they depend on this and the step alone.
    passes: how far to look ahead for the largest pick.
    steps: of a pass, instead of as many as it takes.
  """
  order = np.argsort(data.indices, kind='stable')
  rows = np.repeat(np.arange(len(data.labels), dtype=np.int32), np.diff(data.indptr))[order]
  lengths = np.bincount(data.indices, minlength=data.num_features)
  occurs, width = np.flatnonzero(lengths), -(-data.num_features // workers)
  ends = np.searchsorted(occurs, np.arange(1, workers) * width)
  table = Columns(np.concatenate([[0], np.cumsum(lengths)]), rows, data.values[order],
                  tuple(np.split(occurs, ends)), len(data.labels), int(np.diff(data.indptr).max(initial=0)),
                  picks, seed, steps or -(-len(occurs) // (workers * picks)), 0)
  largest = (int(lengths[p].sum()) for s in range(table.steps * passes) for p in pick(table, s))
  return table._replace(capacity=max((1, *largest)))


def pick(table: Columns, step: int) -> list[np.ndarray]:
  """Each worker's random features of a step, ascending."""
  rng = np.random.default_rng([table.seed, step])
  draw = lambda n: rng.choice(n, min(table.picks, n), replace=False, shuffle=False) if n else np.empty(0, int)
  return [np.sort(s[draw(len(s))]).astype(np.uint32) for s in table.slices]


def batch(table: Columns, step: int) -> dict[str, np.ndarray]:
  """All workers' picks of a step with their columns; the same on every worker.

  Returns:
    `coordinates` (uint32[workers, picks], padded with num_features); of the entries `slots` (int32: which
    pick), `rows` (int32) and `values` (float32), all [workers, capacity], padded with picks, num_rows and 0.
  """
  out: dict[str, list] = {'coordinates': [], 'slots': [], 'rows': [], 'values': []}
  for mine in pick(table, step):
    starts, lengths = table.indptr[mine], table.indptr[mine + 1] - table.indptr[mine]
    slots = np.repeat(np.arange(len(mine), dtype=np.int32), lengths)
    at = np.arange(len(slots)) + np.repeat(starts - np.cumsum(lengths) + lengths, lengths)
    out['coordinates'].append(padded(mine, table.picks, len(table.indptr) - 1))
    out['slots'].append(padded(slots, table.capacity, table.picks))
    out['rows'].append(padded(table.rows[at], table.capacity, table.num_rows))
    out['values'].append(padded(table.values[at], table.capacity, 0))
  return {k: np.stack(v) for k, v in out.items()}
