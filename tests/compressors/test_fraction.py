"""Numbers that users give: zero is dense, schedules are clipped, ranks are exact."""

import fractions
import math

import jax
import jax.numpy as jnp
import laws
import numpy as np
import optax
import pytest
from marks import slow

import dct_jax
from dct_jax.compressors import fraction

SIZES = (1, 3, 100, 1000, 99_999_999, 10**8, 2**31 + 12_345, 2**32 - 1)


@pytest.mark.parametrize('share', [0.99, 0.29, 0.999999, 0.5, 0.07, 1.0, 0.0])
def test_ranks_of_decimals_are_those_of_numbers(share):
  scheduled = fraction.floor_of(SIZES, lambda step: jnp.float32(share), jnp.int32(0))
  assert scheduled.tolist() == [fraction.floor_once(n, share) for n in SIZES]


def test_ranks_of_other_shares_are_exact():
  shares = np.random.default_rng(0).uniform(2**-8, 1, 200).astype(np.float32)
  for share in shares:
    decimal = round(float(share), 6)
    near = np.abs(np.float32(decimal) - share) <= fraction.NOISE * share
    meant = fractions.Fraction(str(decimal) if near else float(share))
    assert fraction.scaled(SIZES, share).tolist() == [math.floor(n * meant) for n in SIZES]


def test_noise_of_a_schedule_is_forgiven():
  share = np.nextafter(np.float32(0.29), np.float32(0), dtype=np.float32)
  assert fraction.scaled((100,), share).tolist() == [29]


def test_a_schedule_is_clipped():
  rank = lambda share: fraction.floor_of((10,), lambda step: share, jnp.int32(0)).tolist()
  assert [rank(x) for x in (1.5, -0.5, jnp.nan, jnp.inf)] == [[10], [0], [0], [10]]


def test_a_schedule_that_leaves_its_range_is_told_of():
  with pytest.warns(UserWarning, match='sparsity leaves .* in step 127 it is 1.27'):
    dct_jax.dct_dp(lambda step: step / 100)
  dct_jax.dct_dp(optax.linear_schedule(0.0, 0.99, 100))


@pytest.mark.parametrize('share', [np.float32(0.29), np.float64(0.29), jnp.float32(0.29), np.array(0.29)])
def test_numbers_of_arrays_mean_their_decimals(share):
  assert fraction.check('sparsity', share) == 0.29
  assert fraction.floor_once(100, np.float32(0.29)) == 29


def test_counts_may_be_floats():
  x = jnp.arange(1.0, 5.0)
  dct_jax.dct_dp(0.5, np.int64(3), drain_period=1e6, dense_below=0.0).init(x)
  for bad in (2.5, True, '3', float('inf'), float('nan')):
    with pytest.raises(ValueError, match='drain_period'):
      dct_jax.dct_dp(0.5, drain_period=bad)


def test_parameters_may_be_python_numbers():
  tx = dct_jax.dct_dp(0.5)
  updates, _ = tx.update({'w': 0.5}, tx.init({'w': 1.0}))
  assert updates['w'] == 0.5
  with pytest.raises(ValueError, match='dtype=int32'):
    tx.init({'w': 1})


def test_injected_hyperparameters_are_refused_with_a_way_out():
  injected = optax.inject_hyperparams(dct_jax.dct_dp)(sparsity=0.9)
  state = injected.init(jnp.zeros(4))
  with pytest.raises(ValueError, match='sparsity must be known .* give a schedule'):
    jax.jit(injected.update)(jnp.ones(4), state)
  fixed = optax.chain(dct_jax.dct_dp(optax.linear_schedule(0.0, 0.9, 10)), optax.inject_hyperparams(optax.sgd)(0.1))
  jax.jit(fixed.update)(jnp.ones(4), fixed.init(jnp.zeros(4)))


def runs_dense(sparsity, workers, **more):
  """Updates of some steps, and states, beside dense means."""
  tx = dct_jax.dct_dp(sparsity, 1000, 'data', dense_below=8, **more)
  step, state = laws.vmap_runner(tx, laws.PARAMS, workers)
  for grads in laws.gradients(workers, 3):
    updates, state = step(grads, state)
    yield updates, [np.mean(np.asarray(g, np.float64), axis=0) for g in grads], state


UNTIL_2 = optax.piecewise_constant_schedule(0.0, {2: 1.0})


@pytest.mark.parametrize(('sparsity', 'collective'), [
    (UNTIL_2, None), *slow((0, None), (UNTIL_2, dct_jax.all_gather(rungs=2, dense_fallback=False)),
                           (UNTIL_2, dct_jax.sparse_all_reduce('split_all_gather', rungs=2)),
                           (0, dct_jax.union_sum(rungs=2)))],
    ids=['schedule', 'number', 'schedule_without_fallback', 'schedule_split', 'number_union'])
def test_zero_is_dense(sparsity, collective):
  for updates, mean, state in runs_dense(sparsity, 3, collective=collective):
    for got, want, left in zip(updates, mean, state.residual, strict=True):
      np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)
      np.testing.assert_array_equal(left, 0)


def test_zero_with_narrow_values_keeps_their_rounding():
  tx = dct_jax.dct_dp(0.0, value_codec='float16')
  grads = laws.gradients(1, 1)[0]
  updates, state = tx.update(grads, tx.init(grads))
  for g, u, left in zip(grads, updates, state.residual, strict=True):
    np.testing.assert_array_equal(u + left, g)
    assert left.any()


@pytest.mark.parametrize('tracking', [0.0, 0.1])
def test_a_schedule_that_leaves_zero_takes_a_threshold_then(tracking):
  """And does not wait for the end of a life-span that began when everything went."""
  schedule = lambda step: jnp.where(step < 2, 0.0, 0.9)
  x, kept = jnp.arange(1.0, 101.0), []
  tx = dct_jax.dct_dp(schedule, 1000, dense_below=0, tracking=tracking)
  state = tx.init(x)
  for _ in range(4):
    updates, state = tx.update(x, state._replace(residual=(jnp.zeros(100),)))
    kept.append(int((updates != 0).sum()))
  assert kept[:3] == [100, 100, 11]
  assert kept[3] <= 11


def test_zero_at_a_boundary_lets_everything_pass():
  x = jnp.array([[1.0, -4.0, 0.0, 3.0]])
  np.testing.assert_array_equal(dct_jax.sparse_boundary(x, 0), x)
  with pytest.raises(ValueError, match='sparsity=-0.1'):
    dct_jax.sparse_boundary(x, -0.1)
