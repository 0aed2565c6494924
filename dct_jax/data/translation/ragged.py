"""Rows of different lengths in one flat array."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np


class Ragged(NamedTuple):
  """Row i is tokens[starts[i]:starts[i + 1]]."""

  tokens: np.ndarray  # int32[all]
  starts: np.ndarray  # int64[rows + 1]

  @property
  def rows(self) -> int:
    """How many there are."""
    return len(self.starts) - 1

  @property
  def lengths(self) -> np.ndarray:
    """Of all rows, int64[rows]."""
    return np.diff(self.starts)

  def row(self, number: int) -> np.ndarray:
    """One of them."""
    return self.tokens[self.starts[number]:self.starts[number + 1]]


def from_rows(rows: Sequence[Iterable[int]], lengths: Iterable[int]) -> Ragged:
  """Joins rows of known lengths."""
  starts = np.concatenate([[0], np.cumsum(np.fromiter(lengths, np.int64, len(rows)))]).astype(np.int64)
  return Ragged(np.fromiter((x for row in rows for x in row), np.int32, starts[-1]), starts)


def take(ragged: Ragged, rows: np.ndarray) -> Ragged:
  """Some rows.

  Examples:
    >>> take(from_rows([[1, 2], [3], [4, 5]], [2, 1, 2]), np.array([2, 1])).tokens.tolist()
    [4, 5, 3]
  """
  lengths = ragged.lengths[rows]
  starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
  at = np.repeat(ragged.starts[rows] - starts[:-1], lengths) + np.arange(starts[-1])
  return Ragged(ragged.tokens[at], starts)


def matrix(ragged: Ragged, rows: np.ndarray, width: int, fill: int) -> np.ndarray:
  """Some rows, filled up to a width; a row of number -1 is nothing but filling.

  Examples:
    >>> matrix(from_rows([[1, 2], [3], [4, 5]], [2, 1, 2]), np.array([1, -1, 2]), 3, 0).tolist()
    [[3, 0, 0], [0, 0, 0], [4, 5, 0]]
  """
  at = ragged.starts[rows][:, None] + np.arange(width)
  ends = np.where(rows < 0, 0, ragged.starts[rows + 1])
  inside = at < ends[:, None]
  return np.where(inside, ragged.tokens[np.where(inside, at, 0)], np.int32(fill))
