"""A synthetic click log in the shape of Criteo's, with a planted teacher. Nothing here is real data."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dct_jax.data.clicks.rows import Clicks, ClickSets

# Vocabularies of Criteo's Kaggle file, as published with the DLRM: only how they spread is used.
CRITEO_VOCABULARIES = (1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27,
                       14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572)
# Fitted to 15,897 rows of Criteo's Kaggle file: shares of missing values, quantiles of log(1 + max(x, 0)) where
# x is not missing, and minus the slope of log frequency over log rank among a field's 100 most frequent values,
# of those that occur at least 5 times.
MISSING_INTEGERS = (0.448, 0.0, 0.212, 0.221, 0.039, 0.24, 0.047, 0.001, 0.047, 0.448, 0.047, 0.768, 0.221)
MISSING_CATEGORIES = (0.0, 0.0, 0.035, 0.035, 0.0, 0.131, 0.0, 0.0, 0.0, 0.0, 0.0, 0.035, 0.0, 0.0, 0.0, 0.035,
                      0.0, 0.0, 0.448, 0.448, 0.035, 0.789, 0.0, 0.035, 0.448, 0.448)
EXPONENTS = (1.86, 0.99, 0.92, 0.9, 2.35, 1.77, 0.53, 2.13, 6.79, 0.78, 0.61, 0.93, 0.64, 2.57, 0.49, 0.89,
             1.08, 0.74, 1.04, 0.04, 0.9, 3.16, 2.08, 1.07, 2.0, 0.9)
LEVELS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
QUANTILES = (
    (0.0, 0.0, 0.0, 0.69, 1.39, 2.3, 3.72, 5.37),
    (0.0, 0.0, 0.0, 1.39, 3.61, 5.21, 7.77, 9.83),
    (0.0, 0.69, 1.1, 1.95, 2.94, 3.89, 5.64, 11.09),
    (0.0, 0.69, 1.1, 1.61, 2.4, 3.0, 3.78, 5.64),
    (0.0, 2.56, 5.94, 7.92, 9.24, 10.39, 12.69, 14.33),
    (0.0, 1.1, 2.2, 3.61, 4.77, 5.75, 7.34, 9.41),
    (0.0, 0.0, 0.69, 1.39, 2.48, 3.5, 5.3, 7.41),
    (0.0, 0.0, 1.1, 2.08, 3.04, 3.58, 3.89, 6.63),
    (0.0, 1.1, 2.4, 3.74, 4.77, 5.66, 6.98, 8.92),
    (0.0, 0.0, 0.0, 0.69, 0.69, 0.69, 1.39, 2.08),
    (0.0, 0.0, 0.0, 0.69, 1.39, 1.95, 3.22, 4.38),
    (0.0, 0.0, 0.0, 0.0, 0.69, 1.1, 2.9, 4.52),
    (0.0, 0.69, 1.1, 1.79, 2.56, 3.22, 4.22, 6.65))
CHUNK = 65_536  # rows made at a time, from a seed of their own; also those that the teacher is scaled on
# The teacher: fields whose ids interact (none of the largest, which few rows would teach), by dot products of
# embeddings, and the parts' standard deviations in the logit. Together they make about as good a best loss
# (0.45) and ranking (AUC 0.80) as models reach on the real log.
PAIRS = ((0, 1), (4, 13), (7, 22), (16, 17), (18, 24), (12, 21))
DIMENSION = 4
DENSE_SPREAD, EFFECT_SPREAD, PAIR_SPREAD = 0.6, 0.95, 0.75


class Teacher(NamedTuple):
  """What a click's log odds are made of."""

  weights: np.ndarray  # float32[13], of the dense features
  effects: tuple[np.ndarray, ...]  # for each field, a number for each id
  embeddings: tuple[np.ndarray, ...]  # for each field, a vector for each id
  intercept: float


def generate(rows: int, test_rows: int, seed: int, *, vocabulary: int = 1000,
             click_rate: float = 0.25) -> ClickSets:
  """Draws rows whose features are independent and distributed as in the real log, and clicks from a teacher.

  A click has probability sigmoid(z), where z is linear in the dense features, plus an effect of each category,
  plus dot products of categories' embeddings for a few pairs of fields, plus an intercept. No model can expect
  less than the mean entropy of these probabilities. More rows begin with the same rows.

  Args:
    rows: of the training set.
    test_rows: of the test set.
    seed: of teacher and rows.
    vocabulary: ids of the largest field; the others spread in proportion on a logarithmic scale, down to 3.
      Id 0 is a missing value, and frequencies fall with the id as a power law.
    click_rate: that the intercept is solved for.

  Returns:
    Sets whose `best_loss` is the mean entropy over the test rows.

  Raises:
    ValueError: for numbers that make no sense.
  """
  if rows < 1 or test_rows < 1 or vocabulary < 3 or not 0 < click_rate < 1:
    raise ValueError('there must be rows, at least 3 ids, and a click rate between 0 and 1, got '
                     f'{rows=}, {test_rows=}, {vocabulary=}, {click_rate=}')
  sizes = vocabularies(vocabulary)
  teacher = make_teacher(seed, sizes, click_rate)
  train, test = (_draw(teacher, sizes, n, [seed, k]) for k, n in [(2, rows), (3, test_rows)])
  z = logits(teacher, test)
  best = float(np.mean(np.logaddexp(0, z) - z * _sigmoid(z)))
  return ClickSets(train, test, sizes, best, 'synthetic')


def vocabularies(largest: int) -> tuple[int, ...]:
  """Sizes of the 26 fields: Criteo's, drawn together."""
  real = np.log(np.array(CRITEO_VOCABULARIES) / 3)
  return tuple(np.rint(3 * np.exp(real / real.max() * np.log(largest / 3))).astype(int).tolist())


def make_teacher(seed: int, sizes: tuple[int, ...], click_rate: float) -> Teacher:
  """A random teacher, the same for any number of rows.

  Args:
    seed: of the weights, and of rows that parts are scaled on and the intercept is solved on.
    sizes: of the fields' vocabularies.
    click_rate: over all rows.
  """
  rng = np.random.default_rng([seed, 0])
  rows = _features(np.random.default_rng([seed, 1]), sizes)
  weights = rng.normal(size=len(MISSING_INTEGERS)) / rows.dense.std(axis=0)
  effects = [rng.normal(size=size) for size in sizes]
  embeddings = [rng.normal(size=(size, DIMENSION)) for size in sizes]
  weights *= DENSE_SPREAD / np.std(rows.dense @ weights)
  scale = EFFECT_SPREAD / np.std(_effects(effects, rows.categories))
  pair_scale = np.sqrt(PAIR_SPREAD / np.std(_interactions(embeddings, rows.categories)))
  teacher = Teacher(weights.astype(np.float32), tuple((scale * e).astype(np.float32) for e in effects),
                    tuple((pair_scale * e).astype(np.float32) for e in embeddings), 0.0)
  return teacher._replace(intercept=_solve(logits(teacher, rows), click_rate))


def logits(teacher: Teacher, clicks: Clicks) -> np.ndarray:
  """Log odds of a click, float64[rows]."""
  return (teacher.intercept + (clicks.dense @ teacher.weights).astype(np.float64)
          + _effects(teacher.effects, clicks.categories) + _interactions(teacher.embeddings, clicks.categories))


def _effects(effects, categories):
  return sum(effect[ids] for effect, ids in zip(effects, categories.T, strict=True))


def _interactions(embeddings, categories):
  return sum(np.einsum('nd,nd->n', embeddings[f][categories[:, f]], embeddings[g][categories[:, g]])
             for f, g in PAIRS)


def _sigmoid(z):
  return 1 / (1 + np.exp(-z))


def _solve(z, rate):
  """What to add to log odds so that their mean probability is `rate`, by halving."""
  low, high = -50.0, 50.0
  for _ in range(50):
    middle = (low + high) / 2
    low, high = (middle, high) if _sigmoid(z + middle).mean() < rate else (low, middle)
  return middle


def _draw(teacher, sizes, rows, key):
  parts = []
  for number in range(-(-rows // CHUNK)):
    rng = np.random.default_rng([*key, number])
    features = _features(rng, sizes)
    clicked = rng.random(CHUNK) < _sigmoid(logits(teacher, features))
    parts.append(features._replace(label=clicked.astype(np.float32)))
  return Clicks(*(np.concatenate(columns)[:rows] for columns in zip(*parts, strict=True)))


def _features(rng, sizes):
  """A chunk of rows, without clicks."""
  dense = np.empty((CHUNK, len(MISSING_INTEGERS)), np.float32)
  for k, (missing, quantiles) in enumerate(zip(MISSING_INTEGERS, QUANTILES, strict=True)):
    at = missing + (1 - missing) * np.array(LEVELS)
    x = np.interp(rng.random(CHUNK), at, quantiles, left=0)
    dense[:, k] = np.log1p(np.rint(np.expm1(x)))  # the real ones are integers
  categories = np.empty((CHUNK, len(sizes)), np.int32)
  for k, (missing, exponent, size) in enumerate(zip(MISSING_CATEGORIES, EXPONENTS, sizes, strict=True)):
    frequencies = np.arange(1, size)**-exponent
    cumulative = np.cumsum([missing, *(1 - missing) * frequencies / frequencies.sum()])
    categories[:, k] = np.minimum(np.searchsorted(cumulative, rng.random(CHUNK), 'right'), size - 1)
  return Clicks(dense, categories, np.zeros(CHUNK, np.float32))
