"""Compressors that talk in rounds: PowerSGD and votes, against their oracles."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from marks import slow
from reference import power_sgd as oracle
from reference import votes

import dct_jax
from dct_jax import train

SHAPES = ((24, 10), (3, 5, 8), (7,), (2, 2))  # the last one is smaller than its factors


def draw(workers, steps, seed=0):
  rng = np.random.default_rng(seed)
  return [tuple(rng.standard_normal((workers, *s)).astype(np.float32) for s in SHAPES) for _ in range(steps)]


PARAMS = tuple(jnp.zeros(s) for s in SHAPES)


@pytest.mark.parametrize('rank', [2, *slow(1, 3)])
def test_power_sgd_equals_the_oracle(rank):
  """Warm start, error feedback and both factors, over several steps; what travels whole is exact."""
  workers = 3
  tx = dct_jax.compressed_mean(dct_jax.error_feedback(dct_jax.power_sgd(rank)), dct_jax.psum(), 'data')
  update, state = dct_jax.simulate(tx, PARAMS, workers)
  q = [np.asarray(x, np.float64) for x in state.compressor.q]
  assert [x.shape for x in q] == [(10, rank), (8, rank)]
  residuals = [[np.zeros((24, 10))] * workers, [np.zeros((15, 8))] * workers]
  for grads in draw(workers, 4):
    updates, state = update(grads, state, PARAMS)
    for i, shape in enumerate(((24, 10), (15, 8))):
      mean, residuals[i], q[i] = oracle.step(grads[i].reshape(workers, *shape), residuals[i], q[i])
      np.testing.assert_allclose(np.asarray(updates[i]).reshape(shape), mean, rtol=2e-3, atol=2e-4)
      np.testing.assert_allclose(np.asarray(state.residual[i]).reshape(workers, *shape), residuals[i], atol=2e-4)
      np.testing.assert_allclose(state.compressor.q[i], q[i] / np.abs(q[i]).max(), rtol=2e-3, atol=5e-4)
    for i in (2, 3):
      np.testing.assert_allclose(updates[i], grads[i].mean(0), rtol=1e-5, atol=1e-6)
      assert not np.asarray(state.residual[i]).any()


def test_a_layer_of_zeros_does_not_end_the_warm_start():
  tx = dct_jax.compressed_mean(dct_jax.error_feedback(dct_jax.power_sgd(2)), dct_jax.psum())
  grads = draw(1, 2)
  state = tx.init(PARAMS)
  _, state = tx.update(jax.tree.map(jnp.zeros_like, PARAMS), state)
  assert all(np.abs(np.asarray(q)).max() > 0.1 for q in state.compressor.q)
  updates, state = tx.update(tuple(jnp.asarray(g[0]) for g in grads[0]), state)
  assert np.abs(np.asarray(updates[0])).max() > 0.1


@pytest.mark.parametrize('rank', [2, *slow(1, 4)])
@pytest.mark.parametrize('scale', [1e-14, 1.0, *slow(1e9)])
def test_a_matrix_of_lower_rank_than_the_factors_arrives_whole(rank, scale):
  """Columns that depend on others are rounding, and must not be taken for directions; at any size of gradients."""
  rng = np.random.default_rng(0)
  g = jnp.asarray(scale * np.outer(rng.standard_normal(40), rng.standard_normal(30)), jnp.float32)
  tx = dct_jax.compressed_mean(dct_jax.error_feedback(dct_jax.power_sgd(rank)), dct_jax.psum())
  state, update = tx.init(g), jax.jit(tx.update)
  for step in range(12):
    updates, state = update(1e4 * g if step == 4 and scale == 1 else g, state)  # and after a spike
  np.testing.assert_allclose(updates, g, rtol=0, atol=(3e-2 if scale == 1 else 1e-5) * float(jnp.abs(g).max()))


def test_scalars_and_empty_layers_take_part():
  params = {'w': jnp.zeros((8, 6)), 's': jnp.zeros(()), 'e': jnp.zeros((5, 0))}
  mean = dct_jax.compressed_mean(dct_jax.error_feedback(dct_jax.power_sgd(1)), dct_jax.psum(), 'data')
  for tx in (mean, dct_jax.stale_mean(mean)):
    update, state = dct_jax.simulate(tx, params, workers=2)
    grads = jax.tree.map(lambda x: jnp.ones((2, *x.shape)), params)
    for _ in range(2):
      updates, state = update(grads, state, params)
    np.testing.assert_allclose(updates['s'], 1.0)
    np.testing.assert_allclose(updates['w'], np.ones((8, 6)), atol=1e-5)


@pytest.mark.parametrize('name', ['power_sgd', 'sign_vote'])
def test_a_step_that_is_called_off_changes_nothing(name):
  """NaN on one worker: no update, state as it was, the others' gradients wait in their residuals."""
  compressor = {'power_sgd': dct_jax.error_feedback(dct_jax.power_sgd(2)), 'sign_vote': dct_jax.sign_vote()}[name]
  tx = dct_jax.compressed_mean(compressor, dct_jax.psum(), 'data')
  update, state = dct_jax.simulate(tx, PARAMS, 2)
  good, bad = draw(2, 2)
  _, before = update(good, state, PARAMS)
  bad[0][1, 3, 4] = np.nan
  updates, after = update(bad, before, PARAMS)
  assert not any(np.asarray(u).any() for u in updates)
  assert int(after.stats.nonfinite) == 1
  jax.tree.map(np.testing.assert_array_equal, after.compressor, before.compressor)
  for i, e in enumerate(after.residual):
    np.testing.assert_allclose(e[0], np.asarray(before.residual[i][0]) + bad[i][0], rtol=1e-6)
    np.testing.assert_array_equal(e[1], before.residual[i][1])
  updates, _ = update(good, after, PARAMS)
  assert all(np.isfinite(np.asarray(u)).all() for u in updates)


@pytest.mark.parametrize('workers', [1, 2, 3, *slow(4, 5, 8)])
def test_votes_equal_the_oracle(workers):
  tx = dct_jax.compressed_mean(dct_jax.sign_vote(), dct_jax.psum(), 'data')
  update, state = dct_jax.simulate(tx, PARAMS, workers)
  (grads,) = draw(workers, 1, seed=workers)
  grads[0][:, :4] = 0
  grads[1][0, 0] = 0
  updates, state = update(grads, state, PARAMS)
  for u, g in zip(updates, grads, strict=True):
    np.testing.assert_array_equal(u, votes.majority(g))
  bits = (2 * workers).bit_length()
  assert int(state.stats.receipt.encoded_bytes) <= 4 * (2 + 371 / (32 // bits))


def test_votes_have_no_residual():
  with pytest.raises(ValueError, match='no amount'):
    dct_jax.error_feedback(dct_jax.sign_vote())


@pytest.mark.parametrize('make', [dct_jax.power_sgd, dct_jax.sign_vote])
def test_rounds_are_for_psum(make):
  with pytest.raises(ValueError, match='psum'):
    dct_jax.compressed_mean(make(), dct_jax.all_gather())
  with pytest.raises(ValueError, match='psum'):
    dct_jax.push_pull(make(), dct_jax.cast('float32'), optax.sgd(0.1))
  with pytest.raises(ValueError, match='compressed_mean'):
    dct_jax.whole_room(make(), PARAMS) and make().compress(PARAMS, None, (), None)
  with pytest.raises(ValueError, match='rank'):
    dct_jax.power_sgd(0)


@pytest.mark.parametrize('wrap', [lambda make: dct_jax.bucketed_mean(make, 2), lambda make: dct_jax.stale_mean(make())],
                         ids=['bucketed', 'stale'])
def test_rounds_in_exchanges_that_overlap(wrap):
  """All rounds but the last at once, the last one on its way: nothing is lost."""
  make = lambda: dct_jax.compressed_mean(dct_jax.error_feedback(dct_jax.power_sgd(2)), dct_jax.psum(), 'data')
  tx, workers = wrap(make), 2
  mesh = dct_jax.make_mesh(workers)
  _, state, specs = dct_jax.init(tx, PARAMS, mesh)
  spec = jax.sharding.PartitionSpec
  step = jax.jit(jax.shard_map(lambda g, s: tx.update(tuple(x[0] for x in g), s), mesh=mesh,
                               in_specs=(spec('data'), specs), out_specs=(spec(), specs)))
  total, given, steps = [0.0] * 4, [0.0] * 4, 6
  last = draw(workers, 1)[0]
  for grads in [last] * steps + [tuple(np.zeros_like(x) for x in last)] * 30:
    updates, state = step(grads, state)
    total = [t + np.asarray(u, np.float64) for t, u in zip(total, updates, strict=True)]
    given = [t + g.mean(0) for t, g in zip(given, grads, strict=True)]
  for t, g in zip(total, given, strict=True):  # the power method has had the time to find everything
    np.testing.assert_allclose(t, g, rtol=0.05, atol=0.05 * np.abs(g).max())


def test_power_sgd_survives_a_change_of_workers(tmp_path):
  """Residuals add up, the right factors are everybody's."""
  tx = dct_jax.compressed_mean(dct_jax.error_feedback(dct_jax.power_sgd(2)), dct_jax.psum(), 'data')
  spec = jax.sharding.PartitionSpec
  mesh = dct_jax.make_mesh(4)
  params, state, specs = dct_jax.init(tx, PARAMS, mesh)
  step = jax.jit(jax.shard_map(lambda g, s: tx.update(tuple(x[0] for x in g), s), mesh=mesh,
                               in_specs=(spec('data'), specs), out_specs=(spec(), specs)))
  for grads in draw(4, 2):
    _, state = step(grads, state)
  kept = train.Checkpoints(tmp_path, {})
  kept.save(2, params, state)
  fewer = dct_jax.make_mesh(3)
  new_params, new_state, new_specs = dct_jax.init(tx, PARAMS, fewer)
  _, restored, _ = train.Checkpoints(tmp_path, {}).restore(new_params, new_state, new_specs, fewer)
  jax.tree.map(np.testing.assert_array_equal, restored.compressor, state.compressor)
  sums = lambda s, n: [np.asarray(e, np.float64).reshape(n, *shape).sum(0)
                       for e, shape in zip(s.residual, SHAPES, strict=True)]
  for a, b in zip(sums(state, 4), sums(restored, 3), strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5)
