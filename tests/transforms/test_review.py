"""Regressions: what a critical reading of the code found."""

import jax
import jax.numpy as jnp
import laws
import numpy as np
import optax
import pytest

import dct_jax
from dct_jax.collectives import ladder
from dct_jax.train.reshard import MEAN, reshard, rules


def test_vmap_over_everything_does_not_raise():
  """A whole state with a leading axis: the callback runs in both branches and must look for itself."""
  tx = dct_jax.dct_dp(0.9, dense_below=0)
  state = jax.vmap(lambda _: tx.init((jnp.zeros(50),)))(jnp.arange(3))
  updates, _ = jax.vmap(tx.update)((jnp.ones((3, 50)),), state)
  jax.block_until_ready(updates)
  jax.effects_barrier()
  assert updates[0].shape == (3, 50)


@pytest.mark.parametrize(('n', 'workers'), [(2**24, 128), (2**28, 8), (7 * 10**8, 8)])
@pytest.mark.parametrize('make', [lambda: dct_jax.dct_dp(0.99, axis_name='data'),
                                  lambda: dct_jax.dense_mean('data')])
def test_large_jobs_can_be_traced(n, workers, make):
  tx, shape = make(), jax.ShapeDtypeStruct((n,), jnp.float32)
  state = jax.eval_shape(tx.init, shape)
  spread = lambda x: jax.ShapeDtypeStruct((workers, *x.shape), x.dtype)
  axes = dct_jax.vmap_axes(dct_jax.state_specs(tx, shape, dct_jax.make_mesh(1)))
  state = jax.tree.map(lambda x, a: spread(x) if a == 0 else x, state, axes)
  step = jax.vmap(tx.update, in_axes=(0, axes), out_axes=(None, axes), axis_name='data')
  updates, _ = jax.eval_shape(step, spread(shape), state)
  assert updates.shape == (n,)


def test_a_schedule_ends_with_small_messages():
  schedule = optax.linear_schedule(0.75, 0.999, 1000)
  layers = (jax.ShapeDtypeStruct((10**6,), jnp.float32),)
  late = dct_jax.top_k(0.001).size(layers).nominal
  steps = ladder.rungs(dct_jax.dct_threshold(schedule).size(layers), 4, 16, True)
  assert min(s for s in steps if s >= late) < 2.5 * late


def test_rice_by_name_needs_no_more_room_than_auto():
  layers = (jax.ShapeDtypeStruct((10**6,), jnp.float32),)
  sizes = {c: dct_jax.top_k(0.01, index_codec=c).size(layers) for c in ('auto', 'rice')}
  assert sizes['rice'] == sizes['auto']._replace(largest=sizes['rice'].largest)


def test_float16_updates_do_not_overflow():
  """Error feedback piles up more than a float16 holds; the update is its largest number then."""
  tx = dct_jax.dct_dp(0.75, 1, dense_below=0)
  g = jnp.array([6e4] * 3 + [4e4] * 5, jnp.float16)
  state = tx.init((g,))
  for _ in range(4):
    updates, state = tx.update((g,), state)
    assert np.isfinite(np.asarray(updates[0], np.float32)).all()


def test_tracking_finds_its_way_back_from_zero():
  tx = dct_jax.dct_dp(0.99, 1000, dense_below=0, tracking=0.1)
  state, update = tx.init((jnp.zeros(5000),)), jax.jit(tx.update)
  _, state = update((jnp.zeros(5000),), state)  # as behind an output layer that starts at zero
  rng = np.random.default_rng(0)
  for _ in range(30):
    _, state = update((jnp.asarray(rng.standard_normal(5000), jnp.float32),), state)
  assert float(state.stats.receipt.density) < 0.05


def test_early_refresh_ends_with_the_first_life_span():
  tx = dct_jax.dct_dp(0.9, 5, dense_below=0, early_refresh=True)
  state, renewed, old = tx.init((jnp.zeros(100),)), [], None
  rng = np.random.default_rng(0)
  for i in range(18):
    _, state = tx.update((jnp.asarray(rng.standard_normal(100), jnp.float32),), state)
    if float(state.compressor.tau[0]) != old:
      renewed.append(i)
    old = float(state.compressor.tau[0])
  assert renewed == [0, 1, 2, 4, 5, 10, 15]


def test_accumulate_accounts_for_nothing_while_it_waits():
  tx = dct_jax.accumulate(dct_jax.dct_dp(0.9, dense_below=0), 4)
  state, total, once = tx.init((jnp.zeros(500),)), 0, 0
  for i in range(8):
    _, state = tx.update((jnp.ones(500) * (i + 1),), state)
    total += int(state.inner.stats.receipt.encoded_bytes)
    once = max(once, int(state.inner.stats.receipt.encoded_bytes))
  assert 0 < total <= 2 * once


def test_accumulated_means_stay_means_for_other_workers():
  tx = dct_jax.accumulate(dct_jax.dct_dp(0.9, dense_below=0), 4)
  names = rules(tx.init((jnp.zeros(5),)))
  assert names[1] == MEAN
  pending = np.array([1.0, 2.0, 3.0, 4.0])
  for new in (1, 2, 3, 8):
    parts = [reshard(pending, 4, new, j, MEAN) for j in range(new)]
    np.testing.assert_allclose(np.mean(parts), 2.5)


def test_the_dense_rung_is_one_all_reduce():
  tx = dct_jax.dct_dp(0.01, 1, 'data', dense_below=0)
  params = tuple(jnp.zeros(100 + i) for i in range(5))
  mesh = dct_jax.make_mesh(2)
  _, state, specs = dct_jax.init(tx, params, mesh)
  spec = jax.sharding.PartitionSpec
  step = jax.jit(jax.shard_map(lambda g, s: tx.update(tuple(x[0] for x in g), s), mesh=mesh,
                               in_specs=(spec('data'), specs), out_specs=(spec(), specs)))
  text = step.lower(tuple(jnp.zeros((2, p.size)) for p in params), state).compile().as_text()
  reduces = [line for line in text.splitlines() if ' all-reduce(' in line]
  assert len(reduces) == 1, reduces


def test_laws_table_names_real_collectives():
  assert {c for _, c in laws.PAIRS} == set(laws.COLLECTIVES)
