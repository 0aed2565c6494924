"""With optax: chains, groups, accumulation, masks; and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P
from marks import slow

import dct_jax

PARAMS = {'a': jnp.ones((40, 30)), 'b': jnp.ones(50), 'c': jnp.ones((3, 3))}
BATCH = jnp.asarray(np.random.default_rng(0).standard_normal((8, 40)), jnp.float32)


def loss_fn(params, batch):
  hidden = jnp.tanh(batch @ params['a'])
  return jnp.mean(hidden @ params['b'][:30]) + jnp.sum(params['b']**2) + jnp.sum(params['c']**2)


def train(tx, params=PARAMS, workers=4, steps=4, **shard_map_options):
  """The README's program; returns parameters and state after some steps."""
  mesh = dct_jax.make_mesh(workers)
  params, state, specs = dct_jax.init(tx, params, mesh)

  @functools.partial(jax.jit, donate_argnums=(0, 1))
  @functools.partial(jax.shard_map, mesh=mesh, in_specs=(P(), specs, P('data')),
                     out_specs=(P(), specs, P()), **shard_map_options)
  def step(params, state, batch):
    loss, grads = dct_jax.local_value_and_grad(loss_fn, 'data')(params, batch)
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state, jax.lax.pmean(loss, 'data')

  losses = []
  for _ in range(steps):
    params, state, loss = step(params, state, BATCH)
    losses.append(float(loss))
  assert step._cache_size() == 1
  return params, state, losses


def dct(**kwargs):
  return dct_jax.dct_dp(0.9, 2, 'data', dense_below=16, **kwargs)


OPTIMIZERS = {'sgd': optax.sgd(0.01), 'momentum': optax.sgd(0.01, momentum=0.9), 'adam': optax.adam(0.01),
              'adamw': optax.adamw(0.01), 'lamb': optax.lamb(0.01)}


@pytest.mark.parametrize('name', ['adam', *slow('sgd', 'momentum', 'adamw', 'lamb')])
def test_any_optimizer_after_it(name):
  _, _, losses = train(optax.chain(dct(), OPTIMIZERS[name]))
  assert losses[-1] < losses[0]


def test_dense_mean_is_the_mean():
  ours, _, _ = train(optax.chain(dct_jax.dense_mean('data'), optax.sgd(0.01)))
  params, _, _ = train(optax.chain(
      optax.stateless(lambda g, _: jax.lax.pmean(g, 'data')), optax.sgd(0.01)))
  for k in PARAMS:
    np.testing.assert_allclose(ours[k], params[k], rtol=1e-6)


def test_groups_send_a_message_each():
  labels = {'a': 'sparse', 'b': 'sparse', 'c': 'exact'}
  tx = optax.chain(
      optax.multi_transform({'sparse': dct(), 'exact': dct_jax.dense_mean('data')}, labels),
      optax.sgd(0.01))
  _, state, losses = train(tx)
  assert losses[-1] < losses[0]
  group = state[0].inner_states['sparse'].inner_state
  assert len(group.residual) == 2
  assert int(group.stats.receipt.encoded_bytes) > 0


def test_accumulate_equals_multi_steps_and_exchanges_half_as_often():
  chain = optax.chain(dct(), optax.sgd(0.01))
  ours, state, _ = train(dct_jax.accumulate(chain, 2), steps=5)
  theirs, _, _ = train(optax.MultiSteps(chain, every_k_schedule=2), steps=5)
  for k in PARAMS:
    np.testing.assert_allclose(ours[k], theirs[k], rtol=1e-6)
  assert int(state.inner[0].step) == 2
  assert int(state.mini_step) == 1
  assert np.asarray(state.pending[0]).any()


def test_accumulate_has_its_exchange_in_a_branch():
  """Nothing is gathered outside the conditional."""
  tx = dct_jax.accumulate(optax.chain(dct(), optax.sgd(0.01)), 2)
  mesh = dct_jax.make_mesh(4)
  params, state, specs = dct_jax.init(tx, PARAMS, mesh)
  step = jax.jit(jax.shard_map(
      lambda p, s, b: tx.update(dct_jax.local_value_and_grad(loss_fn, 'data')(p, b)[1], s, p),
      mesh=mesh, in_specs=(P(), specs, P('data')), out_specs=(P(), specs)))
  text = step.lower(params, state, BATCH).compile().as_text()
  entry = text[text.index('ENTRY'):]
  assert 'all-gather' in text
  assert 'all-gather' not in entry
  assert 'conditional(' in entry


def test_multi_steps_of_optax_works_too():
  tx = optax.MultiSteps(optax.chain(dct(), optax.sgd(0.01)), every_k_schedule=2)
  params, state, _ = train(tx, steps=1)
  np.testing.assert_array_equal(params['a'], PARAMS['a'])
  assert int(state.inner_opt_state[0].step) == 0
  params, state, _ = train(tx, steps=4)
  assert int(state.inner_opt_state[0].step) == 2
  assert (np.asarray(params['a']) != np.asarray(PARAMS['a'])).any()


def test_clipping_before_it_is_local():
  _, _, losses = train(optax.chain(optax.clip_by_global_norm(1.0), dct(), optax.sgd(0.1)))
  assert losses[-1] < losses[0]


def test_momentum_before_it_becomes_each_workers_own():
  """DGC's momentum correction: the trace is of local gradients, so its state is sharded."""
  tx = optax.chain(optax.trace(0.9), dct(), optax.sgd(0.01))
  _, state, losses = train(tx)
  assert state[0].trace['b'].shape == (200,)
  assert losses[-1] < losses[0]


@pytest.mark.parametrize('mask', [{'a': True, 'b': False, 'c': True},
                                  lambda p: jax.tree.map(lambda x: x.ndim == 2, p)])
def test_own_mask_leaves_the_rest_exact(mask):
  tx = optax.chain(dct(mask=mask), optax.sgd(0.01))
  params, state, _ = train(tx, steps=1)
  assert len(state[0].residual) == 2
  dense, _, _ = train(optax.chain(dct_jax.dense_mean('data'), optax.sgd(0.01)), steps=1)
  np.testing.assert_allclose(params['b'], dense['b'], rtol=1e-6)
  receipt = state[0].stats.receipt
  assert int(receipt.encoded_bytes) > 4 * 50  # what goes dense is counted
  assert int(receipt.sent_bytes) > 4 * 50


def test_without_tracking_it_works_as_well():
  tracked, _, _ = train(optax.chain(dct(), optax.sgd(0.01)))
  untracked, _, _ = train(optax.chain(dct(), optax.sgd(0.01)), check_vma=False)
  for k in PARAMS:
    np.testing.assert_array_equal(tracked[k], untracked[k])


def test_optax_masked_around_it_is_refused():
  tx = optax.chain(optax.masked(dct(), {'a': True, 'b': False, 'c': True}), optax.sgd(0.01))
  with pytest.raises(ValueError, match='mask='):
    dct_jax.init(tx, PARAMS, dct_jax.make_mesh(4))


def test_apply_if_finite_around_it_is_refused():
  tx = optax.apply_if_finite(optax.chain(dct(), optax.sgd(0.01)), 3)
  with pytest.raises(ValueError, match='nonfinite='):
    dct_jax.init(tx, PARAMS, dct_jax.make_mesh(4))


def test_summed_gradients_are_refused():
  mesh = dct_jax.make_mesh(4)
  tx = dct()
  params, state, specs = dct_jax.init(tx, PARAMS, mesh)

  def step(params, state, batch):
    grads = jax.grad(loss_fn)(params, batch)
    return tx.update(grads, state, params)

  with pytest.raises(ValueError, match='local_value_and_grad'):
    jax.shard_map(step, mesh=mesh, in_specs=(P(), specs, P('data')), out_specs=(P(), specs))(
        params, state, BATCH)


def test_scalar_and_tiny_parameters():
  params = {'s': jnp.float32(1.0), 'v': jnp.ones(3)}
  tx = optax.chain(dct_jax.dct_dp(0.9, axis_name='data'), optax.sgd(0.1))
  mesh = dct_jax.make_mesh(2)
  params, state, specs = dct_jax.init(tx, params, mesh)
  step = jax.jit(jax.shard_map(
      lambda p, s, b: tx.update(jax.tree.map(lambda x: x * b[0], p), s, p), mesh=mesh,
      in_specs=(P(), specs, P('data')), out_specs=(P(), specs)))
  updates, _ = step(params, state, jnp.array([1.0, 3.0]))
  assert updates['s'].shape == ()
  np.testing.assert_allclose(updates['s'], -0.2, rtol=1e-6)
  np.testing.assert_allclose(updates['v'], -0.2, rtol=1e-6)


def test_a_fresh_state_can_be_donated():
  tx = dct_jax.dct_dp(0.9, dense_below=0)
  x = jnp.ones(100)
  updates, _ = jax.jit(tx.update, donate_argnums=1)((x,), tx.init((x,)))
  assert updates[0].shape == (100,)
