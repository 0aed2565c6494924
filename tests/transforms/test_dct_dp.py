"""DCT-DP step by step against a literal Algorithm 1 in NumPy."""

import jax
import jax.numpy as jnp
import laws
import numpy as np
import optax
import pytest
from marks import slow
from reference.dct_dp import DctDpOracle

import dct_jax
from dct_jax.collectives import all_gather

SHAPES = ((40, 11), (5,), (301,))


@pytest.mark.parametrize('value_codec', ['float32', 'float16'])
@pytest.mark.parametrize('workers', [3, *slow(2)])
@pytest.mark.parametrize('lifespan', [1, 3, *slow(1000)])
@pytest.mark.parametrize('selection', ['select', 'sort'])
def test_traced_against_algorithm_1(lifespan, workers, value_codec, selection):
  oracle = DctDpOracle(workers, SHAPES, 0.9, lifespan, value_codec, dense_below=8)
  tx = dct_jax.dct_dp(0.9, lifespan, 'data', value_codec=value_codec, dense_below=8,
                      selection=selection,
                      collective=all_gather(rungs=1, dense_fallback=False))  # everything fits
  step, state = laws.vmap_runner(tx, tuple(jnp.zeros(s) for s in SHAPES), workers)
  for grads in laws.gradients(workers, 7, shapes=SHAPES, seed=3):
    updates, state = step(grads, state)
    expected = oracle.step([[np.asarray(g[w]) for g in grads] for w in range(workers)])
    for w in range(workers):
      taus = [t for t in oracle.tau[w] if t is not None]
      np.testing.assert_array_equal(state.compressor.tau[w], taus)
    for got, want in zip(updates, expected, strict=True):
      np.testing.assert_allclose(got, want, rtol=2e-7, atol=0)
    for layer, e in enumerate(state.residual):
      for w in range(workers):
        np.testing.assert_array_equal(e[w], oracle.error[w][layer])


def test_first_threshold_of_the_paper():
  """0.29 * 100 is 29 in decimal; 100 - 29 + 1 entries are kept."""
  x = jnp.arange(1.0, 101.0)
  tx = dct_jax.dct_dp(0.29, dense_below=0)
  updates, state = tx.update((x,), tx.init((x,)))
  assert state.compressor.tau[0] == 29
  assert int((updates[0] != 0).sum()) == 72


def test_sparsity_of_one_keeps_the_largest():
  x = jnp.arange(1.0, 101.0)
  tx = dct_jax.dct_dp(1.0, dense_below=0)
  updates, _ = tx.update((x,), tx.init((x,)))
  assert updates[0].tolist() == [0.0] * 99 + [100.0]


def test_a_stale_threshold_may_keep_nothing():
  tx = dct_jax.dct_dp(0.9, 1000, dense_below=0)
  state = tx.init((jnp.zeros(100),))
  _, state = tx.update((jnp.linspace(1, 2, 100),), state)
  updates, state = tx.update((jnp.zeros(100).at[99].set(0.5),), state._replace(
      residual=(jnp.zeros(100),)))
  assert not updates[0].any()
  assert state.residual[0][99] == 0.5


def test_warm_up_by_schedule():
  """Sparsity follows an optax schedule, at the steps where the threshold is renewed."""
  schedule = optax.linear_schedule(0.5, 0.9, 4)
  tx = dct_jax.dct_dp(schedule, 1, dense_below=0)
  state = tx.init((jnp.zeros(1000),))
  kept = []
  for i in range(6):
    g = jnp.asarray(np.random.default_rng(i).standard_normal(1000), jnp.float32)
    state = state._replace(residual=(jnp.zeros(1000),))
    updates, state = tx.update((g,), state)
    kept.append(int((updates[0] != 0).sum()))
  assert kept == [501, 401, 301, 201, 101, 101]


def test_schedules_work_in_a_jitted_step_on_a_mesh():
  tx = optax.chain(dct_jax.dct_dp(optax.linear_schedule(0.5, 0.99, 4), 1, 'data', dense_below=0),
                   optax.sgd(0.1))
  update, state = dct_jax.simulate(tx, jnp.zeros(1000), 2)
  sent = []
  for i in range(6):
    g = jnp.asarray(np.random.default_rng(i).standard_normal((2, 1000)), jnp.float32)
    _, state = update(g, state, jnp.zeros(1000))
    sent.append(int(state[0].stats.receipt.encoded_bytes))
  assert sent[-1] < 0.1 * sent[0]


def test_early_refresh_renews_while_the_residual_fills():
  rng = np.random.default_rng(0)
  counts = {}
  for early in (False, True):
    tx = dct_jax.dct_dp(0.99, 1000, dense_below=0, early_refresh=early)
    state = tx.init((jnp.zeros(20_000),))
    for _ in range(40):
      g = jnp.asarray(rng.standard_normal(20_000), jnp.float32)
      updates, state = tx.update((g,), state)
    counts[early] = int((updates[0] != 0).sum())
  assert counts[True] < 0.6 * counts[False]


def test_tracking_keeps_messages_at_their_size():
  """The paper's stale threshold lets ever more through; one that follows its count does not."""
  rng = np.random.default_rng(0)
  for tracking, low, high in ((0.0, 3.0, 10.0), (0.1, 0.6, 1.6)):
    tx = dct_jax.dct_dp(0.99, 1000, dense_below=0, tracking=tracking)
    state = tx.init((jnp.zeros(20_000),))
    counts = []
    for _ in range(120):
      g = jnp.asarray(rng.standard_normal(20_000), jnp.float32)
      updates, state = tx.update((g,), state)
      counts.append(int((updates[0] != 0).sum()))
    assert low < np.mean(counts[-60:]) / 201 < high


def test_tracking_does_not_swing_when_residuals_arrive_together():
  """Nearly the same gradient in every step: all entries reach a threshold in waves."""
  rng = np.random.default_rng(0)
  tx = dct_jax.dct_dp(0.99, 1000, dense_below=0, tracking=0.1)
  state, update = tx.init((jnp.zeros(20_000),)), jax.jit(tx.update)
  usual, counts = rng.standard_normal(20_000), []
  for _ in range(300):
    g = jnp.asarray(usual + 0.1 * rng.standard_normal(20_000), jnp.float32)
    updates, state = update((g,), state)
    counts.append(int((updates[0] != 0).sum()))
  assert min(counts[100:]) / 201 > 0.4
  assert max(counts[100:]) / 201 < 2.5


def test_drain_forgets_and_counts():
  """Conservation reads sent + residual + drained."""
  n = 3000
  tx = dct_jax.dct_dp(0.9, 1, dense_below=0, drain_period=7)
  state = tx.init((jnp.zeros(n),))
  g = jnp.asarray(np.random.default_rng(0).integers(1, 100, n), jnp.float32)
  _, state = tx.update((g,), state)
  before, drained_before = np.asarray(state.residual[0]), float(state.stats.drained)
  updates, state = tx.update((jnp.zeros(n),), state)
  after = np.asarray(state.residual[0]) + np.asarray(updates[0])
  gone = before != after
  assert float(state.stats.drained) - drained_before == gone.sum()
  assert 0.5 * n / 7 < gone.sum() <= n / 7 + 1
  np.testing.assert_array_equal(after[gone], 0)


def test_drain_rate():
  import jax

  from dct_jax.compressors import drain
  residual = (jnp.ones(1000), jnp.ones((7, 3)))
  totals = np.zeros(2)
  for i in range(300):
    left, drained = drain(residual, 50, jax.random.PRNGKey(i))
    gone = [int((e == 0).sum()) for e in left]
    assert int(drained) == sum(gone)
    totals += gone
  np.testing.assert_allclose(totals / 300, [1000 / 50, 21 / 50], rtol=0.2)
