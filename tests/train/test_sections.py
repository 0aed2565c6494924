"""Steps in timed sections: linear models end with the same weights, whatever exchanges their gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec
from reference import linear as reference

import dct_jax
from dct_jax import train
from dct_jax.data.linear import columns, entries
from dct_jax.data.linear.synthetic import SyntheticLinear, generate
from dct_jax.models import coordinate_descent, linear, penalty
from dct_jax.train import report

SIZE, WORKERS, RATE = 211, 3, 0.5
DATA = generate(SyntheticLinear(num_features=SIZE, teacher_features=20, row_entries=6), 61)
DENSE = reference.dense_rows(*DATA[:3], SIZE)


def train_sgd(algorithm, kind):
  """Two passes; -> settled weights as every device has them, history."""
  mesh, windows = dct_jax.make_mesh(WORKERS), entries.cut(DATA, WORKERS, 8)

  def local(weights, debt, batch):
    read = lambda i: penalty.read(kind, weights, debt, i)
    stream, loss = linear.batch_gradient('logistic', read, batch, windows.distinct)
    return stream, {'loss': loss, 'encoded_bytes': 4 + 8 * stream.count}

  exchange = dct_jax.open_exchange(SIZE, 'data', algorithm=algorithm)
  update = lambda w, d, _, reduced: linear.sgd_update(w, d, reduced, RATE, kind, 1 / WORKERS)
  step = train.make_sectioned_step(local, exchange, update, mesh)
  weights, debt = train.replicate((np.zeros(SIZE, np.float32), penalty.no_debt(kind, SIZE)), mesh)
  batches = [train.shard_batch(linear.Batch(**entries.batch(windows, range(WORKERS), s)), mesh)
             for s in [*range(windows.steps)] * 2]
  result = train.run(step, weights, debt, batches, steps=len(batches), log_every=1, progress=False)
  settled = penalty.settle(kind, result.params, result.opt_state)
  return [np.asarray(x.data) for x in settled.addressable_shards], result.history


@functools.cache
def expected(kind):
  share, batches = 61 // WORKERS, []
  for at in range(0, share, 8):
    parts = [slice(w * share + at, w * share + min(at + 8, share)) for w in range(WORKERS)]
    batches.append([(DENSE[p], DATA.labels[p]) for p in parts])
  return reference.sgd('logistic', np.zeros(SIZE), 2 * batches, RATE, *kind)


@pytest.mark.parametrize(
    'algorithm', ['dense', 'all_gather', 'recursive_double', 'split_all_gather', 'dsar', 'union'])
@pytest.mark.parametrize('kind', [penalty.Penalty(), penalty.Penalty('l1', 0.01)], ids=lambda k: k.kind)
def test_every_exchange_is_lossless(algorithm, kind):
  weights, history = train_sgd(algorithm, kind)
  for replica in weights:
    np.testing.assert_array_equal(replica, weights[0])
  np.testing.assert_allclose(weights[0], expected(kind), rtol=1e-4, atol=1e-6)
  line = history[-1]
  assert all(line[f'{k}_seconds'] > 0 for k in ('local', 'exchange', 'update'))
  assert line['sent_bytes'] > 0
  assert line['total_sent_bytes'] >= line['sent_bytes'] * len(history) * 0.9


@pytest.mark.parametrize('dense', [False, True], ids=['sparse', 'dense'])
def test_coordinate_descent_of_disjoint_slices(dense):
  mesh, table = dct_jax.make_mesh(WORKERS), columns.cut(DATA, WORKERS, 5, seed=0, passes=1)
  exchange = dct_jax.open_exchange(SIZE, 'data', algorithm='dense' if dense else 'all_gather', disjoint=True)
  factor = coordinate_descent.damping(5 * WORKERS, table.features, table.row_entries)

  def local(weights, state, batch):
    mine = jax.tree.map(lambda x: x[lax.axis_index('data')], batch)
    stream = coordinate_descent.coordinate_steps('logistic', penalty.Penalty(), weights, state, mine, factor)
    return stream, {'loss': jnp.mean(state.margins)}

  step = train.make_sectioned_step(local, exchange, coordinate_descent.apply_steps, mesh,
                                   batch_spec=PartitionSpec())
  state = coordinate_descent.ScdState(np.zeros(61, np.float32), DATA.labels)
  weights, state = train.replicate((np.zeros(SIZE, np.float32), state), mesh)
  wanted = np.zeros(SIZE)
  for s in range(table.steps):
    batch = train.replicate(coordinate_descent.Picks(**columns.batch(table, s)), mesh)
    weights, state, _ = step(weights, state, batch)
    chosen = np.concatenate(columns.pick(table, s))
    wanted = reference.scd_step('logistic', wanted, DENSE, DATA.labels, chosen, factor)
  np.testing.assert_allclose(weights, wanted, rtol=1e-3, atol=1e-5)
  np.testing.assert_allclose(state.margins, DENSE @ wanted, rtol=1e-3, atol=1e-4)


def test_scalars_are_means_and_sections_compile_once():
  mesh, traced = dct_jax.make_mesh(4), []

  def local(params, state, batch):
    traced.append(0)
    return batch, {'loss': lax.axis_index('data') * 1.0}

  exchange = lambda x: (lax.psum(x, 'data'), {'sent_bytes': jnp.uint32(7)})
  step = train.make_sectioned_step(local, exchange, lambda p, s, _, x: (p + x.sum(), s + 1), mesh)
  params, state = train.replicate((np.float32(0), np.int32(0)), mesh)
  batch = train.shard_batch(np.ones(8, np.float32), mesh)
  for _ in range(3):
    params, state, metrics = step(params, state, batch)
  assert (float(params), int(state), float(metrics['loss'])) == (24, 3, 1.5)
  assert metrics['sent_bytes'] == 7
  assert len(traced) == 1


def test_an_exchange_that_differs_by_worker_is_refused():
  mesh = dct_jax.make_mesh(2)
  step = train.make_sectioned_step(lambda p, s, b: (b, {'loss': 0.0}), lambda x: (x, {}),
                                   lambda p, s, _, x: (p, s), mesh)
  with pytest.raises(ValueError, match='data'):
    step(*train.replicate((np.float32(0), np.float32(0)), mesh), train.shard_batch(np.ones(2), mesh))


def line(seconds, exchange, sent):
  return {'step': 4, 'pass_seconds': seconds, 'pass_exchange_seconds': exchange, 'total_sent_bytes': sent}


def test_pass_table():
  steps = [{'step': i, 'loss': 1.0, 'local_seconds': 1.0, 'exchange_seconds': 2.0, 'update_seconds': 0.5 * i}
           for i in (1, 3)]
  assert report.one_pass(steps, 4) == {'loss': 1.0, 'pass_local_seconds': 4.0, 'pass_exchange_seconds': 8.0,
                                       'pass_update_seconds': 4.0, 'pass_seconds': 16.0}
  runs = {'dense': [line(4, 3, 1e6), line(6, 5, 4e6)], 'fast': [line(1, 0.5, 1e6)]}
  head, dense, fast = report.pass_table(runs).splitlines()
  assert 'speedup' in head
  assert dense.split() == ['dense', '5.000', '(4.000)', '5.000', '(4.000)', '1.00', '(1.00)', '2.00']
  assert fast.split() == ['fast', '5.000', '(4.000)', '1.000', '(0.500)', '5.00', '(8.00)', '1.00']
  assert '5.000' not in report.pass_table({'fast': runs['fast']})
