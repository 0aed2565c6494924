"""A synthetic text: a Markov chain of words whose entropy is known. Nothing here is real text."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dct_jax.data.words.texts import WordSets

FOLLOWERS = 8  # words that often follow a word
FAITHFUL = 0.9  # how often one of them does; else any word of the vocabulary, by its frequency alone


class Chain(NamedTuple):
  """What comes after a word depends on that word alone.

  With probability `FAITHFUL` it is one of its followers, the k-th with weight 1 / k; otherwise any word, by `base`.
  """

  base: np.ndarray  # float64[words]
  followers: np.ndarray  # int32[words, FOLLOWERS]
  stationary: np.ndarray  # float64[words]: how frequent each word is in a long text, falling

  @property
  def weights(self) -> np.ndarray:
    """float64[FOLLOWERS], of a word's followers."""
    return 1 / np.arange(1, FOLLOWERS + 1) / np.sum(1 / np.arange(1, FOLLOWERS + 1))


def make_chain(words: int, seed: int) -> Chain:
  """A random chain.

  Followers and other words are drawn with frequencies that fall as 1 / rank. Those of the text then do so for the
  first hundreds of words, and faster behind them.
  """
  rng = np.random.default_rng([seed, 0])
  base = 1 / np.arange(1, words + 1)
  base /= base.sum()
  followers = rng.choice(words, (words, FOLLOWERS), p=base).astype(np.int32)
  chain = Chain(base, followers, base)
  stationary = base
  for _ in range(400):  # each step leaves FAITHFUL of the error, 0.9**400 is 5e-19
    stationary = _after(chain, stationary)
  order = np.argsort(-stationary, kind='stable')  # ids of words in order of frequency
  rank = np.argsort(order).astype(np.int32)
  return Chain(base[order], rank[followers[order]], stationary[order])


def _after(chain, before):
  """The distribution of the word after one that has distribution `before`."""
  mass = FAITHFUL * before[:, None] * chain.weights
  return (1 - FAITHFUL) * chain.base + np.bincount(chain.followers.reshape(-1), mass.reshape(-1), len(before))


def transitions(chain: Chain, word: int) -> np.ndarray:
  """float64[words]: how likely each word is after this one."""
  once = np.zeros(len(chain.base))
  once[word] = 1
  return _after(chain, once)


def entropy_rate(chain: Chain) -> float:
  """Nats a word of a long text, exactly: the mean entropy of what follows, over the frequencies of words.

  The exponential of it is the perplexity of the best model.
  """
  entropies = [-np.sum(p * np.log(p)) for p in (transitions(chain, i) for i in range(len(chain.base)))]
  return float(chain.stationary @ entropies)


def draw(chain: Chain, words: int, key: list[int]) -> np.ndarray:
  """A text of the chain, int32[words].

  Where a word does not depend on the one before, a piece begins that depends on nothing before it. The k-th words of
  all pieces are drawn at once.
  """
  rng = np.random.default_rng(key)
  fresh = rng.random(words) >= FAITHFUL
  fresh[0] = True
  begins = np.flatnonzero(fresh)
  text = np.empty(words, np.int32)
  text[begins] = rng.choice(len(chain.base), len(begins), p=chain.base)
  chosen = rng.choice(FOLLOWERS, words, p=chain.weights)
  at = begins + 1
  while len(at := at[(at < words) & ~np.take(fresh, at, mode='clip')]):
    text[at] = chain.followers[text[at - 1], chosen[at]]
    at = at + 1
  return text


def generate(words: int = 400_000, valid_words: int = 40_000, test_words: int = 40_000, *, vocabulary: int = 2000,
             seed: int = 0) -> WordSets:
  """Draws a training, a validation and a test text of one chain.

  Args:
    words: of the training text.
    valid_words: of the validation text.
    test_words: of the test text.
    vocabulary: how many different words there are.
    seed: of chain and texts.

  Returns:
    Sets whose `best_perplexity` is the exponential of the chain's entropy rate.

  Raises:
    ValueError: if a text has less than two words, or the vocabulary does.
  """
  if min(words, valid_words, test_words, vocabulary) < 2:
    raise ValueError('texts and vocabulary need two words or more, got '
                     f'{words=}, {valid_words=}, {test_words=}, {vocabulary=}')
  chain = make_chain(vocabulary, seed)
  train, valid, test = (draw(chain, n, [seed, k]) for k, n in [(1, words), (2, valid_words), (3, test_words)])
  return WordSets(train, valid, test, tuple(f'w{i}' for i in range(vocabulary)),
                  float(np.exp(entropy_rate(chain))), 'synthetic')
