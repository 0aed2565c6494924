"""What language models are judged by."""

from __future__ import annotations

import numpy as np

from dct_jax.measures.translation import perplexity


def of_words(nlls: np.ndarray, weight: np.ndarray) -> dict[str, float]:
  """Mean of -log p(word), in nats, and the perplexity that belongs to it.

  Args:
    nlls: of each word.
    weight: how much each word counts, of the same shape: 1, or 0 for what is no word.

  Raises:
    ValueError: if shapes differ, or no word counts.

  Examples:
    >>> measured = of_words(np.log([2, 8, 99]), np.array([1, 1, 0]))
    >>> {k: round(v, 4) for k, v in measured.items()}
    {'nll': 1.3863, 'perplexity': 4.0}
  """
  if nlls.shape != weight.shape or not np.sum(weight):
    raise ValueError('every word has a weight, and some count, got '
                     f'{nlls.shape=}, {weight.shape=}, sum={np.sum(weight)}')
  nll = float(np.sum(np.where(weight, nlls, 0) * weight, dtype=np.float64) / np.sum(weight, dtype=np.float64))
  return {'nll': nll, 'perplexity': perplexity(nll)}
