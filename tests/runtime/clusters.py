"""Small programs that clusters train: what tests on threads and on Ray share. Processes of Ray get copies of these."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dct_jax import partition
from dct_jax.partition.ready import Net
from dct_jax.runtime.cluster import Job

RATE = 0.01


def make_loss():
  def loss(params, x, y):
    return jnp.mean((jnp.tanh(x @ params['a']['w']) @ params['b']['w'] - y) ** 2)

  return loss


def params():
  rng = np.random.default_rng(0)
  return {'a': {'w': jnp.asarray(rng.normal(size=(6, 8)), jnp.float32)},
          'b': {'w': jnp.asarray(rng.normal(size=(8, 2)), jnp.float32)}}


def batch(number):
  rng = np.random.default_rng([1, number])
  x = rng.normal(size=(16, 6)).astype(np.float32)
  return x, x[:, :2].copy()


def make_net():
  return Net(make_loss(), optax.adam(RATE), params(), batch(0))


def make_batches():
  return batch


def make_table_net():
  """A table of rows that batches look up, and a layer behind it."""
  def loss(params, ids, y):
    return jnp.mean((params['table']['rows'][ids].sum(1) @ params['top']['w'] - y) ** 2)

  rng = np.random.default_rng(0)
  start = {'table': {'rows': jnp.asarray(rng.normal(size=(40, 4)), jnp.float32)},
           'top': {'w': jnp.asarray(rng.normal(size=(4, 2)), jnp.float32)}}
  return Net(loss, optax.adagrad(0.1), start, table_batch(0))


def table_batch(number):
  rng = np.random.default_rng([2, number])
  ids = rng.integers(0, 40, (8, 3)).astype(np.int32)
  return ids, (ids.sum(1, keepdims=True) % np.array([3, 5])).astype(np.float32)


def make_table_batches():
  return table_batch


JOB = Job(make_net, make_batches)
TABLES = Job(make_table_net, make_table_batches)


@functools.cache
def planned(group=2, trainers=1, codec=None):
  rules = [partition.named('a', 'group0'), partition.named('b', f'group{group - 1}')] if group else []
  net = make_net()
  return partition.plan(net.loss, net.optimizer, net.params, *net.batch, rule=rules, codec=codec,
                        nodes=partition.Nodes(group=group, trainers=trainers))


@functools.cache
def planned_tables(trainers=1):
  net = make_table_net()
  return partition.plan(net.loss, net.optimizer, net.params, *net.batch,
                        nodes=partition.Nodes(group=1, sparse=1, trainers=trainers))


def simulated(plan, job, batches):
  """Losses and parameters of the same plan in one process."""
  net, batch_of = job.net(), job.batch_of()
  held, state, losses = net.params, net.optimizer.init(net.params), []
  for i in range(batches):
    held, state, loss = plan.simulate(held, state, *batch_of(i))
    losses.append(float(loss))
  return losses, held


def same_bits(a, b):
  return all(np.asarray(x).tobytes() == np.asarray(y).tobytes()
             for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
