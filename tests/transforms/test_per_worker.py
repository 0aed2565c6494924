"""Optimizers in front of a mean: each worker's own, unharmed by a NaN, and merged when workers are fewer."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dct_jax
from dct_jax import train
from dct_jax.train.reshard import MERGE, NEVER, rules

pytestmark = pytest.mark.plain_code

SHAPES = {'a': (3, 5), 'b': (1,)}


def params():
  return {k: jnp.zeros(s) for k, s in SHAPES.items()}


def gradients(workers, steps):
  rng = np.random.default_rng(3)
  return [{k: jnp.asarray(rng.standard_normal((workers, *s)), jnp.float32) for k, s in SHAPES.items()}
          for _ in range(steps)]


def run(tx, workers, all_grads):
  """Updates of every step, and the last state."""
  update, state = dct_jax.simulate(tx, params(), workers)
  out = []
  for grads in all_grads:
    updates, state = update(grads, state, params())
    out.append(updates)
  return out, state


def local_adam(mean, adam=None):
  return optax.chain(dct_jax.per_worker(adam or optax.scale_by_adam()), mean)


@pytest.mark.parametrize('workers', [1, 2, 3])
def test_it_is_the_mean_of_adams(workers):
  grads = gradients(workers, 4)
  got, _ = run(local_adam(dct_jax.dense_mean('data')), workers, grads)
  alone = []
  for w in range(workers):
    adam = optax.scale_by_adam()
    state, out = adam.init(params()), []
    for g in grads:
      u, state = adam.update(jax.tree.map(lambda x: x[w], g), state)
      out.append(u)
    alone.append(out)
  for step, updates in enumerate(got):
    for k in SHAPES:
      np.testing.assert_allclose(updates[k], np.mean([a[step][k] for a in alone], axis=0), rtol=2e-5, atol=1e-6)


def test_what_is_compressed_are_its_updates_and_none_is_lost():
  c = dct_jax.error_feedback(dct_jax.top_k(0.2, dense_below=0))
  grads = gradients(2, 6)
  got, state = run(local_adam(dct_jax.compressed_mean(c, dct_jax.all_gather(), axis_name='data')), 2, grads)
  whole, _ = run(local_adam(dct_jax.dense_mean('data')), 2, grads)
  total = lambda updates, k: sum(np.asarray(u[k], np.float64) for u in updates)
  for k, left in zip(SHAPES, state[1].residual, strict=True):
    np.testing.assert_allclose(total(got, k) + np.asarray(left).reshape(2, *SHAPES[k]).mean(0), total(whole, k),
                               rtol=1e-4, atol=1e-5)


def test_a_nan_costs_one_step():
  one, two, three = gradients(2, 3)
  bad = jax.tree.map(lambda x: x.at[1].set(jnp.nan), two)
  got, state = run(local_adam(dct_jax.dense_mean('data')), 2, [one, bad, three])
  assert not any(x.any() for x in jax.tree.leaves(got[1]))
  assert all(x.any() for x in jax.tree.leaves(got[2])) and state[1].stats.nonfinite == 1
  adam = optax.scale_by_adam()
  alone = adam.init(params())
  for g in (one, three):  # the second worker's, as if the step in between had not been but for the count
    _, alone = adam.update(jax.tree.map(lambda x: x[1], g), alone)
  for k in SHAPES:
    mine = np.asarray(state[0].inner.mu[k]).reshape(2, *SHAPES[k])[1]
    np.testing.assert_allclose(mine, alone.mu[k], rtol=1e-5, atol=1e-7)


def test_overflow_inside_is_a_nan_as_well():
  touchy = optax.stateless(lambda g, _: jax.tree.map(lambda x: jnp.where(x > 9, jnp.inf, x), g))
  tx = local_adam(dct_jax.dense_mean('data'), optax.chain(touchy, optax.trace(0.9)))
  good, _ = gradients(2, 2)
  got, state = run(tx, 2, [jax.tree.map(lambda x: x + 10, good), good])
  assert not got[0]['a'].any() and jnp.isfinite(got[1]['a']).all() and state[1].stats.nonfinite == 2


@pytest.mark.parametrize(('old', 'new'), [(2, 1), (1, 2), (3, 2), (2, 3)])
def test_another_number_of_workers_goes_on_with_moments_of_the_right_size(old, new, tmp_path):
  tx = local_adam(dct_jax.dense_mean('data'))
  first, state, _ = dct_jax.init(tx, params(), dct_jax.make_mesh(old))
  mark = lambda path, x: jnp.arange(x.size, dtype=x.dtype).reshape(x.shape) if '.nu' in path else x
  state = jax.tree_util.tree_map_with_path(lambda path, x: mark(jax.tree_util.keystr(path), x), state)
  assert MERGE in rules(state) and NEVER not in rules(state)
  train.Checkpoints(tmp_path, {}).save(1, first, state)
  mesh = dct_jax.make_mesh(new)
  like = dct_jax.init(tx, params(), mesh)
  _, restored, _ = train.Checkpoints(tmp_path, {}).restore(*like, mesh)
  had = np.asarray(state[0].inner.nu['a']).reshape(old, 3, 5)
  for j, got in enumerate(np.asarray(restored[0].inner.nu['a']).reshape(new, 3, 5)):
    want = had[j::new].mean(0) if len(had[j::new]) else had[j % old]
    np.testing.assert_allclose(got, want)
