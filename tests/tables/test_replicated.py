"""Replicated tables: trained as tables that are dealt out are, whatever adds up their rows; saved and restored."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from test_rows import VOCABULARIES, WIDTH, Setup, assert_no_table_changes, loss_fn, make_batch

import dct_jax
from dct_jax import tables as embeddings
from dct_jax import train
from dct_jax.tables.replicated import ReplicatedRowsState

pytestmark = pytest.mark.plain_code
WORKERS = 2
REDUCERS = {'gather': lambda: embeddings.gather_rows(rungs=2), 'union': lambda: embeddings.union_rows(rungs=2),
            'dense': embeddings.dense_rows, 's2': lambda: embeddings.sketch_rows(0.5, rungs=2)}


class Replicated:
  """As `Setup`, with all tables on every worker, in one that holds them end to end."""

  def __init__(self, reducer, workers=WORKERS, row_optimizer='row_adagrad'):
    self.mesh = dct_jax.make_mesh(workers)
    layout = embeddings.deal(VOCABULARIES, 1)
    self.exchange = embeddings.ReplicatedRows(
        lambda batch: {'all': batch['categories'] + layout.begin}, {'all': REDUCERS[reducer]()})
    optimizer = embeddings.make_optimizer(row_optimizer, 0.5)
    tx = optax.chain(dct_jax.dense_mean('data'), optax.sgd(0.5))
    params = {'w': 0.1 * jnp.ones((len(VOCABULARIES), WIDTH)), 'v': jnp.zeros(3)}
    self.params, state, specs = dct_jax.init(tx, params, self.mesh)
    first = {'all': embeddings.init_tables(jax.random.PRNGKey(0), layout, WIDTH)}
    self.state, self.specs = self.exchange.init(optimizer, first, state, specs, self.mesh)
    self.step = embeddings.make_row_step(lambda p, rows, b: loss_fn(p, rows['all'], b), tx, optimizer, self.exchange,
                                         self.mesh, self.specs)
    self.layout = layout

  run = Setup.run

  def tables(self, state):
    whole, begin = np.asarray(state.tables['all']), self.layout.begin
    return np.concatenate([whole[begin[f]:begin[f] + v] for f, v in enumerate(VOCABULARIES)])


@pytest.mark.parametrize('reducer', ['gather', 'union', 'dense'])
@pytest.mark.parametrize('row_optimizer', ['row_adagrad', 'sgd'])
def test_exact_reducers_train_as_tables_that_are_dealt_out(reducer, row_optimizer):
  dealt, here = Setup(WORKERS, row_optimizer), Replicated(reducer, row_optimizer=row_optimizer)
  want_params, want_state, want, _ = dealt.run(5)
  params, state, losses, metrics = here.run(5)
  np.testing.assert_allclose(losses, want, rtol=1e-5)
  np.testing.assert_allclose(here.tables(state), dealt.tables(want_state), rtol=2e-4, atol=2e-6)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6), params, want_params)
  assert metrics['row_bytes'] > 0


def test_a_sketch_trains_too_and_tells_its_lambdas():
  *_, losses, metrics = Replicated('s2').run(6)
  assert losses[-1] < losses[0]
  assert metrics['s2_lambda'] >= 0.5 > metrics['s2_union_lambda'] * 0.5 > 0


def test_a_restored_run_goes_on_bit_for_bit_and_with_other_numbers_of_workers(tmp_path):
  setup = Replicated('s2')
  whole_params, whole_state, *_ = setup.run(6)
  setup = Replicated('s2')
  params, state, *_ = setup.run(3)
  train.Checkpoints(tmp_path, {}).save(3, params, state)
  fresh = Replicated('s2')
  params, state, at = train.Checkpoints(tmp_path, {}).restore(fresh.params, fresh.state, fresh.specs, fresh.mesh)
  params, state, *_ = fresh.run(6, params, state, at)
  jax.tree.map(np.testing.assert_array_equal, (params, state), (whole_params, whole_state))
  other = Replicated('s2', workers=4)
  *_, losses, _ = other.run(5, *train.Checkpoints(tmp_path, {}).restore(
      other.params, other.state, other.specs, other.mesh))
  assert np.isfinite(losses).all()


@pytest.mark.parametrize('bad_worker', [0, 1])
def test_what_is_not_a_number_changes_no_table(bad_worker):
  assert_no_table_changes(Replicated('union'), bad_worker)


@pytest.mark.parametrize('bad', [1000, -66])  # the tables before have 65 rows: the last row from the end
def test_an_id_that_is_no_row_stops_the_step_instead_of_reading_another_row(bad):
  setup = Replicated('gather')
  batch = make_batch(0)
  batch['categories'][3, 4] = bad
  before = setup.tables(setup.state)
  _, state, metrics = setup.step(setup.params, setup.state, train.shard_batch(batch, setup.mesh))
  assert np.isnan(metrics['loss']) and metrics['nonfinite'] == 1
  np.testing.assert_array_equal(setup.tables(state), before)


def test_tables_and_reducers_must_match():
  setup = Replicated('gather')
  with pytest.raises(ValueError, match=r"of the tables \['all'\], got \['other'\]"):
    setup.exchange.init(embeddings.sgd(0.1), {'other': jnp.zeros((3, 2))}, (), (), setup.mesh)


def test_bytes_of_all_tables_are_told():
  one, two = (embeddings.ReplicatedRows(lambda batch: batch, {name: embeddings.gather_rows(rungs=1) for name in names})
              for names in ('a', 'ab'))
  optimizer, tables = embeddings.sgd(0.1), {name: jnp.zeros((9, 2)) for name in 'ab'}

  def sent(rows, ids):
    state = ReplicatedRowsState((), tables, {'a': (), 'b': ()}, {'a': (), 'b': ()})
    asked = dict.fromkeys(tables, ids)
    return rows.absorb(optimizer, state, jax.tree.map(lambda i: jnp.ones((4, 2)), asked), asked)[1]

  count = lambda rows: jax.vmap(lambda ids: sent(rows, ids), axis_name='data', out_axes=None)(jnp.zeros((3, 4), int))
  assert count(two) == 2 * count(one) > 0
