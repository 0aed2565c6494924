"""The sharded parameter server: equal to plain training without compression, and to a NumPy server with it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P
from marks import slow
from reference import three_lc as oracle

import dct_jax
from dct_jax import train
from dct_jax.collectives.accounts import mean_words
from dct_jax.collectives.owners import Owners
from dct_jax.contract import Size

SHAPES = {'a': (17, 13), 'b': (5,), 'c': (257,), 'd': ()}


def params_like(shapes=SHAPES, seed=0):
  rng = np.random.default_rng(seed)
  return {k: jnp.asarray(rng.standard_normal(s), jnp.float32) for k, s in shapes.items()}


def gradients(workers, steps, seed=1):
  rng = np.random.default_rng(seed)
  return [{k: jnp.asarray(rng.standard_normal((workers, *s)) ** 3, jnp.float32) for k, s in SHAPES.items()}
          for _ in range(steps)]


def ternary(s=1.0):
  return dct_jax.error_feedback(dct_jax.three_lc(s, dense_below=8))


def run(tx, workers, steps=5):
  """Workers' models and the servers' after some steps, simulated."""
  params = params_like()
  update, state = dct_jax.simulate(tx, params, workers)
  for grads in gradients(workers, steps):
    updates, state = update(grads, state, params)
    params = optax.apply_updates(params, updates)
  return params, state


@pytest.mark.parametrize('workers', [1, 3, *slow(2, 4, 5, 8)])
def test_without_compression_it_is_plain_training(workers):
  whole = dct_jax.cast('float32')
  optimizer = optax.chain(optax.add_decayed_weights(0.1), optax.adam(0.1))
  got, state = run(dct_jax.push_pull(whole, whole, optimizer, 'data', workers=workers), workers)
  want, _ = run(optax.chain(dct_jax.dense_mean('data'), optimizer), workers)
  for k in SHAPES:
    np.testing.assert_allclose(got[k], want[k], rtol=2e-5, atol=2e-6)
  assert dct_jax.server_params(got, state) is got


def numpy_server(workers, steps, s, rate=0.1, momentum=0.9):
  """The paper's parameter server with 3LC, by the oracle: workers' and servers' models."""
  model = {k: np.array(v).reshape(-1) for k, v in params_like().items()}
  each = {k: -(-v.size // workers) for k, v in model.items()}
  cut = lambda k, x, p: np.pad(x, (0, each[k] * workers - x.size), mode='edge')[p * each[k]:(p + 1) * each[k]]
  zeros = lambda: {k: np.zeros(n, np.float32) for k, n in each.items()}
  push_left = [[zeros() for _ in range(workers)] for _ in range(workers)]  # [worker][owner]
  pull_left, speed = [zeros() for _ in range(workers)], [zeros() for _ in range(workers)]
  no_layer_is_small = lambda k: each[k] >= 8

  def compress(k, x, left):
    if not no_layer_is_small(k):
      return x + left, np.zeros_like(x)
    total = x + left
    q, m = oracle.quantize(total, s)
    said = oracle.dequantize(q, m)
    return said, total - said

  for grads in gradients(workers, steps):
    for k in model:
      answers = []
      for p in range(workers):
        total = np.zeros(each[k], np.float32)
        for w in range(workers):
          mine = cut(k, np.array(grads[k][w]).reshape(-1), p)
          said, push_left[w][p][k] = compress(k, mine, push_left[w][p][k])
          total += said
        speed[p][k] = total / np.float32(workers) + np.float32(momentum) * speed[p][k]
        said, pull_left[p][k] = compress(k, np.float32(-rate) * speed[p][k], pull_left[p][k])
        answers.append(said)
      model[k] = model[k] + np.concatenate(answers)[:model[k].size]
  ahead = {k: model[k] + np.concatenate([e[k] for e in pull_left])[:model[k].size] for k in model}
  return model, ahead


@pytest.mark.parametrize('workers', [3, *slow(1, 4)])
def test_3lc_in_both_directions_is_the_papers_server(workers):
  optimizer = optax.sgd(0.1, momentum=0.9)
  tx = dct_jax.push_pull(ternary(1.5), ternary(1.5), optimizer, 'data', workers=workers, rungs=1)
  got, state = run(tx, workers)
  model, ahead = numpy_server(workers, 5, 1.5)
  servers = dct_jax.server_params(got, state)
  for k in SHAPES:
    np.testing.assert_allclose(np.ravel(got[k]), model[k], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(np.ravel(servers[k]), ahead[k], rtol=1e-5, atol=1e-5)


def test_nothing_is_lost_in_either_direction():
  """SGD's servers move by the sum of the means; what they do not know yet is in push residuals."""
  tx = dct_jax.push_pull(ternary(), ternary(1.75), optax.sgd(1.0), 'data', workers=4, rungs=3)
  got, state = run(tx, 4, steps=7)
  before, servers = params_like(), dct_jax.server_params(got, state)
  for i, k in enumerate(SHAPES):
    mean = sum(np.asarray(g[k], np.float64).mean(0) for g in gradients(4, 7))
    kept = np.asarray(state.push_residual[i], np.float64).sum(0).reshape(-1)[:mean.size].reshape(mean.shape) / 4
    np.testing.assert_allclose(servers[k], before[k] - mean + kept, rtol=1e-4, atol=1e-4)


def test_devices_agree_bit_for_bit_with_simulated_workers():
  # A product with a power of two: XLA may fuse other ones with a sum, in one of the two programs.
  make = lambda: dct_jax.push_pull(ternary(), ternary(), optax.sgd(0.5), 'data', workers=4, rungs=3)
  want, simulated = run(make(), 4)
  mesh, tx = dct_jax.make_mesh(4), make()
  params, state, specs = dct_jax.init(tx, params_like(), mesh)

  @jax.jit
  def step(params, state, grads):
    def one(params, state, grads):
      updates, state = tx.update(jax.tree.map(lambda x: x[0], grads), state, params)
      return optax.apply_updates(params, updates), state
    return jax.shard_map(one, mesh=mesh, in_specs=(P(), specs, P('data')), out_specs=(P(), specs))(
        params, state, grads)

  for grads in gradients(4, 5):
    params, state = jax.block_until_ready(step(params, state, grads))
  assert step._cache_size() == 1
  for k in SHAPES:
    np.testing.assert_array_equal(params[k], want[k])
    copies = [np.asarray(s.data) for s in params[k].addressable_shards]
    assert all((c == copies[0]).all() for c in copies)
  servers, theirs = (dct_jax.server_params(*x) for x in ((params, state), (want, simulated)))
  for k in SHAPES:
    np.testing.assert_array_equal(servers[k], theirs[k])


@pytest.mark.slow
def test_any_compressor_in_either_direction():
  top = dct_jax.error_feedback(dct_jax.top_k(0.2, dense_below=8))
  pairs = [(top, dct_jax.cast('float16')), (dct_jax.qsgd(8, 32, dense_below=8), top), (ternary(), top)]
  for push, pull in pairs:
    params, state = run(dct_jax.push_pull(push, pull, optax.sgd(0.01), 'data', workers=2, rungs=2), 2, steps=3)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(params))
    assert state.step == 3 and state.stats.corrupt == 0


def test_the_accounts_are_those_of_the_messages():
  workers = 4
  tx = dct_jax.push_pull(ternary(), ternary(), optax.sgd(0.1), 'data', workers=workers, rungs=3)
  _, state = run(tx, workers)
  push, pull, both = state.push_receipt, state.pull_receipt, state.stats.receipt
  dense = 4 * sum(int(np.prod(s)) for s in SHAPES.values())
  assert 0 < push.encoded_bytes < dense and 0 < pull.encoded_bytes < dense
  assert both.encoded_bytes == push.encoded_bytes + pull.encoded_bytes
  assert push.sent_bytes * workers == push.moved_bytes * (workers - 1)  # the own message stays
  assert push.moved_bytes >= push.encoded_bytes
  assert 0 < push.density <= 1


def test_bytes_of_pushes_and_pulls_are_those_of_the_oracles_messages():
  workers = 3
  tx = dct_jax.push_pull(ternary(), ternary(), optax.sgd(0.1), 'data', workers=workers, rungs=1)
  _, state = run(tx, workers, steps=1)
  grads = {k: np.array(v).reshape(workers, -1) for k, v in gradients(workers, 1)[0].items()}
  each = {k: -(-v.shape[1] // workers) for k, v in grads.items()}
  large, small = ([k for k in SHAPES if (each[k] >= 8) == big] for big in (True, False))
  sizes, few = [each[k] for k in large], sum(each[k] for k in small)

  def owned(w, p):
    padded = {k: np.pad(v[w], (0, each[k] * workers - v.shape[1]), mode='edge') for k, v in grads.items()}
    part = {k: v[p * each[k]:(p + 1) * each[k]] for k, v in padded.items()}
    return [part[k] for k in large], np.concatenate([part[k] for k in small])

  pushes = [[oracle.encode(*owned(w, p), 1.0)[0] for p in range(workers)] for w in range(workers)]
  pushed = sum(int(m[1]) for row in pushes for m in row)
  assert state.push_receipt.encoded_bytes == 4 * -(-pushed // workers)
  pulled = 0
  for p in range(workers):
    mean = [sum(x) / np.float32(workers) for x in zip(
        *(oracle.decode(pushes[w][p], sizes, few) for w in range(workers)), strict=True)]
    *layers, dense = (np.float32(-0.1) * x for x in mean)
    pulled += int(oracle.encode(layers, dense, 1.0)[0][1]) + 8  # and a note
  assert state.pull_receipt.encoded_bytes == 4 * -(-pulled // workers)
  dense = 4 * sum(v.shape[1] for v in grads.values())
  assert state.dense_bytes == pytest.approx(dense * (1 + 1 / workers))


def test_large_models_are_traced_and_accounted():
  """2^28 values for 16 workers: sums over workers would not fit 32 bits."""
  shapes = {'a': jax.ShapeDtypeStruct((2**28,), jnp.float32)}
  tx = dct_jax.push_pull(ternary(), ternary(), optax.sgd(0.1), 'data', workers=16)
  state = jax.eval_shape(tx.init, shapes)
  both = jax.vmap(tx.update, in_axes=(0, None, None), axis_name='data')
  grads = jax.tree.map(lambda x: jax.ShapeDtypeStruct((16, *x.shape), x.dtype), shapes)
  jax.eval_shape(both, grads, state, shapes)

  words = jnp.full(32, 140_000_000, jnp.uint32)
  size = Size(6, 100, 140_000_000, 140_000_000)
  receipt = Owners(None)._receipt(mean_words(words), 31 * mean_words(words) // 32, mean_words(words) * 0, words,
                                  jnp.uint32(100), size, 32, 1)
  assert receipt.encoded_bytes == 560_000_000 and receipt.density == pytest.approx(1)


def test_entries_that_fill_a_slice_up_change_nothing():
  """Ten entries for four owners, whose last slice has one: an average must not see what is not there."""
  c = dct_jax.error_feedback(dct_jax.one_bit(dense_below=0))
  tx = dct_jax.push_pull(c, c, optax.sgd(1.0), 'data', workers=4)
  params = {'a': jnp.zeros(10)}
  update, state = dct_jax.simulate(tx, params, 4)
  for _ in range(3):
    updates, state = update({'a': jnp.ones((4, 10))}, state, params)
    np.testing.assert_allclose(updates['a'], -np.ones(10), rtol=1e-6)


def test_a_nan_stops_nothing_and_spoils_nothing():
  tx = dct_jax.push_pull(ternary(), ternary(), optax.adam(0.1), 'data', workers=2)
  params = params_like()
  update, state = dct_jax.simulate(tx, params, 2)
  good = gradients(2, 1)[0]
  _, state = update(good, state, params)
  bad = jax.tree.map(lambda x: x.at[1].set(jnp.nan), good)
  updates, after = update(bad, state, params)
  assert not any(x.any() for x in jax.tree.leaves(updates))
  assert after.stats.nonfinite == 1
  for a, b in zip(jax.tree.leaves(state.optimizer), jax.tree.leaves(after.optimizer), strict=True):
    np.testing.assert_array_equal(a, b)
  for a, b in zip(state.pull_residual, after.pull_residual, strict=True):
    np.testing.assert_array_equal(a, b)
  for i, k in enumerate(SHAPES):
    healthy = np.asarray(after.push_residual[i][0], np.float64) - np.asarray(state.push_residual[i][0])
    healthy = healthy.reshape(-1)[:good[k][0].size]
    np.testing.assert_allclose(healthy, np.ravel(good[k][0]), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(after.push_residual[i][1], state.push_residual[i][1])


@pytest.mark.parametrize('policy', ['skip', 'pass', 'raise'])
def test_a_nan_of_the_owners_optimizer_costs_its_slice_one_step(policy):
  touchy = optax.stateless(lambda grads, _: jax.tree.map(lambda g: jnp.where(g > 50, jnp.nan, -g), grads))
  counted = optax.chain(touchy, optax.trace(0.5))
  tx = dct_jax.push_pull(ternary(), ternary(), counted, 'data', workers=2, nonfinite=policy)
  params = {'a': jnp.zeros(40)}
  update, state = dct_jax.simulate(tx, params, 2)
  good = {'a': jnp.tile(jnp.linspace(-1.0, 1.0, 40), (2, 1))}
  _, state = update(good, state, params)
  much = {'a': good['a'].at[:, 0].set(100.0)}  # finite; in the first owner's slice
  updates, after = update(much, state, params)
  if policy == 'raise':
    with pytest.raises(FloatingPointError, match='1 workers'):
      dct_jax.raise_if_bad(after)
  assert after.stats.nonfinite == 1
  if policy == 'pass':
    assert jnp.isnan(updates['a']).all()
  else:
    assert not updates['a'][:20].any() and updates['a'][20:].any()
  assert all(np.isfinite(x).all() for x in jax.tree.leaves((after.optimizer, after.pull_residual)))
  for old, new in zip(jax.tree.leaves((state.optimizer, state.pull_residual)),
                      jax.tree.leaves((after.optimizer, after.pull_residual)), strict=True):
    np.testing.assert_array_equal(new[0], old[0])  # the first owner's, as if the step had not been
    assert (np.asarray(new[1]) != np.asarray(old[1])).any()
  updates, after = update(good, after, params)
  assert jnp.isfinite(updates['a']).all() and updates['a'][:20].any() and after.stats.nonfinite == 1


def test_a_step_with_a_corrupt_push_is_called_off():
  """One word changes on its way to one owner: nobody's model moves, and gradients wait in the residuals."""
  whole = ternary()
  damaged = whole._replace(decompress=lambda m, *rest: whole.decompress(m.at[0, -1].add(1), *rest))
  params = {'a': jnp.zeros(40), 'b': jnp.zeros(30)}
  tx = dct_jax.push_pull(damaged, ternary(), optax.sgd(0.5, momentum=0.9), 'data', workers=2, rungs=1)
  update, state = dct_jax.simulate(tx, params, 2)
  grads = jax.tree.map(lambda x: jnp.tile(jnp.linspace(-1.0, 1.0, x.size), (2, 1)), params)
  updates, after = update(grads, state, params)
  assert int(after.stats.corrupt) == 2  # one at each owner
  assert not any(np.asarray(u).any() for u in jax.tree.leaves(updates))
  for old, new in zip(jax.tree.leaves((state.optimizer, state.pull_residual)),
                      jax.tree.leaves((after.optimizer, after.pull_residual)), strict=True):
    np.testing.assert_array_equal(old, new)
  for e, g in zip(after.push_residual, jax.tree.leaves(grads), strict=True):
    np.testing.assert_allclose(np.asarray(e).reshape(2, -1)[:, :g.shape[1]], g, atol=1e-6)
  with pytest.raises(RuntimeError, match='2 messages failed their checks'):
    dct_jax.raise_if_bad(after)


def test_two_local_steps():
  """Accumulated, not averaged: half as many exchanges, each of both gradients."""
  inner = dct_jax.push_pull(dct_jax.cast('float32'), dct_jax.cast('float32'), optax.sgd(0.1), 'data', workers=2)
  tx = dct_jax.accumulate(optax.chain(optax.scale(2.0), inner), every=2)
  params = params_like()
  update, state = dct_jax.simulate(tx, params, 2)
  one, two = gradients(2, 2)
  updates, state = update(one, state, params)
  assert not any(x.any() for x in jax.tree.leaves(updates))
  assert state.inner[1].stats.receipt.sent_bytes == 0 and state.inner[1].push_receipt.sent_bytes == 0
  updates, state = update(two, state, params)
  for k in SHAPES:
    np.testing.assert_allclose(updates[k], -0.1 * (one[k] + two[k]).mean(0), rtol=1e-5, atol=1e-6)


def test_bad_arguments():
  whole = dct_jax.cast('float32')
  with pytest.raises(ValueError, match="push must not be a compressor for psum.*cast\\('float32'\\)"):
    dct_jax.push_pull(dct_jax.identity(), whole, optax.sgd(0.1))
  with pytest.raises(ValueError, match='workers must be at least 1, and 1 without an axis'):
    dct_jax.push_pull(whole, whole, optax.sgd(0.1), workers=2)
  with pytest.raises(ValueError, match='nonfinite must be one of'):
    dct_jax.push_pull(whole, whole, optax.sgd(0.1), nonfinite='ignore')
  tx = dct_jax.push_pull(whole, whole, optax.sgd(0.1), 'data', workers=3)
  with pytest.raises(ValueError, match="made for workers=3, but axis_name='data' has 2"):
    dct_jax.init(tx, params_like(), dct_jax.make_mesh(2))
  with pytest.raises(ValueError, match='one push_pull'):
    dct_jax.server_params(params_like(), optax.sgd(0.1).init(params_like()))


def test_a_checkpoint_restores_it_bit_for_bit(tmp_path):
  """And another number of workers is refused, by name: slices are dealt out."""
  def start(workers):
    tx = dct_jax.push_pull(ternary(), ternary(), optax.adam(0.1), 'data', workers=workers)
    return tx, dct_jax.make_mesh(workers), *dct_jax.init(tx, params_like(), dct_jax.make_mesh(workers))

  tx, mesh, params, state, specs = start(2)
  step = jax.jit(jax.shard_map(
      lambda p, s, g: tx.update(jax.tree.map(lambda x: x[0], g), s, p)[1], mesh=mesh,
      in_specs=(P(), specs, P('data')), out_specs=specs))
  for grads in gradients(2, 3):
    state = jax.block_until_ready(step(params, state, grads))
  checkpoints = train.Checkpoints(tmp_path, {})
  checkpoints.save(3, params, state)
  _, again, at = train.Checkpoints(tmp_path, {}).restore(params, state, specs, mesh)
  assert at == 3
  for x, y in zip(jax.tree.leaves(state), jax.tree.leaves(again), strict=True):
    np.testing.assert_array_equal(x, y)
  _, mesh, params, state, specs = start(4)
  with pytest.raises(ValueError, match='slices of push_pull .* cannot be restored onto another number'):
    train.Checkpoints(tmp_path, {}).restore(params, state, specs, mesh)


def test_every_message_is_rounded_with_random_numbers_of_its_own():
  """Else owners would round their deltas as their own push was rounded, and means were not right any more."""
  half = jnp.linspace(-1, 1, 200)
  random, plain = dct_jax.stochastic_ternary(dense_below=0), dct_jax.cast('float32')

  def said(push, pull, grad, workers):
    tx = dct_jax.push_pull(push, pull, optax.sgd(1.0), 'data', workers=workers)
    update, state = dct_jax.simulate(tx, grad, workers=workers)
    return np.asarray(update(jnp.stack([grad] * workers), state, grad)[0])

  first, second = np.split(said(random, plain, jnp.tile(half, 2), 2), 2)  # two owners with the same gradient
  assert np.mean(first != second) > 0.2
  out, back = said(random, plain, half, 1), said(plain, random, half, 1)
  assert np.mean(out != back) > 0.2
