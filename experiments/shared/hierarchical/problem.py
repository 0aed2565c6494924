"""A DLRM on click data, for plans: its tables are one matrix of parameters, a field's ids after another's."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dct_jax import partition
from dct_jax.data import clicks
from dct_jax.measures import entropy, of_clicks
from dct_jax.models.dlrm import Dlrm
from dct_jax.netlab import bits_per_second
from dct_jax.runtime import Fleet, Hardware


class Problem(NamedTuple):
  """What is trained.

  Attributes:
    loss, optimizer, params: for `partition.plan`.
    batch_of: number -> the other arguments of the loss.
    batches: how many there are in all passes.
    evaluate: parameters -> measures on the test set.
    best: normalized entropy that nothing can be expected to beat, if it is known.
  """

  loss: Callable
  optimizer: optax.GradientTransformation
  params: Any
  batch_of: Callable[[int], tuple]
  batches: int
  evaluate: Callable[[Any], dict[str, float]]
  best: float | None


def load(config) -> clicks.ClickSets:
  """The data."""
  made = {} if config.data else {k: config[k] for k in ('rows', 'test_rows', 'seed', 'vocabulary')}
  return clicks.load(config.data, config.cache, **made)


def make(config, sets: clicks.ClickSets) -> Problem:
  """The net, on these rows."""
  model, width = Dlrm(tuple(config.bottom), tuple(config.top)), config.bottom[-1]
  first = np.concatenate([[0], np.cumsum(sets.vocabularies)[:-1]]).astype(np.int32)

  def logits(params, dense, ids):
    return model.apply({'params': params['net']}, dense, params['tables']['rows'][ids])

  def loss(params, dense, ids, label):
    return jnp.mean(optax.sigmoid_binary_cross_entropy(logits(params, dense, ids), label))

  rng = np.random.default_rng([config.seed, 5])
  order = [rng.permutation(len(sets.train.label)) for _ in range(config.passes)]  # passes differ in their order
  each = len(sets.train.label) // config.batch

  def batch_of(number):
    rows = order[number // each][number % each * config.batch:][:config.batch]
    return sets.train.dense[rows], sets.train.categories[rows] + first, sets.train.label[rows]

  key = jax.random.key(config.seed)
  net = model.init(key, *(jnp.zeros(s) for s in ((2, sets.train.dense.shape[1]), (2, len(first), width))))['params']
  rows = 0.1 * jax.random.normal(jax.random.fold_in(key, 1), (int(sum(sets.vocabularies)), width))
  optimizer = optax.multi_transform({'net': optax.adagrad(config.learning_rate),
                                     'tables': optax.adagrad(config.row_learning_rate)},
                                    {'net': 'net', 'tables': 'tables'})
  return Problem(loss, optimizer, {'net': dict(net), 'tables': {'rows': rows}}, batch_of,
                 config.steps or each * config.passes, _evaluation(jax.jit(logits), sets, first), _best(sets))


def _evaluation(logits, sets, first):
  dense, ids, label = sets.test.dense, sets.test.categories + first, np.asarray(sets.test.label)
  return lambda params: of_clicks(np.asarray(logits(params, dense, ids)), label)


def _best(sets):
  return None if sets.best_loss is None else sets.best_loss / entropy(float(np.mean(sets.test.label)))


def machine(config) -> partition.Machine:
  """A core of a node, and its line."""
  usual = partition.Machine()
  slower = {k: getattr(usual, k) * config.slower for k in ('flop', 'byte', 'row')}
  coding = {k: {c: s * config.slower for c, s in getattr(usual, k).items()} for k in ('encode', 'decode')}
  return partition.Machine(**slower, **coding, call=usual.call, rate=bits_per_second(config.rate) / 8 / config.slower)


def plan(config, problem: Problem, **options) -> partition.Plan:
  """A group's plan; one table server stands for as many as it takes."""
  nodes = partition.Nodes(group=config.servers, sparse=1, trainers=config.trainers)
  codec = partition.Codecs(config.forward, config.backward)
  return partition.plan(problem.loss, problem.optimizer, problem.params, *problem.batch_of(0), nodes=nodes,
                        machine=machine(config), codec=codec, **options)


def fleet(config) -> Fleet:
  """Groups."""
  return Fleet(config.groups, config.trainers, config.nets, method=config.sync, alpha=config.alpha, gap=config.gap)


def hardware(config) -> Hardware:
  """Nodes. The paper has enough table servers, too; dense servers shall not be the bottleneck either."""
  return Hardware(config.cores, jitter=config.jitter, sparse=1000, dense=1000)
