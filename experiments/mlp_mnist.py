"""SparCML's MLP (two hidden layers of 4,096) on MNIST: dense, Top-k of every bucket, 4-bit QSGD.

    python experiments/mlp_mnist.py --data=mnist/                               # Table 3's methods
    python experiments/mlp_mnist.py --data=mnist/ --method=dense,topk1,topk4    # Figure 5's sweep
    python experiments/mlp_mnist.py --hidden=256                                # no files: a stand-in
"""

import pathlib

import jax
import numpy as np
import optax
from absl import app, logging

import dct_jax
from dct_jax import train
from dct_jax.data.images import mnist
from dct_jax.models.mlp import Mlp
from dct_jax.train import experiment
from shared import classifiers

experiment.define_flags(pathlib.Path(__file__).parents[1] / 'configs/mlp_mnist.py', {
    'data': (str, "Directory of MNIST's idx files; scikit-learn's digits, enlarged, without it."),
    'batch': (int, 'Number of images in a step, of all workers together.'),
    'hidden': (int, 'Width of both hidden layers.'),
    'learning_rate': (float, 'Learning rate at the start; it decays to 0 with a cosine.'),
    'k': (int, 'Number of entries that are kept of each bucket; 0 keeps all.'),
    'bucket': (int, 'Number of consecutive entries of which k are kept.'),
    'bits': (int, 'Bits of a value that travels dense: 2, 4, 8, or 32 for float32.'),
    'algorithm': (str, 'How messages are added up: all_gather, recursive_double, split_all_gather, dsar or union.'),
    'evaluated': (int, 'Number of rows of either set that losses and accuracies are of.'),
    'evaluate_every': (int, 'Number of steps between two evaluations.'),
})


def load(config):
  """MNIST, or what stands in for it."""
  if config.data:
    return mnist.load(config.data)
  logging.warning('no --data: this is not MNIST but a stand-in, scikit-learn\'s digits enlarged')
  return mnist.digits_stand_in()


def make_batches(data, config, mesh, step):
  """Every epoch in an order of its own, by the seed alone, so that a resumed run goes on in it."""
  each = len(data['x']) // config.batch
  while True:
    order = np.random.default_rng([config.seed, step // each]).permutation(len(data['x']))
    yield classifiers.place(data, order[step % each * config.batch:][:config.batch], mesh)
    step += 1


def make_mean(config):
  """No transport here: workers are devices, and the receipt's bytes those of an all-gather."""
  if config.k:
    chosen = dct_jax.bucket_top_k(config.k, config.bucket, dense_below=config.dense_below)
    collective = dct_jax.sparse_all_reduce(config.algorithm, bits=config.bits % 32)
    return dct_jax.compressed_mean(dct_jax.error_feedback(chosen), collective, 'data')
  if config.bits < 32:  # unbiased: no error feedback
    quantized = dct_jax.qsgd(config.bits, seed=config.seed, dense_below=config.dense_below)
    return dct_jax.compressed_mean(quantized, dct_jax.all_gather(), 'data')
  return dct_jax.dense_mean('data')


def train_one(config, workdir):
  """Trains with one method; everything worth keeping is in `workdir` afterwards."""
  mesh, data = dct_jax.make_mesh(config.workers), load(config)
  model = Mlp((config.hidden, config.hidden), 10)
  measure = classifiers.make_measure(model)
  rate = optax.cosine_decay_schedule(config.learning_rate, config.steps)
  tx = optax.chain(make_mean(config), optax.sgd(rate, momentum=config.momentum))

  params = model.init(jax.random.PRNGKey(config.seed), data['train']['x'][:1])
  params, state, specs = dct_jax.init(tx, params, mesh)
  checkpoints = train.Checkpoints(workdir / 'checkpoints', experiment.settings(config), keep=2)
  params, state, start = experiment.resume(checkpoints, params, state, specs, mesh)

  step = train.make_step(lambda p, b: measure(p, b)['loss'], tx, mesh, specs)
  batches = make_batches(data['train'], config, mesh, start)
  with train.MetricsWriter(workdir) as writer:
    train.run(step, params, state, batches, steps=config.steps, start=start, metrics=writer,
              checkpoints=checkpoints, checkpoint_every=500,
              evaluate=classifiers.make_evaluate(measure, data, mesh, config.evaluated),
              evaluate_every=config.evaluate_every)


if __name__ == '__main__':
  app.run(experiment.main(
      train_one, compare=('dense', 'q4', 'topk16', 'top16_q4'),
      columns=('train_loss', 'test_loss', 'test_accuracy')))
