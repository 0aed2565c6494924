"""What clicks are judged by: log loss, accuracy, AUC, normalized entropy. NumPy, exact."""

from __future__ import annotations

import numpy as np


def of_clicks(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
  """Loss, accuracy, AUC and normalized entropy of predictions."""
  loss = log_loss(logits, labels)
  return {'loss': loss, 'accuracy': float(np.mean((logits > 0) == (labels > 0.5))), 'auc': auc(logits, labels),
          'ne': float(loss / entropy(float(np.mean(labels))))}


def log_loss(logits: np.ndarray, labels: np.ndarray) -> float:
  """The mean of -log p(label)."""
  x = np.asarray(logits, np.float64)
  return float(np.mean(np.maximum(x, 0) - x * labels + np.log1p(np.exp(-np.abs(x)))))


def entropy(rate: float) -> float:
  """The log loss of always predicting the click rate; NaN when there is only one class."""
  return -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate)) if 0 < rate < 1 else float('nan')


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
  """The chance that a click scores above a non-click, ties counting half; NaN when there is only one class."""
  clicks = np.asarray(labels) > 0.5
  positive, negative = int(clicks.sum()), int((~clicks).sum())
  if not positive or not negative:
    return float('nan')
  _, where, counts = np.unique(np.asarray(scores), return_inverse=True, return_counts=True)
  last = np.cumsum(counts)
  ranks = last - (counts - 1) / 2  # of ties, the mean
  return float((ranks[where][clicks].sum() - positive * (positive + 1) / 2) / (positive * negative))
