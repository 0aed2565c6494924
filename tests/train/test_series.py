"""Series of runs: one that is there is not repeated, one that was stopped is."""

import types

from dct_jax import train
from dct_jax.train import experiment


def test_a_run_is_made_once_and_again_if_it_was_stopped(tmp_path):
  made = []

  def train_one(config, directory):
    made.append(config.steps)
    with train.MetricsWriter(directory) as writer:
      for step in range(1, config.steps + 1):
        writer.write(step, {'loss': 1 / step})

  once = lambda steps: experiment.once(train_one, types.SimpleNamespace(steps=steps), tmp_path / 'run')
  assert [line['step'] for line in once(2)] == [1, 2]
  assert float((tmp_path / 'run/seconds').read_text()) >= 0
  assert once(2)[-1] == {'step': 2, 'loss': 0.5}
  assert made == [2]
  assert len(once(3)) == 3  # as far as the log tells, the first run was stopped after step 2
  assert made == [2, 3]
