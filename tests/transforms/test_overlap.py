"""Exchanges that overlap: the same means as without, one step late where that is said."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dct_jax
from dct_jax.train.reshard import NEVER, check, rules

pytestmark = pytest.mark.plain_code

WORKERS = 3
SHAPES = {'a': (40, 7), 'b': (11,), 'c': (300,), 'd': (5, 5)}
PARAMS = {k: jnp.zeros(s) for k, s in SHAPES.items()}


def mean(**options):
  return dct_jax.compressed_mean(
      dct_jax.error_feedback(dct_jax.top_k(0.1, dense_below=8)), axis_name='data', **options)


def gradients(steps):
  rng = np.random.default_rng(0)
  return [{k: jnp.asarray(rng.standard_normal((WORKERS, *s)), jnp.float32) for k, s in SHAPES.items()}
          for _ in range(steps)]


def run(tx, steps):
  update, state = dct_jax.simulate(tx, PARAMS, WORKERS)
  out = []
  for grads in gradients(steps):
    updates, state = update(grads, state, None)
    out.append(updates)
  return out, state


def test_late_updates_are_those_of_the_step_before():
  want, plain = run(mean(), 6)
  got, late = run(dct_jax.stale_mean(mean()), 6)
  assert all(not np.any(x) for x in jax.tree.leaves(got[0]))
  for before, after in zip(want[:-1], got[1:], strict=True):
    chex.assert_trees_all_equal(after, before)
  # The message that is on its way has left the residual already.
  chex.assert_trees_all_equal(late.mean.residual, plain.residual)


def test_nothing_is_lost_when_a_worker_has_no_gradient():
  tx = dct_jax.stale_mean(mean())
  update, state = dct_jax.simulate(tx, PARAMS, WORKERS)
  steps = gradients(4)
  steps[1]['c'] = steps[1]['c'].at[1, 0].set(jnp.nan)
  sent = jax.tree.map(jnp.zeros_like, steps[0])
  for grads in steps:
    updates, state = update(grads, state, None)
    sent = jax.tree.map(lambda s, u: s + u * WORKERS, sent, updates)
  total = sum(float(jnp.sum(x)) for x in jax.tree.leaves(sent)) / WORKERS  # replicas: one of them
  assert np.isfinite(total)
  assert int(np.max(state.mean.stats.nonfinite)) == 1


def test_buckets_have_the_means_of_their_layers():
  tx = dct_jax.bucketed_mean(mean, 2)
  got, state = run(tx, 3)
  assert len(state) == 2
  for part in ({'a', 'b'}, {'c', 'd'}):
    alone = {k: PARAMS[k] for k in sorted(part)}
    update, inner = dct_jax.simulate(mean(), alone, WORKERS)
    for grads, updates in zip(gradients(3), got, strict=True):
      want, inner = update({k: grads[k] for k in alone}, inner, None)
      chex.assert_trees_all_equal({k: updates[k] for k in alone}, want)


def test_more_buckets_than_layers():
  got, _ = run(dct_jax.bucketed_mean(mean, 9), 2)
  assert set(got[0]) == set(SHAPES)


def test_specs_are_found_in_a_chain():
  mesh = dct_jax.make_mesh(WORKERS)
  for make in (lambda: dct_jax.stale_mean(mean()), lambda: dct_jax.bucketed_mean(mean, 2)):
    tx = optax.chain(make(), optax.adam(0.1))
    _, state, specs = dct_jax.init(tx, PARAMS, mesh)
    chex.assert_trees_all_equal_structs(jax.tree.map(lambda _: 0, state), jax.tree.map(
        lambda _: 0, specs, is_leaf=lambda x: isinstance(x, jax.sharding.PartitionSpec)))


@pytest.mark.parametrize('make', [
    lambda: dct_jax.bucketed_mean(mean, 0),
    lambda: dct_jax.stale_mean(dct_jax.compressed_mean(dct_jax.top_k(0.1), axis_name='data')),
    lambda: dct_jax.stale_mean(optax.sgd(0.1))])
def test_bad_arguments(make):
  with pytest.raises(ValueError, match='buckets|stale_mean'):
    make()


def test_a_message_on_its_way_stays_with_its_workers():
  _, state = run(dct_jax.stale_mean(mean()), 1)
  assert rules(state).count(NEVER) >= 2
  with pytest.raises(ValueError, match='another number'):
    check([NEVER], 3, 2)
