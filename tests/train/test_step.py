"""The step, its metrics, and the batches that it takes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import program
import pytest

import dct_jax
from dct_jax import train

pytestmark = pytest.mark.plain_code

KEYS = {'loss', 'encoded_bytes', 'moved_bytes', 'sent_bytes', 'overflow_bytes', 'density',
        'nonfinite', 'drained', 'corrupt', 'refused'}


def one_step(p, step=None, batch=None):
  batch = next(program.make_batches(p.mesh)) if batch is None else batch
  return jax.device_get((p.step if step is None else step)(p.params, p.state, batch))


def test_metrics_are_those_of_the_receipt():
  p = program.Program(8)
  params, state, metrics = one_step(p)
  assert set(metrics) == KEYS
  assert all(np.shape(v) == () for v in metrics.values())
  assert metrics['encoded_bytes'] == state[0].stats.receipt.encoded_bytes > 0
  assert params['w1'].shape == program.SIZES['w1']


def test_loss_is_the_mean_over_workers_and_training_lowers_it():
  p = program.Program(8)
  batch = next(program.make_batches(p.mesh))
  expected = program.loss_fn(program.make_params(), jax.device_get(batch))
  metrics = one_step(p, batch=batch)[2]
  np.testing.assert_allclose(metrics['loss'], expected, rtol=1e-6)
  p = program.Program(8)
  losses = [line['loss'] for line in p.run(60).history]
  assert np.mean(losses[-5:]) < 0.7 * losses[0]


def test_steps_are_compiled_once():
  p = program.Program(8)
  p.run(3)
  assert p.step._cache_size() == 1


def test_dense_step_equals_plain_gradient_descent():
  p = program.Program(8, optax.chain(dct_jax.dense_mean('data'), optax.sgd(0.1)))
  batch = next(program.make_batches(p.mesh))
  got = one_step(p, batch=batch)[0]
  params = program.make_params()
  grads = jax.grad(program.loss_fn)(params, jax.device_get(batch))
  want = jax.tree.map(lambda x, g: x - 0.1 * g, params, grads)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, want)


def aux_loss(params, batch):
  return program.loss_fn(params, batch), {'rows': batch['x'].shape[0], 'first': batch['x'][0, 0]}


def test_aux_scalars_are_averaged():
  p = program.Program(8)
  step = train.make_step(aux_loss, p.tx, p.mesh, p.specs, has_aux=True)
  batch = next(program.make_batches(p.mesh))
  firsts = np.asarray(batch['x'])[::4, 0]
  metrics = one_step(p, step, batch)[2]
  assert metrics['rows'] == 4
  np.testing.assert_allclose(metrics['first'], firsts.mean(), rtol=1e-6)


@pytest.mark.parametrize(('aux', 'message'), [
    (lambda b: {'density': 1.0}, r"taken=\['density'\]"),
    (lambda b: {'x': b['x']}, "name='x'"),
    (lambda b: 1.0, 'dict of scalars')])
def test_bad_aux_is_refused(aux, message):
  p = program.Program(2)
  fn = lambda params, batch: (program.loss_fn(params, batch), aux(batch))
  step = train.make_step(fn, p.tx, p.mesh, p.specs, has_aux=True)
  with pytest.raises(ValueError, match=message):
    one_step(p, step)


def test_several_compressed_means_add_up():
  labels = {'w1': 'a', 'w2': 'b'}
  make = lambda: optax.chain(dct_jax.dct_dp(0.9, 4, 'data', dense_below=0), optax.sgd(0.1))
  tx = optax.multi_transform({'a': make(), 'b': make()}, labels)
  _, state, metrics = one_step(program.Program(4, tx))
  means = [x for x in jax.tree.leaves(
      state, is_leaf=lambda x: isinstance(x, dct_jax.CompressedMeanState))
           if isinstance(x, dct_jax.CompressedMeanState)]
  assert len(means) == 2
  assert metrics['sent_bytes'] == sum(int(m.stats.receipt.sent_bytes) for m in means)
  assert {'density/0', 'density/1'} <= set(metrics)


def test_without_a_compressed_mean_there_is_only_the_loss():
  tx = optax.stateless(lambda g, _: jax.tree.map(lambda x: -0.1 * jax.lax.pmean(x, 'data'), g))
  assert set(one_step(program.Program(2, tx))[2]) == {'loss'}


def test_evaluation_is_the_mean_over_workers():
  p = program.Program(8)
  batch = next(program.make_batches(p.mesh))
  evaluate = train.make_eval(lambda q, b: {'loss': program.loss_fn(q, b)}, p.mesh)
  np.testing.assert_allclose(
      evaluate(p.params, batch)['loss'],
      program.loss_fn(program.make_params(), jax.device_get(batch)), rtol=1e-6)


def test_batches_are_split_in_order():
  mesh = dct_jax.make_mesh(4)
  batch = train.shard_batch({'x': np.arange(8.0, dtype=np.float32)}, mesh)
  assert [s.data.tolist() for s in batch['x'].addressable_shards] == [
      [0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize('x', [np.zeros((6, 2)), np.zeros(())])
def test_batches_that_do_not_divide_are_refused(x):
  with pytest.raises(ValueError, match=r"divide among the 4 workers.*batch\['x'\]"):
    train.shard_batch({'x': x}, dct_jax.make_mesh(4))


def test_unknown_axis_is_refused():
  p = program.Program(2)
  with pytest.raises(ValueError, match="axis_name='model'"):
    train.make_step(program.loss_fn, p.tx, p.mesh, p.specs, axis_name='model')
  with pytest.raises(ValueError, match="axis_name='model'"):
    train.shard_batch({'x': jnp.zeros(2)}, p.mesh, 'model')
