"""What a language model has learnt: perplexities by the softmax over all words."""

import numpy as np

from dct_jax import measures
from dct_jax.data import words

WINDOWS = 8  # of a worker, that are predicted at once: the logits of all words are what takes memory


class Evaluation:
  """Evaluates on the way and at the end.

  Every window begins from a zero state, as in training: a model that read on from the window before would do better.

  Args:
    config: of the run.
    setup: from `shared.lstm.setup.make_setup`.
    sets: from `data.words.load`.
  """

  def __init__(self, config, setup, sets):
    if config.evaluated < 1:
      raise ValueError(f'--evaluated must be at least 1, got {config.evaluated}')
    self._config, self._setup, self._sets = config, setup, sets

  def on_the_way(self, params, state):
    """Losses and perplexities of the first words of the training and the validation set."""
    most = self._config.evaluated
    train = self._measure(params, state, self._sets.train, most)
    valid = self._measure(params, state, self._sets.valid, most)
    return {'train_loss': train['nll']} | {f'valid_{k}': v for k, v in valid.items()}

  def at_the_end(self, params, state):
    """Those of the whole test set; names as in the log."""
    return {f'eval/test_{k}': v for k, v in self._measure(params, state, self._sets.test, None).items()}

  def _measure(self, params, state, text, most):
    nlls, weights = [], []
    for batch in words.in_order(text, most, rows=WINDOWS * self._config.workers, length=self._config.length):
      weights.append(batch.pop('weight'))
      nlls.append(self._setup.predict(params, state, batch))
    return measures.of_words(np.concatenate(nlls), np.concatenate(weights))
