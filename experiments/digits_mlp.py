"""An MLP on scikit-learn's digits, dense and with DCT: the same loss for a fraction of the bytes.

    python experiments/digits_mlp.py                      # 8 devices of one process, < 1 minute
    python experiments/digits_mlp.py --launch=processes   # 8 processes
"""

import pathlib

import flax.linen as nn
import jax
import numpy as np
import optax
from absl import app
from sklearn import datasets

import dct_jax
from dct_jax import train
from dct_jax.train import experiment
from shared import classifiers

experiment.define_flags(pathlib.Path(__file__).parents[1] / 'configs/digits_mlp.py', {
    'sparsity': (float, 'Share of the gradient that stays behind.'),
    'lifespan': (int, 'Number of steps for which a threshold is kept.'),
    'value_codec': (str, 'Type of the values that are sent: float32, float16 or bfloat16.'),
})


def load(workers):
  """Train and test set, shuffled once, each cut to a multiple of the workers."""
  x, y = datasets.load_digits(return_X_y=True)
  order = np.random.default_rng(0).permutation(len(x))
  sets = {'train': order[:1440], 'test': order[1440:]}
  cut = {k: rows[:len(rows) // workers * workers] for k, rows in sets.items()}
  return {k: {'x': (x[i] / 16).astype(np.float32), 'y': y[i].astype(np.int32)}
          for k, i in cut.items()}


def make_batches(data, config, mesh, step):
  """The order depends on the seed and the step alone, so that a resumed run goes on in it."""
  while True:
    rng = np.random.default_rng([config.seed, step])
    rows = rng.integers(0, len(data['x']), config.batch)
    yield train.share_batch({k: v[rows] for k, v in data.items()}, mesh)
    step += 1


def make_optimizer(config):
  """SGD with momentum, of the mean of gradients: dense or by DCT-DP."""
  if config.method == 'dense':
    mean = dct_jax.dense_mean('data')
  else:
    mean = dct_jax.dct_dp(config.sparsity, config.lifespan, 'data', early_refresh=config.early_refresh,
                          tracking=config.tracking, value_codec=config.value_codec)
  rate = optax.cosine_decay_schedule(config.learning_rate, config.steps)
  return optax.chain(mean, optax.add_decayed_weights(config.weight_decay),
                     optax.sgd(rate, momentum=config.momentum))


def train_one(config, workdir):
  """Trains with one method; everything worth keeping is in `workdir` afterwards."""
  mesh, data, tx = dct_jax.make_mesh(config.workers), load(config.workers), make_optimizer(config)
  layers = [layer for width in config.hidden for layer in (nn.Dense(width), nn.relu)]
  model = nn.Sequential([*layers, nn.Dense(10)])
  measure = classifiers.make_measure(model)

  params = model.init(jax.random.PRNGKey(config.seed), data['train']['x'][:1])
  params, state, specs = dct_jax.init(tx, params, mesh)
  checkpoints = train.Checkpoints(workdir / 'checkpoints', experiment.settings(config, free=('workers',)))
  params, state, start = experiment.resume(checkpoints, params, state, specs, mesh)

  step = train.make_step(lambda p, b: measure(p, b)['loss'], tx, mesh, specs)
  batches = make_batches(data['train'], config, mesh, start)
  with train.MetricsWriter(workdir) as writer:
    train.run(step, params, state, batches, steps=config.steps, start=start, metrics=writer,
              checkpoints=checkpoints, checkpoint_every=500,
              evaluate=classifiers.make_evaluate(measure, data, mesh), evaluate_every=25)


if __name__ == '__main__':
  app.run(experiment.main(
      train_one, compare=('dense', 'dct', 'dct_tracked'),
      columns=('train_loss', 'test_loss', 'test_accuracy')))
