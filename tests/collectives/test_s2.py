"""S2 Reducer: Theorem 1, what a sketch loses, where it contracts, what is fed back, and what is refused."""

import functools
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from marks import slow
from reference import rivals
from reference import s2 as oracle

import dct_jax
from dct_jax import kernels, train
from dct_jax.kernels import hashing

KEYS = 1500  # draws of hash functions
ENTRIES = 240


@functools.cache
def estimates(rows, lam):
  """What sketches of one vector say, with as many numbers for any number of rows: [keys, entries], and the vector."""
  g = np.random.default_rng(3).standard_normal((1, ENTRIES)).astype(np.float32)
  ids, buckets = jnp.zeros(1, jnp.uint32), round(lam * ENTRIES / rows)

  def one(step):
    keys = hashing.keys(0, step, rows)
    return kernels.sketch_query(ids, 1, kernels.sketch_insert(ids, 1, g, keys, buckets=buckets), keys, unit=ENTRIES)[0]

  return np.asarray(jax.lax.map(one, jnp.arange(KEYS, dtype=jnp.uint32)), np.float64), g[0]


@pytest.mark.parametrize('rows', [1, 2, 3, 5])
@pytest.mark.parametrize('lam', [0.5, 2.0])
def test_theorem_1_estimates_are_unbiased(rows, lam):
  """The mean over keys is the truth to within four standard errors, entry by entry and all together."""
  found, g = estimates(rows, lam)
  error = found - g
  z = error.mean(0) / (error.std(0) / np.sqrt(KEYS))
  assert np.abs(z).max() < 4
  along = error @ g / (g @ g)  # a sketch that shrinks or grows what it is given
  assert abs(along.mean()) < 4 * along.std() / np.sqrt(KEYS)


@pytest.mark.parametrize(('rows', 'lam', 'want'), [(1, 0.5, 2.0), (1, 0.25, 4.0), (1, 4.0, 0.25), (3, 0.5, 2.50),
                                                   (3, 0.25, 5.26)])
def test_the_error_of_a_sketch(rows, lam, want):
  """One row adds 1 / lambda of the energy; three rows with as many numbers add more below lambda = 1."""
  found, g = estimates(rows, lam)
  error = ((found - g) ** 2).sum(1).mean() / (g @ g)
  assert error == pytest.approx(want, rel=0.06)


@pytest.mark.slow
def test_where_it_contracts():
  """Block top-k does, as Theorem 2 says; with a sketch it does above lambda = 1 and not below it."""
  g = np.random.default_rng(0).standard_normal(64 * 16).astype(np.float32)
  energy = float(g @ g)

  def left(collective, steps=40):
    tx = dct_jax.compressed_mean(dct_jax.block_top_k(8 / 64, 16, dense_below=0), collective, 'data')
    update, state = dct_jax.simulate(tx, jnp.zeros(g.size), 2)
    errors = []
    for _ in range(steps):
      mean, state = update(np.stack([g, g]), state, None)
      errors.append(float(((np.asarray(mean) - g) ** 2).sum()))
    return np.mean(errors) / energy

  exact = left(dct_jax.union_sum(2), 1)
  assert exact < 1 - 8 / 64
  assert left(dct_jax.s2(4.0, rungs=2)) < 1
  assert left(dct_jax.s2(0.5, rungs=2)) > 1


@pytest.mark.parametrize('rows', [3, *slow(1)])
def test_blocks_of_a_gradient_are_algorithm_1(native, rows):
  """On several workers with several layers, of which one travels whole and one has a last block that is shorter."""
  workers, unit = 3, 8
  rng = np.random.default_rng(1)
  grads = tuple(jnp.asarray(rng.standard_normal((workers, n)), jnp.float32) for n in (70, 5, 64))
  top = dct_jax.block_top_k(0.3, unit, dense_below=8)
  tx = dct_jax.compressed_mean(top, dct_jax.s2(0.8, rows, seed=4, rungs=2), 'data')
  update, state = dct_jax.simulate(tx, tuple(g[0] for g in grads), workers)
  mean, state = update(grads, state, None)
  blocks = []  # of each worker, the two large layers laid end to end in units
  for w in range(workers):
    layers = [np.pad(np.asarray(g[w]), (0, -g.shape[1] % unit)).reshape(-1, unit) for g in (grads[0], grads[2])]
    kept = [sorted(np.argsort(-(x**2).sum(1), kind='stable')[:max(1, int(0.3 * len(x)))]) for x in layers]
    ids = [*kept[0], *(len(layers[0]) + i for i in kept[1])]
    blocks.append((ids, np.concatenate(layers)[ids]))
  entries = np.mean([len(ids) for ids, _ in blocks]) * unit
  buckets = round(float(state.collective.worker_lambda) * entries / rows)
  group = zlib.crc32(b'[0]\n[1]\n[2]')  # where the layers are
  keys = oracle.keys(rivals.seed_of(rivals.SKETCH, 4, group, 0, 0), 0, rows)
  union, sums = oracle.s2(blocks, 17, unit, keys, buckets)
  dense = np.zeros((17, unit), np.float32)
  dense[union] = sums
  np.testing.assert_allclose(mean[0], dense[:9].reshape(-1)[:70] / workers, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(mean[2], dense[9:].reshape(-1) / workers, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(mean[1], grads[1].mean(0), rtol=1e-6)


def test_the_sketch_follows_the_density():
  """Twice as many blocks make a sketch that is twice as long, in the same step; both lambdas are told."""
  tx = dct_jax.compressed_mean(dct_jax.block_top_k(0.25, 8, dense_below=0), dct_jax.s2(0.5), 'data')
  update, state = dct_jax.simulate(tx, jnp.zeros(8 * 256), 2)
  moved = []
  for blocks in (32, 48, 64, 32):
    grads = np.zeros((2, 256, 8), np.float32)
    grads[0, :blocks], grads[1, blocks // 2:blocks // 2 + blocks] = 1, 1
    _, state = update(grads.reshape(2, -1), state, None)
    moved.append(int(state.stats.receipt.moved_bytes) - 4 * (256 // 32 + 4))
    assert 0.5 <= state.collective.worker_lambda < 0.5 * 1.15
    assert state.collective.union_lambda == pytest.approx(state.collective.worker_lambda / 1.5)
  assert moved[0] == moved[3] < moved[1] < moved[2]
  assert moved[2] / moved[0] == pytest.approx(2, rel=0.15)


def test_feedback_of_the_own_error_stays_bounded_when_it_is_shrunk():
  """Without shrinking it does not, which the oracle shows: that is why it is refused."""
  g = np.random.default_rng(0).standard_normal((2, 256)).astype(np.float32)
  top = dct_jax.error_feedback(dct_jax.block_top_k(1.0, 8, dense_below=0))
  tx = dct_jax.compressed_mean(top, dct_jax.s2(0.5, feed_back=True, rungs=1), 'data')
  update, state = dct_jax.simulate(tx, jnp.zeros(256), 2)
  norms, total = [], 0
  for _ in range(120):
    mean, state = update(g, state, None)
    norms.append(float(jnp.linalg.norm(state.residual[0])))
    total += np.asarray(mean)
  assert max(norms[60:]) < 1.3 * max(norms[:60])
  np.testing.assert_allclose(total + np.asarray(state.residual[0]).mean(0), 120 * g.mean(0), atol=2e-3)

  ids, residual, grown = np.arange(32), np.zeros((32, 8), np.float32), []
  for step in range(30):
    keys = oracle.keys(0, step, 1)
    x = residual + g[0].reshape(32, 8)
    residual = x - oracle.query(ids, 8, oracle.sketch(ids, x, keys, 128), keys)
    grown.append(np.linalg.norm(residual))
  assert grown[-1] > 100 * grown[0]


@pytest.mark.parametrize('values', ['float32', *slow('int16')])
def test_what_is_fed_back_is_all_that_was_not_told(values):
  """Rounding to narrow values included: the residuals and the sum are the gradients, in every step."""
  rng, workers = np.random.default_rng(0), 8
  top = dct_jax.error_feedback(dct_jax.block_top_k(0.5, 3, dense_below=0))
  tx = dct_jax.compressed_mean(top, dct_jax.s2(1.0, values=values, feed_back=True, rungs=2), 'data')
  update, state = dct_jax.simulate(tx, jnp.zeros(97), workers)
  for step in range(4):
    g = rng.standard_normal((workers, 97)).astype(np.float32)
    g[3, 5] = np.nan if step == 2 else g[3, 5]
    before = np.asarray(state.residual[0]).reshape(workers, -1)
    mean, state = update(g, state, None)
    left = np.asarray(state.residual[0]).reshape(workers, -1)
    g[3] = 0 if step == 2 else g[3]  # what is not a number is nowhere, and everybody else waits
    np.testing.assert_allclose(left.sum(0) + workers * np.asarray(mean), before.sum(0) + g.sum(0), atol=3e-5)


def test_narrow_values_are_unbiased_and_half_as_long():
  g = np.random.default_rng(0).standard_normal((4, 512)).astype(np.float32)
  means, bytes_ = {}, {}
  for values in ('float32', 'int16'):
    collective = dct_jax.s2(1.0, values=values, rungs=1)
    tx = dct_jax.compressed_mean(dct_jax.block_top_k(1.0, 32, dense_below=0), collective, 'data')
    update, state = dct_jax.simulate(tx, jnp.zeros(512), 4)
    mean, new = update(g, state, None)
    means[values], bytes_[values] = np.asarray(mean), int(new.stats.receipt.moved_bytes)
  error = means['int16'] - means['float32']
  assert 0 < np.abs(error).max() < 1e-3
  assert abs(error.mean()) < 4 * error.std() / np.sqrt(error.size)
  assert bytes_['int16'] < 0.55 * bytes_['float32']


def test_workers_round_narrow_values_independently():
  """Alike gradients would else be rounded alike, and the error of a mean would be that of one worker."""
  g = np.random.default_rng(0).uniform(0.5, 1, 128).astype(np.float32)
  collective = dct_jax.s2(512.0, values='int16', seed=1, rungs=1)  # so long that nothing collides
  tx = dct_jax.compressed_mean(dct_jax.block_top_k(1.0, 32, dense_below=0), collective, 'data')
  update, state = dct_jax.simulate(tx, jnp.zeros(128), 8)
  error = np.asarray(update(np.stack([g] * 8), state, None)[0]) - g
  level = g.max() / (0xFFFF // 16)
  assert 0 < np.sqrt(np.mean(error**2)) < 0.25 * level  # 0.41 for one, 0.14 for the mean of eight


@pytest.mark.parametrize('lam', [0.13, *slow(2.0)])
def test_training_logs_both_lambdas_and_warns_of_a_load_that_only_a_step_can_tell(lam, caplog):
  mesh = dct_jax.make_mesh(2)
  blocks = dct_jax.block_top_k(1.0, 4, dense_below=0)
  tx = optax.chain(dct_jax.compressed_mean(blocks, dct_jax.s2(lam, rungs=14), 'data'), optax.sgd(0.1))
  params, state, specs = dct_jax.init(tx, {'w': jnp.ones(512)}, mesh)
  step = train.make_step(lambda p, b: jnp.mean((b['x'] @ p['w']) ** 2), tx, mesh, specs)
  x = np.repeat(np.eye(2, dtype=np.float32), 256, axis=1)  # each worker has a half of its own
  with caplog.at_level('WARNING'):
    result = train.run(step, params, state, [train.shard_batch({'x': x}, mesh)], steps=1, progress=False)
  line = result.history[-1]
  assert lam <= line['s2_lambda'] < 1.2 * lam
  assert line['s2_union_lambda'] == pytest.approx(line['s2_lambda'] / 2)
  assert ('too small for its load' in caplog.text) == (lam < 1)


@pytest.mark.parametrize('shared', [4, *slow(0, 8)])
def test_a_sketch_is_sized_by_the_union_whatever_workers_have_in_common(shared):
  workers, unit, own, lam = 4, 16, 8, 0.5
  blocks = dct_jax.block_top_k(own / 512, unit, dense_below=0)
  update, state = dct_jax.simulate(dct_jax.compressed_mean(blocks, dct_jax.s2(lam, of='union'), 'data'),
                                   jnp.zeros(512 * unit), workers=workers)
  g = np.zeros((workers, 512, unit), np.float32)
  g[:, :shared] = 1
  for w in range(workers):
    g[w, 100 * w + 20:100 * w + 20 + own - shared] = 1
  _, state = update(jnp.asarray(g.reshape(workers, -1)), state, None)
  assert lam <= float(state.collective.union_lambda) < 1.25 * lam


@pytest.mark.parametrize(('arguments', 'message'), [
    ({'lam': 0.0}, 'above 0'), ({'lam': float('nan')}, 'above 0'), ({'lam': float('inf')}, 'finite'),
    ({'lam': 1.0, 'rows': 0}, 'at least one row'),
    ({'lam': 1.0, 'of': 'me'}, 'one of'), ({'lam': 1.0, 'values': 'int8'}, 'one of'),
    ({'lam': 1.0, 'rungs': 0}, 'at least 1'), ({'lam': 1.0, 'feed_back': True, 'shrink': False}, 'without bound'),
    ({'lam': 1.0, 'rows': 3, 'feed_back': True}, 'not linear')])
def test_what_cannot_work_is_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    dct_jax.s2(**arguments)


def test_what_it_does_not_carry_is_refused():
  with pytest.raises(ValueError, match='blocks of sparse streams'):
    dct_jax.compressed_mean(dct_jax.qsgd(4), dct_jax.s2(1.0), 'data')
  with pytest.raises(ValueError, match='error_feedback'):
    dct_jax.compressed_mean(dct_jax.block_top_k(0.1), dct_jax.s2(1.0, feed_back=True), 'data')
  with pytest.raises(ValueError, match='rungs'):
    dct_jax.union_sum(0)


def test_a_sketch_that_is_too_small_warns_with_its_load():
  with pytest.warns(RuntimeWarning, match='20.0 entries or more'):
    dct_jax.s2(0.05)
