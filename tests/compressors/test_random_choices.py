"""Random choices differ by purpose, group, layer, worker and step (law 9), and are fair."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from marks import slow

import dct_jax
from dct_jax.compressors import drain
from dct_jax.contract import Room
from dct_jax.kernels import choices
from dct_jax.kernels.choices import Purpose

SIZE = 4000
CONTEXTS = [{'group': g, 'step': s, 'worker': w} for g, s, w in (
    (0, 0, 0), (1, 0, 0), (7, 0, 0), (0, 1, 0), (0, 2, 0), (0, 0, 1), (0, 0, 2), (1, 1, 0), (0, 1, 1), (1, 0, 1))]
CHANCE = 5  # standard deviations that a count may be away from what chance gives


@functools.cache
def sender(name):
  """(group, step, worker) -> which entries of two layers of equal entries travel, as other numbers than 0."""
  layers = (jnp.full(SIZE, 0.5).at[0].set(1), jnp.full(SIZE, 0.5).at[0].set(1))
  compressor = CHOOSERS[name]()
  most = compressor.size(layers).largest

  @jax.jit
  def one(group, step, worker):
    state = compressor.init(layers)._replace(step=step)
    packed = compressor.compress(layers, None, state, Room(most, 1, most, worker, group))
    return compressor.decompress(packed.message[None], layers, state).layers

  return lambda group, step, worker: [
      np.asarray(x) != 0 for x in one(np.uint32(group), np.int32(step), np.uint32(worker))]


@functools.cache
def drained(period, group, step, worker):
  """Which entries of two layers are forgotten."""
  key = choices.key_of(Purpose.DRAIN, 0, group, step, worker)
  return [np.asarray(e) == 0 for e in drain((jnp.ones(SIZE), jnp.ones(SIZE)), period, key)[0]]


def assert_unlike(a, b):
  """Two choices agree as often as chance has it."""
  p, q, n = a.mean(), b.mean(), a.size
  together = p * q
  assert abs((a & b).mean() - together) <= CHANCE * np.sqrt(together * (1 - together) / n), (a & b).mean()


CHOOSERS = {
    'random_k': lambda: dct_jax.random_k(0.1, dense_below=0),
    'stochastic_ternary': lambda: dct_jax.stochastic_ternary(dense_below=0),
    'qsgd': lambda: dct_jax.qsgd(2, SIZE // 32 * 32, dense_below=0),
}


@pytest.mark.parametrize('name', ['qsgd', *slow(*(name for name in CHOOSERS if name != 'qsgd'))])
def test_choices_differ_by_group_layer_worker_and_step(name):
  found = [layer for c in CONTEXTS for layer in sender(name)(**c)]
  for a, b in itertools.combinations(found, 2):
    assert_unlike(a, b)


@pytest.mark.slow
def test_shared_choices_differ_by_group_layer_and_step_but_not_by_worker():
  layers = (jnp.ones(SIZE), jnp.ones(SIZE))

  def told(group, step, worker):
    compressor = dct_jax.random_k(0.1, shared=True).of_group(group)
    state = compressor.init(layers)._replace(step=jnp.int32(step))
    room = dct_jax.whole_room(compressor, layers)._replace(worker=jnp.uint32(worker))
    message = compressor.compress(layers, None, state, room).message
    return [np.asarray(x) != 0 for x in compressor.decompress(message[None], layers, state).layers]

  for a, b in zip(told(3, 5, 0), told(3, 5, 1), strict=True):
    np.testing.assert_array_equal(a, b)
  several = [layer for group, step in ((0, 0), (1, 0), (0, 1), (1, 1)) for layer in told(group, step, 0)]
  for a, b in itertools.combinations(several, 2):
    assert_unlike(a, b)


def test_samples_differ_by_group_worker_and_step():
  """A sample decides a threshold, and so how many entries pass it."""
  compressor = dct_jax.sampled_top_k(0.1, 0.05, least=10, dense_below=0)
  layers = (jnp.asarray(np.random.default_rng(0).standard_normal(SIZE), jnp.float32),)
  most = compressor.size(layers).largest
  counts = []
  for c in CONTEXTS:
    state = compressor.init(layers)._replace(step=jnp.int32(c['step']))
    room = Room(most, 1, most, jnp.uint32(c['worker']), np.uint32(c['group']))
    counts.append(int(compressor.compress(layers, None, state, room).message[3]))
  assert len(set(counts)) >= len(CONTEXTS) - 2, counts


def test_first_factors_differ_by_group_and_layer():
  layers = (jnp.zeros((40, 60)), jnp.zeros((40, 60)))
  compressor = dct_jax.power_sgd(3)
  found = [np.ravel(q) for group in (0, 1, 2) for q in compressor.of_group(group).init(layers).q]
  for a, b in itertools.combinations(found, 2):
    assert abs(np.corrcoef(a, b)[0, 1]) < CHANCE / np.sqrt(a.size)


@pytest.mark.parametrize('period', [3, *slow(2, 10)])
def test_drained_entries_are_random_and_differ(period):
  """Every offset is drawn, 0 included; layers, groups, workers and steps draw apart."""
  offsets = np.array([[np.argmax(layer) for layer in drained(period, group, step, worker)]
                      for group, worker in ((0, 0), (0, 1), (1, 0)) for step in range(60)])
  counts = np.bincount(offsets.ravel(), minlength=period)
  assert counts.size == period
  want = offsets.size / period
  assert np.abs(counts - want).max() <= CHANCE * np.sqrt(want), counts
  several = [*offsets.T.reshape(-1, 60)]  # of each layer, group and worker, over steps
  for a, b in itertools.combinations(several, 2):
    assert abs((a == b).mean() - 1 / period) <= CHANCE * np.sqrt((1 - 1 / period) / period / 60)


def test_a_transform_drains_workers_apart_and_unlike_what_it_picks():
  """random_k with a stretch as long as the period: of what travels one in ten was just drained, and not all of it."""
  workers, period = 4, 10
  tx = dct_jax.compressed_mean(
      dct_jax.error_feedback(dct_jax.random_k(1 / period, dense_below=0), period), dct_jax.all_gather(1, False), 'data')
  update, state = dct_jax.simulate(tx, jnp.zeros(SIZE), workers)
  ones = jnp.ones((workers, SIZE))
  offsets, alive, picked = [], 0, 0
  for _ in range(40):
    _, state = update(jnp.zeros((workers, SIZE)), state._replace(residual=(ones,)), None)
    left = np.asarray(state.residual[0]) == 0
    # Drained is every tenth entry from an offset on; every other zero was sent.
    every = left.reshape(workers, -1, period).mean(axis=1)
    offsets.append(every.argmax(axis=1))
    assert (every.max(axis=1) == 1).all()
    sent_alive = left.sum(axis=1) - SIZE // period
    alive, picked = alive + sent_alive.sum(), picked + workers * SIZE // period
  offsets = np.array(offsets)
  assert (offsets != offsets[:, :1]).any(axis=0)[1:].all(), 'workers drain alike'
  assert (offsets == 0).any()
  assert 0.88 < alive / picked < 0.92


GROUPED = {
    'qsgd': lambda: (dct_jax.qsgd(2, 4000, dense_below=0), dct_jax.all_gather(1)),
    'stochastic_ternary': lambda: (dct_jax.stochastic_ternary(dense_below=0), dct_jax.all_gather(1)),
    'random_k': lambda: (dct_jax.random_k(0.1, dense_below=0), dct_jax.all_gather(1)),
    'random_k_shared': lambda: (dct_jax.random_k(0.1, shared=True), dct_jax.psum()),
    's2': lambda: (dct_jax.block_top_k(1.0, 8, dense_below=0), dct_jax.s2(0.3, rungs=1)),
}


@pytest.mark.parametrize('name', [*GROUPED, 'drain'])
@pytest.mark.parametrize('how', ['bucketed_mean', *slow('multi_transform')])
def test_groups_and_buckets_choose_apart(name, how):
  """Two equal layers with equal gradients, made by the same call in two groups: what is told of them differs."""
  def make():
    if name == 'drain':
      top = dct_jax.error_feedback(dct_jax.top_k(1 / SIZE, dense_below=0), 2)
      return dct_jax.compressed_mean(top, dct_jax.all_gather(1))
    compressor, collective = GROUPED[name]()
    return dct_jax.compressed_mean(compressor, collective)

  params = {'a': jnp.zeros(4000), 'b': jnp.zeros(4000)}
  labels = {'a': 'one', 'b': 'two'}
  tx = (dct_jax.bucketed_mean(make, 2) if how == 'bucketed_mean' else
        optax.multi_transform({'one': make(), 'two': make()}, labels))
  grads = jax.tree.map(lambda x: jnp.full(x.shape, 0.5).at[0].set(1), params)
  state, update = tx.init(params), jax.jit(tx.update)
  told = [[], []]
  for _ in range(2 if name != 'drain' else 12):
    updates, state = update(grads, state, params)
    means = [updates['a'], updates['b']]
    if name == 'drain':
      found = [s for s in jax.tree.leaves(state, is_leaf=lambda n: hasattr(n, 'residual')) if hasattr(s, 'residual')]
      means = [s.residual[0][1:3] for s in found]
    for all_of_it, mean in zip(told, means, strict=True):
      all_of_it.append(np.asarray(mean))
  a, b = (np.concatenate(x) for x in told)
  assert (a != b).any()
  if name not in ('drain', 's2'):
    assert_unlike(a != 0, b != 0)


def test_seeds_and_keys_differ_by_purpose():
  seeds = {int(choices.seed_of(p, s, g, t, w)) for p in Purpose for s, g, t, w in itertools.product((0, 1), repeat=4)}
  assert len(seeds) == len(Purpose) * 16
  keys = {tuple(np.asarray(jax.random.key_data(choices.key_of(p, s, g, t, w))).tolist())
          for p in Purpose for s, g, t, w in itertools.product((0, 1), repeat=4)}
  assert len(keys) == len(Purpose) * 16


def test_a_group_is_where_its_layers_are():
  from dct_jax.transforms.checks import group_of
  tree = {'a': jnp.zeros(2), 'b': [jnp.zeros(2), jnp.zeros(3)]}
  parts = [{'a': tree['a']}, {'b': tree['b']}, tree]
  masks = [{'a': True, 'b': [False, True]}, lambda t: jax.tree.map(lambda x: x.size > 2, t)]
  found = {int(group_of(part)) for part in parts} | {int(group_of(tree, m)) for m in masks}
  assert len(found) == 5
  assert group_of(tree) == group_of(jax.tree.map(lambda x: x + 1, tree))
