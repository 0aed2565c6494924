"""Rows of a click log, as recommenders learn from: numbers, categories and whether there was a click."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np


class Clicks(NamedTuple):
  """Rows, in memory or memory-mapped."""

  dense: np.ndarray  # float32[rows, features]; a set may have no such features
  categories: np.ndarray  # int32[rows, fields]: ids from 0 in each field's own vocabulary
  label: np.ndarray  # float32[rows]: 1 for a click, 0 for none


class ClickSets(NamedTuple):
  """A training and a test set."""

  train: Clicks
  test: Clicks
  vocabularies: tuple[int, ...]  # how many ids each field has
  best_loss: float | None  # log loss on the test set that nothing can be expected to beat, where it is known
  name: str


def take(clicks: Clicks, rows: np.ndarray | slice) -> Clicks:
  """Some rows, in the order of `rows`."""
  return Clicks(*(np.asarray(column[rows]) for column in clicks))


def in_order(clicks: Clicks, most: int, multiple: int = 1, batch: int = 8192) -> list[Clicks]:
  """The first rows in batches whose lengths are multiples of a number; the few rows behind are left out."""
  end = min(most, len(clicks.label)) // multiple * multiple
  edges = [*range(0, end, batch // multiple * multiple), end]
  return [take(clicks, slice(a, b)) for a, b in itertools.pairwise(edges)]


def padded(clicks: Clicks, multiple: int = 1, batch: int = 8192) -> Iterator[Clicks]:
  """All rows in batches whose lengths are multiples of a number: the last row fills the last batch up."""
  rows = len(clicks.label)
  end, step = -(-rows // multiple) * multiple, max(batch // multiple, 1) * multiple
  for start in range(0, end, step):
    yield take(clicks, np.minimum(np.arange(start, min(start + step, end)), rows - 1))


def batches(clicks: Clicks, batch: int, seed: int, *, step: int = 0, process: int = 0,
            processes: int = 1) -> Iterator[Clicks]:
  """One process's rows of every step, for ever.

  Each epoch has an order of its own, which the seed alone decides, and has every row at most once: those of
  the last, incomplete batch are left out. The shares of all processes, one after the other, are the batch that
  one process alone would get. Step t is the same whether the steps before it were taken or not.

  Args:
    clicks: of which rows are fetched a batch at a time.
    batch: rows of all processes together.
    seed: of the orders.
    step: the first one: where a run that is resumed stopped.
    process: number of this one.
    processes: how many share a batch.

  Raises:
    ValueError: if a batch has more rows than there are, or cannot be shared equally.
  """
  rows = len(clicks.label)
  if not 1 <= batch <= rows or step < 0:
    raise ValueError(f'a batch must have between 1 and all {rows} rows, and no step is negative, '
                     f'got {batch=}, {step=}')
  if not 0 <= process < processes or batch % processes:
    raise ValueError(f'processes must share a batch equally, got {process=}, {processes=}, {batch=}')
  share = batch // processes
  return _steps(clicks, batch, seed, step, slice(process * share, (process + 1) * share))


def _steps(clicks, batch, seed, step, share):
  # Not grain's shuffle, which keeps no permutation in memory but takes tens of microseconds a row in Python.
  rows = len(clicks.label)
  first, done = divmod(step, rows // batch)
  for epoch in itertools.count(first):
    order = np.arange(rows, dtype=np.min_scalar_type(rows))  # 4 bytes a row, for all but the longest logs
    np.random.default_rng([seed, epoch]).shuffle(order)
    table = order[:rows // batch * batch].reshape(-1, batch)
    for chosen in table[done if epoch == first else 0:, share]:
      yield take(clicks, chosen)
