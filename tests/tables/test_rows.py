"""Training with tables: the same on any number of workers, saved and restored, and NaN stays out."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from marks import slow

import dct_jax
from dct_jax import tables as embeddings
from dct_jax import train
from dct_jax.tables import RowExchange

pytestmark = pytest.mark.plain_code

VOCABULARIES, WIDTH, BATCH = (40, 3, 17, 5, 9), 4, 12


def loss_fn(params, rows, batch):
  logits = jnp.einsum('bfd,fd->b', rows, params['w']) + batch['dense'] @ params['v']
  return optax.sigmoid_binary_cross_entropy(logits, batch['label']).mean(), {'size': jnp.float32(rows.size)}


def make_batch(step, bad_worker=None, workers=1):
  rng = np.random.default_rng([5, step])
  dense = rng.standard_normal((BATCH, 3)).astype(np.float32)
  if bad_worker is not None:
    dense[np.arange(BATCH) * workers // BATCH == bad_worker] = np.nan
  ids = np.stack([rng.integers(0, v, BATCH) for v in VOCABULARIES], 1).astype(np.int32)
  return {'dense': dense, 'categories': ids, 'label': (ids[:, 4] % 2).astype(np.float32)}


class Setup:
  def __init__(self, workers, row_optimizer='row_adagrad', mean=None):
    self.mesh = dct_jax.make_mesh(workers)
    self.layout = embeddings.deal(VOCABULARIES, workers)
    self.exchange = RowExchange(self.layout)
    optimizer = embeddings.make_optimizer(row_optimizer, 0.5)
    self.tx = optax.chain(mean or dct_jax.dense_mean('data'), optax.sgd(0.5))
    params = {'w': 0.1 * jnp.ones((len(VOCABULARIES), WIDTH)), 'v': jnp.zeros(3)}
    self.params, state, specs = dct_jax.init(self.tx, params, self.mesh)
    tables = embeddings.init_tables(jax.random.PRNGKey(0), self.layout, WIDTH)
    self.state, self.specs = embeddings.init_rows(optimizer, tables, state, specs, self.mesh, layout=self.layout)
    self.step = embeddings.make_row_step(loss_fn, self.tx, optimizer, self.exchange, self.mesh, self.specs)

  def run(self, steps, params=None, state=None, start=0, **batch):
    params, state = (params, state) if params is not None else (self.params, self.state)
    losses = []
    for i in range(start, steps):
      placed = train.shard_batch(make_batch(i, **batch), self.mesh)
      params, state, metrics = self.step(params, state, placed)
      losses.append(float(metrics['loss']))
    return params, state, losses, metrics

  def tables(self, state):
    return self.tables_of(state.tables)

  def tables_of(self, array):
    parts = np.asarray(array).reshape(len(self.layout.slots), self.layout.rows, -1)
    begin, slots = self.layout.begin, self.layout.slots.shape[1]
    return np.concatenate([parts[self.layout.place[f] // slots, begin[f]:begin[f] + v]
                           for f, v in enumerate(VOCABULARIES)])


@pytest.mark.parametrize('row_optimizer', ['row_adagrad', *slow('sgd', 'adagrad')])
def test_any_number_of_workers_learns_the_same(row_optimizer):
  runs = {}
  for workers in (1, 2, 4):
    setup = Setup(workers, row_optimizer)
    params, state, losses, metrics = setup.run(6)
    runs[workers] = (setup.tables(state), params, losses)
    assert metrics['row_bytes'] == setup.exchange.sent_bytes(BATCH // workers, WIDTH)
    assert metrics['size'] == BATCH // workers * len(VOCABULARIES) * WIDTH
  for workers in (2, 4):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6), runs[1], runs[workers])
  assert runs[1][2][-1] < runs[1][2][0]


def test_a_restored_run_goes_on_bit_for_bit(tmp_path):
  setup = Setup(2, mean=dct_jax.dct_dp(0.5, 3, 'data', dense_below=0))
  whole_params, whole_state, *_ = setup.run(6)
  setup = Setup(2, mean=dct_jax.dct_dp(0.5, 3, 'data', dense_below=0))
  params, state, *_ = setup.run(3)
  train.Checkpoints(tmp_path, {}).save(3, params, state)
  fresh = Setup(2, mean=dct_jax.dct_dp(0.5, 3, 'data', dense_below=0))
  saved = train.Checkpoints(tmp_path, {})
  params, state, at = saved.restore(fresh.params, fresh.state, fresh.specs, fresh.mesh)
  params, state, *_ = fresh.run(6, params, state, at)
  jax.tree.map(np.testing.assert_array_equal, (params, state), (whole_params, whole_state))


@pytest.mark.parametrize('bad_worker', [0, 1])
def test_what_is_not_a_number_changes_no_table(bad_worker):
  assert_no_table_changes(Setup(2), bad_worker)


def assert_no_table_changes(setup, bad_worker):
  """In a step in which one worker's batch has no numbers, after two good ones."""
  params, state, *_ = setup.run(2)
  before = setup.tables(state)
  _, state, losses, metrics = setup.run(3, params, state, start=2, bad_worker=bad_worker, workers=2)
  assert np.isnan(losses[0]) and metrics['nonfinite'] == 1
  np.testing.assert_array_equal(setup.tables(state), before)


def test_predictions_come_back_in_order():
  setup = Setup(4)
  predict = embeddings.make_row_predictor(
      lambda p, rows, b: jnp.einsum('bfd,fd->b', rows, p['w']), setup.exchange, setup.mesh)
  batch = make_batch(0)
  got = predict(setup.params, setup.state, train.shard_batch(batch, setup.mesh))
  flat, starts = setup.tables(setup.state), np.cumsum([0, *VOCABULARIES[:-1]])
  rows = flat[batch['categories'] + starts]
  np.testing.assert_allclose(got, rows.sum((1, 2)) * 0.1, rtol=1e-5)


def test_the_column_of_ids_is_chosen_once_and_missed_with_a_clear_error():
  exchange = RowExchange(embeddings.deal(VOCABULARIES), None, column='items')
  assert exchange.wanted({'items': 3, 'categories': 4}) == 3
  with pytest.raises(ValueError, match=r"in column 'items', got a batch with \['categories'\]"):
    exchange.wanted({'categories': 4})


def test_tables_go_to_another_number_of_workers(tmp_path):
  """Every row, and what its optimizer knows of it, is on its new worker to the bit; training goes on alike."""
  four = Setup(4)
  params, state, _, _ = four.run(3)
  train.Checkpoints(tmp_path, {}).save(3, params, state)
  whole = Setup(4).run(5)
  for workers in (3, 2, 6):
    other = Setup(workers)
    restored = train.Checkpoints(tmp_path, {}).restore(other.params, other.state, other.specs, other.mesh)
    for kind in ('tables', 'rows'):
      there, here = (setup.tables_of(getattr(found, kind)) for setup, found in ((four, state), (other, restored[1])))
      assert here.tobytes() == there.tobytes() and there.any()
    np.testing.assert_allclose(other.run(5, *restored[:2], start=3)[2], whole[2][3:], rtol=1e-5)


def test_tables_without_a_layout_stay_where_they_are(tmp_path):
  made = [Setup(workers) for workers in (2, 4)]
  states = [setup.state._replace(dealing=None) for setup in made]
  train.Checkpoints(tmp_path, {}).save(1, made[0].params, states[0])
  with pytest.raises(ValueError, match='if init_rows was given their layout: they cannot be restored'):
    train.Checkpoints(tmp_path, {}).restore(made[1].params, states[1], made[1].specs._replace(dealing=None),
                                            made[1].mesh)
