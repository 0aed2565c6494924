"""Synthetic rows with many features and a planted linear teacher. Nothing here is real data."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dct_jax.data.linear.csr import Csr, concatenate

CHUNK = 4096  # rows made at a time, from a seed of their own


class SyntheticLinear(NamedTuple):
  """What the rows are drawn from. Feature frequencies fall as (rank + offset) ** -exponent.

  With the defaults, 1,000 rows have about 104,000 entries in some 40,000 distinct features: a gradient of
  0.25% density, with a head that all workers share and a tail that they do not.
  """

  num_features: int = 16_000_000
  row_entries: int = 110  # drawn with repetition; a row has about 5% fewer
  exponent: float = 1.1
  offset: float = 10.0
  teacher_features: int = 2_000  # of the most frequent ones, those with a weight
  noise: float = 0.05  # share of the labels that are flipped: the best possible accuracy is 1 - noise
  seed: int = 0


def generate(spec: SyntheticLinear, rows: int, first_chunk: int = 0) -> Csr:
  """Draws rows with values 1 and labels -1 and +1.

  A row's label is the sign of the teacher's margin, flipped with probability `noise`. So the teacher has
  accuracy 1 - noise, and nothing that sees the features alone can expect more. Rows are made by chunks of
  4,096, each from (seed, number of the chunk); no array is larger than a chunk's entries, the teacher, or the
  rows that are returned.

  Args:
    spec: the distribution.
    rows: how many.
    first_chunk: where in the endless sequence of chunks to begin; take disjoint ranges for training and
      test sets (`chunks(rows)` says how many one needs).

  Raises:
    ValueError: for a distribution that makes no sense.
  """
  _check(spec)
  teacher = np.random.default_rng([spec.seed, 1]).normal(size=spec.teacher_features).astype(np.float32)
  parts = [_chunk(spec, teacher, first_chunk + i, min(CHUNK, rows - i * CHUNK)) for i in range(chunks(rows))]
  return concatenate(parts)._replace(num_features=spec.num_features)


def chunks(rows: int) -> int:
  """How many chunks so many rows take."""
  return -(-rows // CHUNK)


def _check(spec):
  if not 1 <= spec.teacher_features <= spec.num_features < 2**32 - 1:
    raise ValueError(f'teacher_features must be between 1 and num_features, got {spec=}')
  if spec.row_entries < 1 or spec.offset <= 0 or spec.exponent <= 0 or spec.exponent == 1:
    raise ValueError(f'row_entries, offset and exponent must be positive, and exponent not 1, got {spec=}')
  if not 0 <= spec.noise <= 0.5:
    raise ValueError(f'noise must be between 0 and 1/2, got {spec.noise=}')


def _chunk(spec, teacher, number, rows):
  rng = np.random.default_rng([spec.seed, 2, number])
  ranks = _ranks(spec, rng.random((CHUNK, spec.row_entries)))[:rows]
  keys = np.unique(np.arange(rows, dtype=np.uint64)[:, None] << np.uint64(32) | _spread(spec, ranks))
  indptr = np.searchsorted(keys, np.arange(rows + 1, dtype=np.uint64) << np.uint64(32))
  ranks.sort(axis=1)
  once = np.concatenate([np.ones((rows, 1), bool), ranks[:, 1:] != ranks[:, :-1]], axis=1)
  weights = np.where(once & (ranks < teacher.size), teacher[np.minimum(ranks, teacher.size - 1)], 0)
  labels = np.where(weights.sum(axis=1) > 0, 1, -1) * np.where(rng.random(CHUNK)[:rows] < spec.noise, -1, 1)
  return Csr(indptr.astype(np.int64), keys.astype(np.uint32), np.ones(keys.size, np.float32),
             labels.astype(np.float32), spec.num_features)


def _ranks(spec, uniform):
  """Uniform numbers -> ranks, by the inverse of the continuous power law's distribution function."""
  power = 1 - spec.exponent
  low, high = spec.offset**power, (spec.num_features + spec.offset)**power
  ranks = (low + uniform * (high - low))**(1 / power) - spec.offset
  return np.clip(ranks, 0, spec.num_features - 1).astype(np.int64)


def _spread(spec, ranks):
  """Ranks -> features, one to one: frequent features lie all over, as they do in hashed data."""
  size = spec.num_features
  factor = int(0.6180339887 * size) | 1
  while math.gcd(factor, size) != 1:
    factor += 2
  return ranks.astype(np.uint64) * np.uint64(factor) % np.uint64(size)
