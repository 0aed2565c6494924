"""Sums of row-sparse gradients: every reducer against NumPy, through XLA; test_processes.py has the transport."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from reference import s2 as oracle

import dct_jax
from dct_jax import tables
from dct_jax.arrays import Stream

ROWS, WIDTH, IDS = 97, 5, 24
EXACT = {'gather': tables.gather_rows, 'union': tables.union_rows, 'dense': tables.dense_rows}


def draw(workers):
  return oracle.draw_rows(workers, ROWS, WIDTH, IDS)


def merged(ids, values):
  """(ids, values) of a worker, each row once."""
  known = sorted(set(ids[ids < ROWS].tolist()))
  return known, np.stack([values[ids == i].sum(0) for i in known])


def as_table(ids, values):
  table = np.zeros((ROWS, WIDTH), np.float32)
  np.add.at(table, np.asarray(ids)[np.asarray(ids) < ROWS], np.asarray(values)[np.asarray(ids) < ROWS])
  return table


def one_step(reducer, axis_name='data'):
  return lambda ids, values: reducer.reduce(
      tables.as_stream(ids, values, ROWS), ROWS, reducer.init(), axis_name)


@pytest.mark.parametrize('workers', [2, 3, 8])
@pytest.mark.parametrize('name', EXACT)
def test_exact_sums_on_simulated_workers_and_on_devices(name, workers):
  ids, values = draw(workers)
  step = one_step(EXACT[name]())
  want = as_table(ids.reshape(-1), values.reshape(-1, WIDTH))
  found, sums, _, sent, entries = jax.jit(jax.vmap(step, axis_name='data', out_axes=None))(ids, values)
  np.testing.assert_array_equal(as_table(found, sums), want)
  assert sent > 0
  distinct = sum(len(merged(*both)[0]) for both in zip(ids, values, strict=True))
  assert entries == (0 if name == 'dense' else -(-distinct // workers))
  real = jax.jit(jax.shard_map(lambda i, v: step(i[0], v[0]), mesh=dct_jax.make_mesh(workers), in_specs=P('data'),
                               out_specs=P()))
  found, sums, *_ = real(ids, values)
  np.testing.assert_array_equal(as_table(found, sums), want)


def test_a_row_that_adds_up_to_zero_is_a_row():
  ids, values = draw(3)
  found, *_ = jax.vmap(one_step(tables.union_rows()), axis_name='data', out_axes=None)(ids, values)
  assert 91 in found.tolist()
  union, _ = oracle.union_sum([merged(i, v) for i, v in zip(ids, values, strict=True)], ROWS, WIDTH)
  assert found.tolist() == union + [ROWS] * (found.size - len(union))


@pytest.mark.parametrize('kind', [np.uint8, np.int16, np.uint32])
def test_ids_may_be_narrower_than_the_number_of_rows(kind):
  ids = np.array([7, 255 if kind == np.uint8 else 80_000 % 2**15, 7], kind)
  stream = tables.as_stream(jnp.asarray(ids), jnp.ones((3, 2)), 70_000)
  assert stream.indices.tolist() == [7, int(ids[1]), 70_000] and stream.count == 2
  assert tables.as_stream(jnp.asarray(ids), jnp.ones((3, 2)), 256).indices[0] == 7


@pytest.mark.parametrize('rows', [1, 3])
@pytest.mark.parametrize('lam', [0.5, 3.0])
def test_sketched_rows_are_algorithm_1(native, lam, rows):
  ids, values = draw(4)
  reducer = tables.sketch_rows(lam, rows, seed=7, rungs=2)
  state = reducer.init()._replace(step=jnp.uint32(11))
  reduce = lambda i, v: reducer.reduce(tables.as_stream(i, v, ROWS), ROWS, state, 'data')
  found, sums, new, *_ = jax.jit(jax.vmap(reduce, axis_name='data', out_axes=None))(ids, values)
  each = [merged(i, v) for i, v in zip(ids, values, strict=True)]
  entries = np.mean([len(i) for i, _ in each]) * WIDTH
  buckets = round(float(new.worker_lambda) * entries / rows)
  assert lam <= new.worker_lambda <= 3 * lam + 2 * rows / entries  # a rung
  union, want = oracle.s2(each, ROWS, WIDTH, oracle.keys(7, 11, rows), buckets)
  assert float(new.union_lambda) == pytest.approx(rows * buckets / (len(union) * WIDTH))
  assert found[:len(union)].tolist() == union
  np.testing.assert_array_equal(sums[:len(union)], want)
  assert not sums[len(union):].any()
  assert new.step == 12


def on_workers(reducer, ids, values):
  return jax.jit(jax.vmap(one_step(reducer), axis_name='data', out_axes=None))(ids, values)


def test_a_sketch_of_the_union_is_long_enough_where_workers_have_nothing_in_common():
  ids = np.arange(4 * 20, dtype=np.int32).reshape(4, 20)
  values = np.ones((4, 20, WIDTH), np.float32)
  assert on_workers(tables.sketch_rows(0.5, of='union', rungs=4), ids, values).state.union_lambda >= 0.5


def test_narrow_values_of_rows_take_half_the_bytes():
  ids, values = draw(4)
  wide, narrow = (on_workers(tables.sketch_rows(8.0, values=v, rungs=1), ids, values) for v in ('float32', 'int16'))
  assert 0.4 * wide.sent < narrow.sent < 0.6 * wide.sent
  np.testing.assert_allclose(narrow.values, wide.values, atol=1e-3 * np.abs(values).max() * IDS)
  assert (narrow.values != wide.values).any()


@pytest.mark.parametrize('workers', [2, 8])
def test_gathered_rows_are_sent_to_everybody_else(workers):
  ids, values = draw(workers)
  sent = on_workers(tables.gather_rows(rungs=1), ids, values).sent
  assert sent == 4 * (4 + IDS * (1 + WIDTH)) * (workers - 1)  # a head of four words, and records


@pytest.mark.parametrize('name', EXACT)
def test_one_worker_has_its_own_rows_and_nothing_else(name):
  stream = Stream(jnp.array([3, 96, 5], jnp.uint32), jnp.ones((3, WIDTH)), jnp.uint32(2))  # 5 means nothing
  reducer = EXACT[name]()
  found, sums, *_ = reducer.reduce(stream, ROWS, reducer.init(), None)
  np.testing.assert_array_equal(as_table(found, sums), as_table(np.array([3, 96]), np.ones((2, WIDTH))))


def test_gradients_of_half_the_length_are_added_up_in_full():
  stream = tables.as_stream(jnp.zeros(2, jnp.int32), jnp.array([[256.0], [1.0]], jnp.bfloat16), 5)
  assert stream.values.dtype == jnp.float32 and stream.values[0] == 257


def test_bad_input_is_refused():
  with pytest.raises(ValueError, match='at least one id'):
    tables.as_stream(jnp.zeros(0, jnp.int32), jnp.zeros((0, 3)), 5)
  with pytest.raises(ValueError, match='at least one row'):
    tables.sketch_rows(1.0, 0)
  with pytest.raises(ValueError, match='above 0'):
    tables.sketch_rows(0.0)
  with pytest.raises(ValueError, match='got 7 at'):
    tables.check_ids(np.array([[1, 2], [7, 0]]), 7, 'a word')
  with pytest.raises(ValueError, match='every table needs a reducer'):
    tables.ReplicatedRows(lambda batch: batch, {'a': None})
  with pytest.warns(RuntimeWarning, match='load factor'):
    tables.sketch_rows(0.01)
