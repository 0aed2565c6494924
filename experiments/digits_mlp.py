"""An MLP on scikit-learn's digits, dense and with DCT: the same loss for a fraction of the bytes.

    python experiments/digits_mlp.py                      # 8 devices of one process, about 40 seconds
    python experiments/digits_mlp.py --launch=processes   # 8 processes
"""

import os
import pathlib
import runpy
import sys
import time

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags
from sklearn import datasets

import dct_jax
from dct_jax import train
from dct_jax.train import launch, report

HERE = pathlib.Path(__file__).resolve().parent
OVERRIDES = ('sparsity', 'lifespan', 'value_codec', 'workers', 'steps', 'seed')
train.define_flags()
flags.DEFINE_string('config', str(HERE.parent / 'configs/digits_mlp.py'), 'Configuration file.')
flags.DEFINE_string('method', 'compare', 'A variant of the configuration, or compare: dense, dct.')
flags.DEFINE_enum('launch', 'devices', ['devices', 'processes'], 'What a worker is.')
flags.DEFINE_float('sparsity', None, 'Share of the gradient that stays behind.')
flags.DEFINE_integer('lifespan', None, 'Steps for which a threshold is kept.')
flags.DEFINE_string('value_codec', None, 'float32, float16 or bfloat16.')
flags.DEFINE_integer('workers', None, 'Number of workers.')
flags.DEFINE_integer('steps', None, 'Number of steps.')
flags.DEFINE_integer('seed', None, 'Of the parameters and the order of the data.')
flags.DEFINE_string('workdir', None, 'For logs, checkpoints and the figure; new unless given.')
flags.DEFINE_bool('resume', False, 'Go on from the checkpoints in --workdir.')
FLAGS = flags.FLAGS


def get_config(method):
  config = runpy.run_path(FLAGS.config)['get_config'](method)
  config.update({k: FLAGS[k].value for k in OVERRIDES if FLAGS[k].value is not None})
  return config


class Mlp(nn.Module):
  hidden: tuple[int, ...]

  @nn.compact
  def __call__(self, x):
    for width in self.hidden:
      x = nn.relu(nn.Dense(width)(x))
    return nn.Dense(10)(x)


def load(workers):
  """Train and test set, shuffled once, each cut to a multiple of the workers."""
  x, y = datasets.load_digits(return_X_y=True)
  order = np.random.default_rng(0).permutation(len(x))
  x, y = (x[order] / 16).astype(np.float32), y[order].astype(np.int32)
  cut = lambda a, b: {k: v[a:a + (b - a) // workers * workers] for k, v in [('x', x), ('y', y)]}
  return cut(0, 1440), cut(1440, len(x))


def make_batches(data, config, mesh, start):
  """The order depends on the seed and the step alone, so that a resumed run goes on in it."""
  step = start
  mine = slice(jax.process_index(), None, jax.process_count())
  while True:
    rows = np.random.default_rng([config.seed, step]).integers(0, len(data['x']), config.batch)
    yield train.shard_batch({k: v[rows[mine]] for k, v in data.items()}, mesh)
    step += 1


def make_optimizer(config):
  mean = dct_jax.dense_mean('data') if config.method == 'dense' else dct_jax.dct_dp(
      config.sparsity, config.lifespan, 'data', early_refresh=config.early_refresh,
      value_codec=config.value_codec)
  rate = optax.cosine_decay_schedule(config.learning_rate, config.steps)
  return optax.chain(mean, optax.add_decayed_weights(config.weight_decay),
                     optax.sgd(rate, momentum=config.momentum))


def train_one(config, workdir):
  """Trains with one method; everything worth keeping is in `workdir` afterwards."""
  model, mesh = Mlp(config.hidden), dct_jax.make_mesh(config.workers)
  train_set, test_set = load(config.workers)

  def measure(params, batch):
    logits = model.apply(params, batch['x'])
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch['y']).mean()
    return {'loss': loss, 'accuracy': jnp.mean(logits.argmax(-1) == batch['y'])}

  tx, evaluate = make_optimizer(config), train.make_eval(measure, mesh)
  mine = slice(jax.process_index(), None, jax.process_count())
  sets = {name: train.shard_batch({k: v[mine] for k, v in data.items()}, mesh)
          for name, data in [('train', train_set), ('test', test_set)]}
  params = model.init(jax.random.PRNGKey(config.seed), train_set['x'][:1])
  params, opt_state, specs = dct_jax.init(tx, params, mesh)
  checkpoints = train.Checkpoints(workdir / 'checkpoints', config.to_dict())
  start = 0
  if FLAGS.resume:
    params, opt_state, start = checkpoints.restore(params, opt_state, specs, mesh)
  step = train.make_step(lambda p, b: measure(p, b)['loss'], tx, mesh, specs)
  with train.MetricsWriter(workdir) as writer:
    train.run(
        step, params, opt_state, make_batches(train_set, config, mesh, start), start=start,
        steps=config.steps, metrics=writer, checkpoints=checkpoints, checkpoint_every=500,
        evaluate=lambda p: {f'{n}_{k}': v for n, s in sets.items() for k, v in evaluate(p, s).items()},
        evaluate_every=25)


def main(argv):
  if argv[1:]:
    raise app.UsageError(f'unknown arguments {argv[1:]}')
  names = ('dense', 'dct') if FLAGS.method == 'compare' else (FLAGS.method,)
  configs = {name: get_config(name) for name in names}
  workers = configs[names[0]].workers
  workdir = pathlib.Path(FLAGS.workdir or f'runs/digits_mlp/{time.strftime("%Y%m%d-%H%M%S")}')
  if FLAGS.launch == 'processes':
    again = [sys.executable, *sys.argv, '--launch=devices', f'--workdir={workdir}']
    return launch.launch(again, workers)
  train.start(**train.flag_values() | ({} if several() else {'local_devices': workers}))
  for name, config in configs.items():
    train_one(config, workdir / name)
  if jax.process_index() == 0:
    runs = {name: train.read_metrics(workdir / name) for name in names}
    print(report.table(runs, ('train_loss', 'test_loss', 'test_accuracy')))
    report.plot(runs, workdir / 'loss.png')
    print(f'figure: {workdir / "loss.png"}')


def several():
  """Whether other processes take part."""
  return FLAGS.coordinator is not None or 'DCT_JAX_COORDINATOR' in os.environ


if __name__ == '__main__':
  app.run(main)
