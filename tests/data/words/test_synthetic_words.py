"""The synthetic text: its entropy is that of its chain, and its words are as frequent as they should be."""

import numpy as np
import pytest

from dct_jax.data import words
from dct_jax.data.words import synthetic

CHAIN = synthetic.make_chain(200, 3)


def matrix(chain):
  """Transition probabilities, written out."""
  weights = [1 / k for k in range(1, synthetic.FOLLOWERS + 1)]
  out = np.zeros((len(chain.base), len(chain.base)))
  for i, followers in enumerate(chain.followers):
    for j, base in enumerate(chain.base):
      out[i, j] = (1 - synthetic.FAITHFUL) * base
    for weight, j in zip(weights, followers, strict=True):
      out[i, j] += synthetic.FAITHFUL * weight / sum(weights)
  return out


def test_the_entropy_is_that_of_the_chain():
  table = matrix(CHAIN)
  np.testing.assert_allclose(table.sum(1), 1)
  np.testing.assert_allclose(CHAIN.stationary @ table, CHAIN.stationary, atol=1e-15)  # it is stationary
  entropy = -sum(CHAIN.stationary[i] * table[i, j] * np.log(table[i, j])
                 for i in range(len(table)) for j in range(len(table)))
  assert synthetic.entropy_rate(CHAIN) == pytest.approx(entropy, rel=1e-12)


def test_a_text_is_of_its_chain():
  text = synthetic.draw(CHAIN, 200_000, [1])
  table = matrix(CHAIN)
  nll = -np.log(table[text[:-1], text[1:]])
  error = nll.std() / len(nll)**0.5
  assert abs(nll.mean() - synthetic.entropy_rate(CHAIN)) < 6 * error  # neighbours are not independent
  pairs = np.zeros_like(table)
  np.add.at(pairs, (text[:-1], text[1:]), 1)
  often = pairs.sum(1) > 5000
  assert np.abs(pairs[often] / pairs[often].sum(1, keepdims=True) - table[often]).max() < 0.03


def test_words_are_in_order_of_frequency_and_zipf_like():
  chain = synthetic.make_chain(2000, 0)
  assert np.all(np.diff(chain.stationary) <= 0) and chain.stationary.sum() == pytest.approx(1)
  ranks = np.arange(1, 2001)
  slope = lambda a, b: np.polyfit(np.log(ranks[a:b]), np.log(chain.stationary[a:b]), 1)[0]
  assert -1.2 < slope(0, 200) < -0.9 and -2.5 < slope(200, 2000) < -1.2  # rare words are rarer still, as in real text


def test_sets_differ_and_say_what_is_best():
  sets = words.load('', words=5000, valid_words=500, test_words=600, vocabulary=200, seed=3)
  assert [len(text) for text in sets[:3]] == [5000, 500, 600] and sets.train.dtype == np.int32
  assert sets.best_perplexity == pytest.approx(np.exp(synthetic.entropy_rate(CHAIN)))
  assert not np.array_equal(sets.train[:500], sets.valid)
  assert np.array_equal(sets.train, words.load('synthetic', words=5000, vocabulary=200, seed=3).train)
  assert not np.array_equal(sets.train, words.load('', words=5000, vocabulary=200, seed=4).train)
  with pytest.raises(ValueError, match='two words or more, got words=1'):
    words.load('', words=1)
