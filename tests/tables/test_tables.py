"""Tables over workers, and optimizers of rows against plain loops."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import slow
from reference import dlrm as oracle

from dct_jax import tables as embeddings
from dct_jax.tables import RowExchange

pytestmark = pytest.mark.plain_code

VOCABULARIES = (100, 3, 57, 1, 20, 20, 9)


@pytest.mark.parametrize('workers', [1, 2, 3, 4, 7, 9])
def test_every_field_has_a_slot_and_its_own_rows(workers):
  layout = embeddings.deal(VOCABULARIES, workers)
  flat = layout.slots.reshape(-1)
  assert sorted(flat[flat >= 0]) == list(range(len(VOCABULARIES)))
  used = np.zeros((workers, layout.rows), int)
  for field, size in enumerate(VOCABULARIES):
    assert flat[layout.place[field]] == field
    used[layout.place[field] // layout.slots.shape[1], layout.begin[field]:layout.begin[field] + size] += 1
  assert used.max() == 1
  assert used.sum() == sum(VOCABULARIES)


def test_large_tables_are_spread():
  layout = embeddings.deal([1000, 990, 980, 970, 10, 9, 8, 7], 4)
  assert layout.rows <= 1000 + 7


@pytest.mark.parametrize('vocabularies, workers', [((), 2), ((3, 0), 2), ((3,), 0)])
def test_impossible_layouts_are_refused(vocabularies, workers):
  with pytest.raises(ValueError, match='got'):
    embeddings.deal(vocabularies, workers)


def field_tables(tables, layout):
  """The tables by field, from everybody's parts."""
  parts = np.asarray(tables).reshape(len(layout.slots), layout.rows, -1)
  return [parts[layout.place[f] // layout.slots.shape[1], layout.begin[f]:layout.begin[f] + size]
          for f, size in enumerate(layout.vocabularies)]


def test_tables_begin_alike_on_any_number_of_workers():
  key = jax.random.PRNGKey(3)
  alone, several = (embeddings.deal(VOCABULARIES, w) for w in (1, 3))
  a, b = (field_tables(embeddings.init_tables(key, x, 4), x) for x in (alone, several))
  for x, y, size in zip(a, b, VOCABULARIES, strict=True):
    np.testing.assert_array_equal(x, y)
    assert np.abs(x).max() <= size ** -0.5
    assert x.std() > 0


@pytest.mark.parametrize('workers', [1, 3, *slow(2, 9)])
@pytest.mark.parametrize('codec, error', [('float32', 0), ('float16', 2**-11), ('int8', 1 / 250)])
def test_rows_come_from_their_owners_and_gradients_go_to_them(workers, codec, error):
  batch, width = 6, 4
  layout = embeddings.deal(VOCABULARIES, workers)
  tables = embeddings.init_tables(jax.random.PRNGKey(0), layout, width)
  rng = np.random.default_rng(0)
  ids = np.stack([rng.integers(0, v, (workers, batch)) for v in VOCABULARIES], -1).astype(np.int32)
  gradients = rng.standard_normal((workers, batch, len(VOCABULARIES), width)).astype(np.float32)
  exchange = RowExchange(layout, 'data', codec=codec)

  def both(part, categories, gradient):
    rows, asked = exchange.fetch(part, categories)
    return rows, *exchange.give_back(gradient, asked)

  parts = tables.reshape(workers, layout.rows, width)
  rows, homes, at_home = jax.jit(jax.vmap(both, axis_name='data'))(parts, ids, gradients)
  by_field = field_tables(tables, layout)
  for f in range(len(VOCABULARIES)):
    want = by_field[f][ids[:, :, f]]
    np.testing.assert_allclose(rows[:, :, f], want, rtol=0, atol=error * np.abs(want).max(initial=0))
  moved = np.zeros((workers, layout.rows, width))
  for w in range(workers):
    np.add.at(moved[w], np.asarray(homes[w]), np.asarray(at_home[w]))
  for f, size in enumerate(VOCABULARIES):
    want = np.zeros((size, width))
    np.add.at(want, ids[:, :, f].reshape(-1), gradients[:, :, f].reshape(-1, width))
    np.testing.assert_allclose(field_tables(moved, layout)[f], want, atol=1e-5 + 40 * error)


def test_one_worker_needs_no_axis_and_others_do():
  layout = embeddings.deal(VOCABULARIES)
  tables = embeddings.init_tables(jax.random.PRNGKey(0), layout, 4)
  exchange = RowExchange(layout, None)
  ids = np.zeros((2, len(VOCABULARIES)), np.int32)
  rows, _ = exchange.fetch(tables, ids)
  np.testing.assert_array_equal(rows[0], np.stack([t[0] for t in field_tables(tables, layout)]))
  assert exchange.sent_bytes(2, 4) == 0
  several = embeddings.deal(VOCABULARIES, 2)
  with pytest.raises(ValueError, match='without an axis'):
    RowExchange(several, None)
  with pytest.raises(ValueError, match='codec'):
    RowExchange(layout, codec='int4')


def test_duplicates_add_up_and_what_is_left_is_no_row():
  ids, gradients = np.array([5, 2, 5, 5, 0], np.int32), np.arange(10, dtype=np.float32).reshape(5, 2)
  rows, sums = embeddings.sum_duplicates(jnp.asarray(ids), jnp.asarray(gradients), 7)
  assert rows.tolist() == [0, 2, 5, 7, 7]
  np.testing.assert_array_equal(sums[:3], [[8, 9], [2, 3], [0 + 4 + 6, 1 + 5 + 7]])


@pytest.mark.parametrize('name', ['sgd', 'adagrad', 'row_adagrad'])
def test_rows_are_updated_as_by_plain_loops(name):
  rng = np.random.default_rng(1)
  table = rng.standard_normal((30, 4)).astype(np.float32)
  optimizer = embeddings.make_optimizer(name, 0.3)
  state, want = optimizer.init(jnp.asarray(table)), table.astype(np.float64)
  squares = np.zeros((30, 1 if name == 'row_adagrad' else 4))
  got = jnp.asarray(table)
  for _ in range(3):
    ids = rng.integers(0, 25, 40).astype(np.int32)  # with duplicates; the last rows are never touched
    gradients = rng.standard_normal((40, 4)).astype(np.float32)
    got, state = jax.jit(optimizer.update)(got, state, ids, gradients)
    if name == 'sgd':
      want = oracle.sgd(want, ids, gradients, 0.3)
    else:
      want, squares = oracle.adagrad(want, squares, ids, gradients, 0.3, row_wise=name == 'row_adagrad')
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
  np.testing.assert_array_equal(got[25:], table[25:])


def test_nothing_as_large_as_a_table_is_made():
  """The compiled update of donated tables has no second buffer of their size."""
  tables = jax.ShapeDtypeStruct((200_000, 16), jnp.float32)
  ids, gradients = jax.ShapeDtypeStruct((256,), jnp.int32), jax.ShapeDtypeStruct((256, 16), jnp.float32)
  for name in ('sgd', 'row_adagrad'):
    optimizer = embeddings.make_optimizer(name, 0.1)
    state = jax.eval_shape(optimizer.init, tables)
    compiled = jax.jit(optimizer.update, donate_argnums=(0, 1)).lower(tables, state, ids, gradients).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 200_000 * 16


def test_an_unknown_optimizer_is_refused():
  with pytest.raises(ValueError, match='row_adagrad'):
    embeddings.make_optimizer('adam', 0.1)


@pytest.mark.parametrize('shape, dtype, message', [
    ((2, 1), np.int32, 'one column for each table'), ((2,), np.int32, 'one column for each table'),
    ((2, len(VOCABULARIES)), np.float32, 'whole numbers')])
def test_ids_of_another_form_are_refused(shape, dtype, message):
  """A single column would broadcast over all tables, without an error."""
  layout = embeddings.deal(VOCABULARIES)
  tables = embeddings.init_tables(jax.random.PRNGKey(0), layout, 4)
  with pytest.raises(ValueError, match=message):
    RowExchange(layout, None).fetch(tables, jnp.zeros(shape, dtype))


def test_gradients_of_other_rows_are_refused():
  layout = embeddings.deal(VOCABULARIES)
  asked = embeddings.Asked(jnp.zeros((1, 2, len(VOCABULARIES)), jnp.int32))
  with pytest.raises(ValueError, match='those of the rows that were fetched'):
    RowExchange(layout, None).give_back(jnp.zeros((3, len(VOCABULARIES), 4)), asked)
  with pytest.raises(ValueError, match='every id has one gradient'):
    embeddings.sum_duplicates(jnp.zeros(3, jnp.int32), jnp.zeros((2, 4)), 5)


class SumsOfDuplicates(chex.TestCase):
  @chex.all_variants
  def test_an_id_comes_once_with_its_sum(self):
    summed = self.variant(lambda ids, x: embeddings.sum_duplicates(ids, x, 9))
    ids, sums = summed(jnp.array([4, 1, 4, 7]), jnp.arange(8.0).reshape(4, 2))
    np.testing.assert_array_equal(ids, [1, 4, 7, 9])
    np.testing.assert_array_equal(sums, [[2, 3], [4, 6], [6, 7], [0, 0]])
