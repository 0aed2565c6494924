"""From values of a categorical field to ids, the most frequent first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

PENDING = 1 << 20  # distinct values that are collected before they are merged, at least


class Vocabulary(NamedTuple):
  """Values that have an id of their own; id 0 is for all others."""

  values: np.ndarray  # sorted
  ids: np.ndarray  # int32, of each value

  @property
  def size(self) -> int:
    """How many ids there are, with 0."""
    return 1 + len(self.values)


def count_values(chunks: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
  """Distinct values of all chunks, sorted, and how often each occurs; memory is bounded by what is distinct.

  Examples:
    >>> count_values([np.array([7, 3, 7]), np.array([3, 7, 9])])
    (array([3, 7, 9]), array([2, 3, 1]))
  """
  pending: list[tuple[np.ndarray, np.ndarray]] = []
  collected = 0
  for chunk in chunks:
    pending.append(np.unique(chunk, return_counts=True))
    collected += len(pending[-1][0])
    # Once there is as much to merge as has been merged before: n log n in all.
    if collected > 2 * len(pending[0][0]) + PENDING:
      pending = [_merge(pending)]
      collected = len(pending[0][0])
  return _merge(pending)


def _merge(counted):
  if len(counted) == 1:
    return counted[0]
  values, at = np.unique(np.concatenate([v for v, _ in counted]), return_inverse=True)
  weights = np.concatenate([n for _, n in counted])
  return values, np.bincount(at, weights, minlength=len(values)).astype(np.int64)


def make_vocabulary(values: np.ndarray, counts: np.ndarray) -> Vocabulary:
  """Gives ids from 1 by falling count, and by value where counts are equal.

  Args:
    values: distinct and sorted.
    counts: how often each occurs.
  """
  ids = np.empty(len(values), np.int32)
  ids[np.argsort(-counts, kind='stable')] = np.arange(1, len(values) + 1)
  return Vocabulary(values, ids)


def lookup(vocabulary: Vocabulary, column: np.ndarray) -> np.ndarray:
  """The values' ids, int32.

  Examples:
    >>> lookup(make_vocabulary(np.array([3, 7]), np.array([2, 3])), np.array([7, 3, 9])).tolist()
    [1, 2, 0]
  """
  if not len(vocabulary.values):
    return np.zeros(len(column), np.int32)
  at = np.minimum(np.searchsorted(vocabulary.values, column), len(vocabulary.values) - 1)
  return np.where(vocabulary.values[at] == column, vocabulary.ids[at], 0).astype(np.int32)
