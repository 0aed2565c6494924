"""A few shapes of batches for sentences of many lengths: each shape that a step sees is compiled once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dct_jax.data.translation.pairs import Pairs


class Shape(NamedTuple):
  """Of a batch, over all workers."""

  rows: int
  source: int  # tokens of a row
  target: int


class Buckets(NamedTuple):
  """Which shape each pair of a set goes to; as text it is a line for a log.

  Shapes grow, so that a pair fits its own and all behind it. Those that do not fill a batch of their own shape
  go to the next one, a different choice of them in each epoch: only the last shape has a batch with rows to
  spare.
  """

  shapes: tuple[Shape, ...]
  bucket: np.ndarray  # int32[pairs]: number of the shape
  batches: tuple[int, ...]  # of each shape in an epoch
  waste: float  # share of the tokens of an epoch, source and target, that are filling

  @property
  def steps(self) -> int:
    """Of an epoch."""
    return sum(self.batches)

  def __str__(self) -> str:
    each = ', '.join(f'{n:,} of {s.rows} x ({s.source}, {s.target})'
                     for n, s in zip(self.batches, self.shapes, strict=True))
    return f'{self.steps:,} batches an epoch: {each}; {self.waste:.1%} of the tokens are filling'


def choose(pairs: Pairs, tokens: int, *, multiple: int = 1, count: int = 5) -> Buckets:
  """Shapes with the least filling that so many shapes can have.

  Pairs are ordered by the longer of their two sides. Where to cut that order is solved exactly (not by
  quantiles, which know nothing of what a long row costs), but for the few pairs that move to the next shape.

  Args:
    pairs: of the set that is to be put in batches.
    tokens: of a batch over all workers, at most: rows times the longer side.
    multiple: what rows must be a multiple of: workers times microbatches.
    count: how many shapes, at most.

  Raises:
    ValueError: if not even `multiple` rows of the longest pair are within `tokens`.
  """
  if count < 1 or multiple < 1:
    raise ValueError(f'there must be shapes and rows, got {count=}, {multiple=}')
  lengths = np.stack([side.lengths for side in pairs])
  key = lengths.max(axis=0)
  if key.max() * multiple > tokens:
    raise ValueError(f'{multiple} rows of the longest pair, {key.max()} tokens, must be within a batch, '
                     f'got {tokens=}, {multiple=}')
  widths = np.zeros((2, key.max() + 1), np.int64)  # of either side, if all pairs up to a key go together
  for side in range(2):
    np.maximum.at(widths[side], key, lengths[side])
  widths = np.maximum.accumulate(widths, axis=1)
  edges = _cut(np.bincount(key), widths.sum(axis=0), count)
  shapes = tuple(Shape(int(tokens // max(s, t) // multiple * multiple), int(s), int(t))
                 for s, t in widths[:, edges].T)
  return _fill(shapes, np.searchsorted(edges, key).astype(np.int32), int(lengths.sum()))


def _cut(counts, widths, most):
  """Keys at which buckets end, so that the sum of counts times their bucket's width is least."""
  before = np.cumsum(counts)
  # least[j]: of all pairs up to key j, in so many buckets; a bucket from i (not within) to j costs cost[i, j].
  cost = np.where(np.arange(len(counts))[:, None] < np.arange(len(counts)),
                  (before[None, :] - before[:, None]) * widths[None, :], np.inf)
  cost[0, 0] = 0  # no pair has key 0: a bucket less
  least, backs = before * widths, []
  for _ in range(most - 1):
    through = least[:, None] + cost
    backs.append(np.argmin(through, axis=0))
    least = through.min(axis=0)
  edges = [len(counts) - 1]
  for back in reversed(backs):
    edges.append(int(back[edges[-1]]))
  return np.array(sorted({e for e in edges if e}))


def _fill(shapes, bucket, real):
  """Counts batches, with the pairs that move on."""
  carried, batches = 0, []
  for number, (shape, pairs) in enumerate(zip(shapes, np.bincount(bucket, minlength=len(shapes)), strict=True)):
    full, carried = divmod(int(pairs) + carried, shape.rows)
    batches.append(full + (number == len(shapes) - 1 and carried > 0))
  size = sum(n * s.rows * (s.source + s.target) for n, s in zip(batches, shapes, strict=True))
  return Buckets(shapes, bucket, tuple(batches), 1 - real / size)
