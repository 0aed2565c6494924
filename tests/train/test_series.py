"""Series of runs: one that is there is not repeated, one that was stopped is, and settings are never mixed."""

import ml_collections
import pytest

from dct_jax import train
from dct_jax.train import experiment


def make_series(directory):
  """(settings) -> the log of a run; and the last steps of those that were made. The first one is stopped."""
  made = []

  def train_one(config, directory):
    last = config.steps if made else config.steps - 1
    made.append(last)
    with train.MetricsWriter(directory) as writer:
      for step in range(1, last + 1):
        writer.write(step, {'loss': 1 / step})

  return lambda **settings: experiment.once(train_one, ml_collections.ConfigDict(settings), directory), made


def test_a_run_is_made_once_and_again_if_it_was_stopped(tmp_path):
  once, made = make_series(tmp_path / 'run')
  assert [line['step'] for line in once(steps=3, rate=0.1)] == [1, 2]
  seconds = float((tmp_path / 'run/seconds').read_text())
  assert len(once(steps=3, rate=0.1)) == 3
  assert float((tmp_path / 'run/seconds').read_text()) >= seconds >= 0
  assert once(steps=3, rate=0.1)[-1] == {'step': 3, 'loss': 1 / 3}
  assert made == [2, 3]


def test_a_run_of_other_settings_is_refused(tmp_path):
  once, made = make_series(tmp_path / 'run')
  once(steps=2, rate=0.1)
  with pytest.raises(ValueError, match=r'take another --workdir: rate was 0.1, got 0.2$'):
    once(steps=2, rate=0.2)
  assert made == [1]
