"""Texts as ids of words."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class WordSets(NamedTuple):
  """Three texts in one vocabulary, whose ids are in order of frequency: 0 is the most frequent word."""

  train: np.ndarray  # int32[words]
  valid: np.ndarray
  test: np.ndarray
  vocabulary: tuple[str, ...]
  best_perplexity: float | None  # which no model can be expected to beat, where it is known
  name: str
