"""Losses and AUC against scikit-learn."""

import numpy as np
import pytest
from sklearn import metrics

from dct_jax import measures


@pytest.mark.parametrize('ties', [False, True])
def test_measures_are_those_of_scikit_learn(ties):
  rng = np.random.default_rng(0)
  logits = rng.standard_normal(1000).astype(np.float32) * 3
  logits = np.round(logits) if ties else logits
  labels = (rng.random(1000) < 0.3).astype(np.float32)
  got = measures.of_clicks(logits, labels)
  p = 1 / (1 + np.exp(-logits.astype(np.float64)))
  assert got['loss'] == pytest.approx(metrics.log_loss(labels, p), rel=1e-9)
  assert got['auc'] == pytest.approx(metrics.roc_auc_score(labels, logits), rel=1e-12)
  assert got['accuracy'] == pytest.approx(metrics.accuracy_score(labels, logits > 0))
  base = metrics.log_loss(labels, np.full(1000, labels.mean()))
  assert got['ne'] == pytest.approx(got['loss'] / base)


def test_extreme_logits_and_a_single_class():
  got = measures.of_clicks(np.array([1e4, -1e4]), np.array([1.0, 0.0]))
  assert got['loss'] == 0 and got['auc'] == 1
  alone = measures.of_clicks(np.array([0.5, -1.0]), np.zeros(2))
  assert np.isnan(alone['auc']) and np.isnan(alone['ne']) and alone['loss'] > 0
