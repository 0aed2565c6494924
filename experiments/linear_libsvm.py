"""Linear models on sparse rows, after SparCML's MPI-OPT: sparse gradients, exchanged without loss.

    python experiments/linear_libsvm.py --data=a9a.xz --test=a9a.t.xz --batch=100
    python experiments/linear_libsvm.py --dataset=urls --data=urls.tsv.xz --solver=scd --method=dense,all_gather
"""

import functools
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import app
from jax.sharding import PartitionSpec

import dct_jax
from dct_jax import train
from dct_jax.data import linear as linear_data
from dct_jax.data.linear import columns, entries
from dct_jax.models import coordinate_descent, linear, penalty
from dct_jax.netlab.calibrate import calibrate
from dct_jax.train import experiment, report

experiment.define_flags(pathlib.Path(__file__).parents[1] / 'configs/linear_libsvm.py', {
    'dataset': (str, 'Kind of the data: libsvm, urls, or synthetic, which is not real data.'),
    'data': (str, 'Path of the training set, or of the file of URLs.'),
    'test': (str, 'Path of the test set; a tenth of the rows unless given.'),
    'num_features': (int, 'Number of features; 0 takes what the data has by itself.'),
    'rows': (int, 'Number of rows of the synthetic data.'),
    'positive_below': (float, 'Label below which a class counts as positive, for several classes; 0 if there are two.'),
    'loss': (str, 'Loss to minimize: logistic, hinge or squared.'),
    'penalty': (str, 'Penalty of the weights: none, l1 or l2.'),
    'strength': (float, 'Factor of the penalty.'),
    'solver': (str, 'How the loss is minimized: sgd, or scd for stochastic coordinate descent.'),
    'learning_rate': (float, 'Learning rate of SGD; rows have length 1, which allows far larger ones than usual.'),
    'batch': (int, 'Number of rows in a step of each worker, with SGD.'),
    'picks': (int, 'Number of coordinates in a step of each worker, with SCD.'),
    'passes': (int, 'Number of passes over the data.'),
    'steps': (int, 'Number of steps of a pass, at most; 0 takes all.'),
})
LOADED = ('dataset', 'data', 'test', 'num_features', 'rows', 'positive_below', 'seed')
load = functools.cache(linear_data.load)


class Solver(NamedTuple):
  """How the loss is minimized."""

  state: Any  # at the start
  local: Callable  # (weights, state, batch) -> (stream of this worker, scalars)
  update: Callable  # (weights, state, batch, reduced) -> (weights, state)
  spec: PartitionSpec  # of batches
  batches: Callable  # (number of a pass, first step in it) -> batches
  steps: int  # of a pass


def place(windows, mesh):
  """Every batch on its devices: each worker keeps its share of the rows in memory, as in MPI-OPT."""
  mine = train.local_workers(mesh)
  made = (entries.batch(windows, mine, s) for s in range(windows.steps))
  return [train.shard_batch(linear.Batch(**batch), mesh) for batch in made]


def make_sgd(config, data, placed, distinct, mesh, kind):
  """Stochastic gradient descent; with a penalty, weights have a debt that is paid when they are read."""
  def local(weights, debt, batch):
    read = lambda i: penalty.read(kind, weights, debt, i)
    stream, loss = linear.batch_gradient(config.loss, read, batch, distinct)
    return stream, {'loss': loss, 'encoded_bytes': 4 + 8 * stream.count}

  def update(weights, debt, batch, reduced):
    return linear.sgd_update(weights, debt, reduced, config.learning_rate, kind, 1 / config.workers)

  def batches(number, first):
    order = np.random.default_rng([config.seed, number]).permutation(len(placed))
    return (placed[i] for i in order[first:])

  steps = min(config.steps or len(placed), len(placed))
  return Solver(penalty.no_debt(kind, data.num_features), local, update, PartitionSpec('data'), batches, steps)


def make_scd(config, data, placed, distinct, mesh, kind):
  """Stochastic coordinate descent: workers have all rows, and different coordinates."""
  table = columns.cut(data, config.workers, config.picks, config.seed, config.passes, config.steps)
  factor = coordinate_descent.damping(config.picks * config.workers, table.features, table.row_entries)

  def local(weights, state, batch):
    mine = jax.tree.map(lambda x: x[jax.lax.axis_index('data')], batch)
    stream = coordinate_descent.coordinate_steps(config.loss, kind, weights, state, mine, factor)
    loss = jnp.mean(linear.LOSSES[config.loss].value(state.margins, state.labels))
    return stream, {'loss': loss, 'encoded_bytes': 4 + 8 * stream.count}

  def batches(number, first):
    for step in range(number * table.steps + first, (number + 1) * table.steps):
      yield train.replicate(coordinate_descent.Picks(**columns.batch(table, step)), mesh)

  state = coordinate_descent.ScdState(np.zeros_like(data.labels), data.labels)
  return Solver(state, local, coordinate_descent.apply_steps, PartitionSpec(), batches, table.steps)


SOLVERS = {'sgd': make_sgd, 'scd': make_scd}


def evaluate(config, kind, measure, placed, weights, state):
  """Measures of both sets, names as in the log."""
  weights = penalty.settle(kind, weights, state) if config.solver == 'sgd' else weights
  out = {'nonzero': jnp.mean(weights != 0), 'penalty': penalty.value(kind, weights)}
  for name, batches in placed.items():
    sums = train.sum_batches(measure, weights, batches)
    out |= {f'{name}_{k}': v / sums['rows'] for k, v in sums.items() if k != 'rows'}
  return {f'eval/{k}': float(v) for k, v in out.items()}


def open_exchange(config, features, mesh):
  """The algorithm of the exchange over the network, or of XLA between devices; 'auto' measures the network first."""
  transport = dct_jax.connect(mesh) if jax.process_count() == config.workers > 1 else None
  costs = calibrate(transport, seconds=30) if transport and config.method == 'auto' else None
  return dct_jax.open_exchange(features, 'data', algorithm=config.method, transport=transport,
                               disjoint=config.solver == 'scd', costs=costs)


def train_one(config, workdir):
  """Trains with one algorithm of the exchange; the log has a line for each pass."""
  mesh, sets = dct_jax.make_mesh(config.workers), load(**{k: config[k] for k in LOADED})
  windows = {k: entries.cut(v, config.workers, config.batch) for k, v in sets.items()}
  placed = {k: place(w, mesh) for k, w in windows.items()}
  kind, data = penalty.make_penalty(config.penalty, config.strength), sets['train']
  solver = SOLVERS[config.solver](config, data, placed['train'], windows['train'].distinct, mesh, kind)
  weights, state = train.replicate((np.zeros(data.num_features, np.float32), solver.state), mesh)

  step = train.make_sectioned_step(solver.local, open_exchange(config, data.num_features, mesh), solver.update,
                                   mesh, batch_spec=solver.spec)
  measure = train.make_eval(functools.partial(linear.measure, config.loss), mesh)
  fixed = config.to_dict() | {'passes': 'any number'}  # a resumed run may go on for longer
  checkpoints = train.Checkpoints(workdir / 'checkpoints', fixed, keep=2)
  specs = jax.tree.map(lambda _: PartitionSpec(), state)
  weights, state, start = experiment.resume(checkpoints, weights, state, specs, mesh)

  with train.MetricsWriter(workdir) as writer:
    for number in range(start // solver.steps, config.passes):
      batches = solver.batches(number, start % solver.steps)
      weights, state, start, log = train.run(
          step, weights, state, batches, steps=(number + 1) * solver.steps, start=start, log_every=1,
          checkpoints=checkpoints)
      found = evaluate(config, kind, measure, placed, weights, state)
      writer.write(start, report.one_pass(log, solver.steps) | found)


if __name__ == '__main__':
  app.run(experiment.main(
      train_one, compare=('dense', 'all_gather', 'recursive_double', 'split_all_gather', 'dsar'),
      columns=('train_loss', 'train_accuracy', 'test_accuracy'), more=report.pass_table))
