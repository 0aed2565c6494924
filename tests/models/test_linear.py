"""Sparse gradients, updates and lazy penalties against dense NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import linear as reference

from dct_jax.arrays import Stream
from dct_jax.data.linear import entries, libsvm
from dct_jax.data.linear.csr import normalize_rows
from dct_jax.data.linear.synthetic import SyntheticLinear, generate
from dct_jax.models import linear, penalty

pytestmark = pytest.mark.plain_code

SIZE = 60
DATA = generate(SyntheticLinear(num_features=SIZE, teacher_features=20, row_entries=6), 50)
DENSE = reference.dense_rows(*DATA[:3], SIZE)


def make_weights(seed=0):
  return np.random.default_rng(seed).normal(size=SIZE).astype(np.float32)


def make_batch(rows=12, step=0):
  windows = entries.cut(DATA, 1, rows)
  return linear.Batch(**entries.batch(windows, [0], step)), windows


def dense_of(stream):
  """A stream as a dense array, after a check that it is one."""
  count = int(stream.count)
  indices, values = np.asarray(stream.indices), np.asarray(stream.values)
  assert indices.dtype == np.uint32 and values.dtype == np.float32 and stream.count.dtype == np.uint32
  assert np.all(np.diff(indices.astype(np.int64)) > 0)
  assert np.all(indices[:count] < SIZE)
  assert np.all(indices[count:] >= SIZE)
  assert not values[count:].any()
  return reference.add_streams([zip(indices[:count], values[:count], strict=True)], SIZE)


@pytest.mark.parametrize('loss', sorted(linear.LOSSES))
@pytest.mark.parametrize('tight', [False, True])
@pytest.mark.parametrize('step', [0, 4])  # the last one is padded with rows, too
def test_gradient(loss, tight, step):
  batch, windows = make_batch(step=step)
  weights = make_weights()
  capacity = windows.distinct if tight else None
  stream, mean = jax.jit(linear.batch_gradient, static_argnums=(0, 3))(loss, weights, batch, capacity)
  rows = slice(12 * step, 12 * step + 12)
  wanted, gradient = reference.gradient(loss, weights, DENSE[rows], DATA.labels[rows])
  np.testing.assert_allclose(mean, wanted, rtol=1e-5)
  np.testing.assert_allclose(dense_of(stream), gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize('loss', sorted(linear.LOSSES))
def test_slope_is_the_derivative(loss):
  m, y = jnp.array([-2.0, -0.3, 0.1, 0.9, 3.0]), jnp.array([1.0, -1.0, 1.0, 1.0, -1.0])
  slopes = jax.vmap(jax.grad(linear.LOSSES[loss].value))(m, y)
  np.testing.assert_allclose(linear.LOSSES[loss].slope(m, y), slopes, rtol=1e-5)


@pytest.mark.parametrize('loss', sorted(linear.LOSSES))
def test_large_margins_are_finite(loss):
  m, y = jnp.array([-1e4, 1e4]), jnp.array([1.0, 1.0])
  kind = linear.LOSSES[loss]
  assert np.isfinite(kind.value(m, y)).all() and np.isfinite(kind.slope(m, y)).all()


def test_unknown_losses_are_refused():
  with pytest.raises(ValueError, match="loss='magic'"):
    linear.batch_gradient('magic', make_weights(), make_batch()[0])


def test_hinge_sends_no_zeros():
  batch, _ = make_batch()
  weights = 50 * jnp.asarray(np.linalg.lstsq(DENSE[:12], DATA.labels[:12], rcond=None)[0], jnp.float32)
  stream, mean = linear.batch_gradient('hinge', weights, batch)
  assert mean == 0 and stream.count == 0
  assert not dense_of(stream).any()
  stream, _ = linear.batch_gradient('hinge', make_weights(), batch)
  assert stream.count == np.count_nonzero(dense_of(stream))


def test_unsorted_entries_can_be_sorted():
  batch, _ = make_batch()
  order = np.random.default_rng(0).permutation(batch.rows.size)
  mixed = linear.Batch(batch.rows[order], batch.indices[order], batch.values[order], batch.labels)
  weights = make_weights()
  a, b = (linear.batch_gradient('logistic', weights, x)[0] for x in (batch, linear.sort_batch(mixed)))
  np.testing.assert_array_equal(a.indices, b.indices)
  np.testing.assert_allclose(a.values, b.values, rtol=1e-5, atol=1e-7)


def test_measure():
  batch, _ = make_batch(step=4)  # two rows
  weights = make_weights()
  found = linear.measure('logistic', weights, batch)
  margins = DENSE[48:] @ weights
  assert found['rows'] == 2
  assert found['accuracy'] == np.sum((margins > 0) == (DATA.labels[48:] > 0))
  losses, _ = reference.loss_and_slope('logistic', margins, DATA.labels[48:])
  np.testing.assert_allclose(found['loss'], losses.sum(), rtol=1e-5)


def run_sgd(loss, kind, dense, passes=3, rate=0.5):
  """Two workers in turn; returns settled weights."""
  windows = entries.cut(DATA, 2, 6)
  weights, debt = jnp.asarray(make_weights()), penalty.no_debt(kind, SIZE)

  @functools.partial(jax.jit, donate_argnums=(0, 1))
  def step(weights, debt, batches):
    read = lambda i: penalty.read(kind, weights, debt, i)
    streams = [linear.batch_gradient(loss, read, b)[0] for b in batches]
    total = sum(jnp.zeros(SIZE).at[linear.live_indices(s, SIZE)].add(s.values, mode='drop') for s in streams)
    if not dense:
      index = jnp.nonzero(total, size=SIZE, fill_value=SIZE)[0]
      total = Stream(index.astype(jnp.uint32), total.at[index].get(mode='fill', fill_value=0),
                     jnp.sum(total != 0, dtype=jnp.uint32))
    return linear.sgd_update(weights, debt, total, rate, kind, 0.5)

  for _ in range(passes):
    for s in range(windows.steps):
      weights, debt = step(weights, debt, [linear.Batch(**entries.batch(windows, [w], s)) for w in (0, 1)])
  return np.asarray(penalty.settle(kind, weights, debt))


@pytest.mark.parametrize(('loss', 'kind', 'strength', 'dense'), [
    ('hinge', 'none', 0.0, False), ('hinge', 'l2', 0.05, False), ('hinge', 'l2', 0.05, True),
    ('logistic', 'none', 0.0, True), ('logistic', 'l2', 0.05, False),
    ('squared', 'none', 0.0, False), ('squared', 'l1', 0.02, False), ('squared', 'l1', 0.02, True)])
def test_sgd_pays_as_if_in_every_step(loss, kind, strength, dense):
  weights = run_sgd(loss, penalty.make_penalty(kind, strength), dense)
  part = lambda w, s: slice(25 * w + 6 * s, min(25 * w + 6 * s + 6, 25 * w + 25))
  batches = [[(DENSE[part(w, s)], DATA.labels[part(w, s)]) for w in (0, 1)] for s in range(5)]
  wanted = reference.sgd(loss, make_weights().astype(np.float64), 3 * batches, 0.5, kind, strength)
  np.testing.assert_allclose(weights, wanted, rtol=2e-4, atol=2e-5)


def test_lasso_is_sparse():
  weights = run_sgd('squared', penalty.make_penalty('l1', 0.08), dense=False, passes=40, rate=0.1)
  assert 0 < np.count_nonzero(weights) < SIZE / 2
  without = run_sgd('squared', penalty.Penalty(), dense=False, passes=40, rate=0.1)
  assert np.count_nonzero(without) > SIZE / 2


def test_update_is_in_place_and_has_no_dense_gradient():
  size = 1_000_003
  step = jax.jit(lambda w, d, s: linear.sgd_update(w, d, s, 0.1), donate_argnums=(0, 1))
  stream = Stream(jnp.arange(8, dtype=jnp.uint32), jnp.ones(8), jnp.uint32(8))
  compiled = step.lower(jnp.zeros(size), penalty.no_debt(penalty.Penalty(), size), stream).compile()
  assert compiled.memory_analysis().temp_size_in_bytes < 4 * size / 10
  assert 'input_output_alias' in compiled.as_text()


@pytest.mark.parametrize(('kind', 'strength'), [('l3', 1.0), ('l1', -1.0), ('l1', 0.0), ('none', 1.0)])
def test_bad_penalties(kind, strength):
  with pytest.raises(ValueError, match='must be'):
    penalty.make_penalty(kind, strength)


def test_a9a(shared_data):
  """The known accuracy of linear classifiers on Adult is 84.9-85.0%; always -1 has 76.4%."""
  paths = [shared_data / 'a9a/a9a.xz', shared_data / 'a9a/a9a.t.xz']
  train, test = map(normalize_rows, libsvm.read_libsvm_sets(paths))
  windows, kind = entries.cut(train, 1, 400), penalty.Penalty()
  weights, debt = jnp.zeros(train.num_features), penalty.no_debt(kind, train.num_features)

  @jax.jit
  def step(weights, debt, batch):
    stream, _ = linear.batch_gradient('logistic', weights, batch, windows.distinct)
    return linear.sgd_update(weights, debt, stream, 10.0)

  for s in [*range(windows.steps)] * 2:
    weights, debt = step(weights, debt, linear.Batch(**entries.batch(windows, [0], s)))
  whole = entries.cut(test, 1, len(test.labels))
  found = linear.measure('logistic', weights, linear.Batch(**entries.batch(whole, [0], 0)))
  assert found['accuracy'] / found['rows'] > 0.845
