"""Words to tell the right one from: the log-uniform sampler of sampled softmax."""

from __future__ import annotations

import functools

import numpy as np


def log_uniform(rng: np.random.Generator, count: int, vocabulary: int) -> np.ndarray:
  """Draws different words, int32[count].

  As if word k were drawn with probability log((k + 2) / (k + 1)) / log(vocabulary + 1), again and again, until there
  are enough different ones. This is close to how frequent words are in a language, if their ids are in order of
  frequency. (If every word arrives at a time of its own, exponentially distributed with that probability as its rate,
  the first to arrive are distributed in this way.)

  Args:
    rng: source of random numbers.
    count: how many.
    vocabulary: how many words there are.

  Raises:
    ValueError: if there are no words to draw, or not so many.
  """
  arrivals = rng.standard_exponential(vocabulary) / _checked(count, vocabulary)
  return np.argpartition(arrivals, count - 1)[:count].astype(np.int32)


def expected_counts(count: int, vocabulary: int) -> np.ndarray:
  """How often each word is among the words of `log_uniform` on average, float64[vocabulary], at most 1.

  This is 1 - exp(-t p) for a word of probability p, with the t that lets them add up to `count`. It takes t for
  fixed, which varies a little from draw to draw.

  Args:
    count: how many words are drawn.
    vocabulary: how many there are.

  Raises:
    ValueError: as `log_uniform`.

  Examples:
    >>> expected_counts(2, 3).round(3)
    array([0.831, 0.647, 0.522])
  """
  rates = _checked(count, vocabulary)
  if count == vocabulary:
    return np.ones(vocabulary)
  low, high = 0.0, 1e4 * vocabulary**2
  for _ in range(200):
    middle = (low + high) / 2
    low, high = (middle, high) if -np.expm1(-middle * rates).sum() < count else (low, middle)
  return -np.expm1(-middle * rates)


def _checked(count, vocabulary):
  """The probabilities of all words."""
  if not 1 <= count <= vocabulary:
    raise ValueError(f'there must be as many words to draw from, got {count=} and {vocabulary=}')
  return _probabilities(vocabulary)


@functools.cache
def _probabilities(vocabulary):
  ids = np.arange(vocabulary)
  return np.log((ids + 2) / (ids + 1)) / np.log(vocabulary + 1)
