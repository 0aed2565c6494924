"""What language models are judged by."""

import numpy as np
import pytest

from dct_jax import measures


def test_words_without_weight_do_not_count():
  nlls = np.array([[1.0, 3.0], [np.nan, np.inf]], np.float32)
  measured = measures.of_words(nlls, np.array([[1, 1], [0, 0]], np.float32))
  assert measured == {'nll': 2.0, 'perplexity': pytest.approx(np.exp(2))}
  assert np.isnan(measures.of_words(nlls, np.ones((2, 2)))['nll'])


def test_what_cannot_be_measured_is_refused():
  with pytest.raises(ValueError, match='every word has a weight'):
    measures.of_words(np.ones(3), np.ones(2))
  with pytest.raises(ValueError, match='some count'):
    measures.of_words(np.ones(3), np.zeros(3))
