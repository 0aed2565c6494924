"""Labelled sparse rows: what every loader of linear models' data returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Csr(NamedTuple):
  """Rows of (index, value) pairs, one after the other."""

  indptr: np.ndarray  # int64[rows + 1]: row i is entries indptr[i]:indptr[i + 1]
  indices: np.ndarray  # uint32[entries], strictly increasing in each row
  values: np.ndarray  # float32[entries]
  labels: np.ndarray  # float32[rows]
  num_features: int


def concatenate(parts: Sequence[Csr]) -> Csr:
  """The rows of all parts, in order."""
  starts = np.cumsum([0, *(len(p.indices) for p in parts)])
  indptr = np.concatenate([[0], *(p.indptr[1:] + at for p, at in zip(parts, starts[:-1], strict=True))])
  join = lambda name, dtype: np.concatenate([np.empty(0, dtype), *(getattr(p, name) for p in parts)])
  return Csr(indptr.astype(np.int64), join('indices', np.uint32), join('values', np.float32),
             join('labels', np.float32), max((p.num_features for p in parts), default=0))


def take_rows(data: Csr, rows: np.ndarray) -> Csr:
  """Some rows, in the order of `rows`."""
  lengths = np.diff(data.indptr)[rows]
  indptr = np.concatenate([[0], np.cumsum(lengths)])
  at = np.repeat(data.indptr[rows] - indptr[:-1], lengths) + np.arange(indptr[-1])
  return Csr(indptr, data.indices[at], data.values[at], data.labels[rows], data.num_features)


def normalize_rows(data: Csr) -> Csr:
  """Every row divided by its Euclidean length: one learning rate then fits short and long texts."""
  rows = np.repeat(np.arange(len(data.labels)), np.diff(data.indptr))
  squares = np.bincount(rows, np.square(data.values, dtype=np.float64), minlength=len(data.labels))
  scale = 1 / np.sqrt(np.where(squares > 0, squares, 1))
  return data._replace(values=(data.values * scale[rows]).astype(np.float32))


def binary_labels(data: Csr, positive_below: float | None = None) -> Csr:
  """Labels as -1 and +1.

  Args:
    data: rows with two labels, of which the larger one becomes +1, or with several classes.
    positive_below: for several classes: labels below this become +1, all others -1. It is a binary
      stand-in for the multi-class task, not one-versus-rest.

  Raises:
    ValueError: if there are more than two labels and nothing says how to split them.
  """
  if positive_below is not None:
    positive = data.labels < positive_below
  else:
    kinds = np.unique(data.labels)
    if len(kinds) > 2:
      raise ValueError(f'there are {len(kinds)} classes, {kinds[:4]}, ...: say with positive_below which of '
                       'them are positive')
    # One kind alone (a slice of a file) keeps its sign: 0 and -1 are negative everywhere.
    positive = data.labels == kinds[-1] if len(kinds) == 2 else data.labels > 0
  return data._replace(labels=np.where(positive, 1, -1).astype(np.float32))
