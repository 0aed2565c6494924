"""Count-sketches and bitmaps, native and twin, against NumPy oracles; both give the same bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import s2 as oracle

from dct_jax import kernels
from dct_jax.kernels import bitmaps, hashing


def blocks(count, unit, universe, seed=0):
  rng = np.random.default_rng(seed)
  ids = np.sort(rng.choice(universe, count, replace=False)).astype(np.uint32)
  return ids, rng.standard_normal((count, unit)).astype(np.float32)


def keys(rows, step=5):
  return hashing.keys(3, step, rows)


def test_keys_are_those_of_the_oracle():
  assert keys(4).tolist() == oracle.keys(3, 5, 4)
  assert keys(4).tolist() != keys(4, step=6).tolist()


@pytest.mark.parametrize('rows', [1, 2, 3, 5])
@pytest.mark.parametrize('count,unit,buckets', [(40, 7, 50), (3, 300, 64), (1, 1, 1), (0, 4, 8), (20, 16, 70_001)])
def test_insert_and_query_are_the_oracle(native, rows, count, unit, buckets):
  ids, values = blocks(count, unit, 90)
  want = oracle.sketch(ids, values, oracle.keys(3, 5, rows), buckets)
  padded = np.concatenate([ids, np.full(5, 90, np.uint32)])
  rest = np.concatenate([values, np.full((5, unit), 7.0, np.float32)])
  insert = jax.jit(lambda i, v: kernels.sketch_insert(i, count, v, keys(rows), buckets=buckets))
  table = insert(padded, rest)
  np.testing.assert_array_equal(table, want)
  query = jax.jit(lambda i, t: kernels.sketch_query(i, count, t, keys(rows), unit=unit))
  told = oracle.query(ids, unit, want, oracle.keys(3, 5, rows))
  np.testing.assert_array_equal(query(padded, table)[:count], told)
  assert not np.asarray(query(padded, table)[count:]).any()


@pytest.mark.parametrize('rows', [3, 4, 5])
def test_what_is_not_a_number_comes_last_in_a_median(native, rows):
  table = np.random.default_rng(rows).choice([1.0, -2, 3, np.inf, -np.inf, np.nan], (rows, 9)).astype(np.float32)
  ids = np.arange(40, dtype=np.uint32)
  with np.errstate(invalid='ignore'):
    want = oracle.query(ids, 4, table, oracle.keys(3, 5, rows))
  assert 0 < np.isnan(want).sum() < want.size
  np.testing.assert_array_equal(kernels.sketch_query(ids, 40, table, keys(rows), unit=4), want)


def test_blocks_may_lie_at_their_own_rows(native):
  ids, values = blocks(12, 9, 30)
  dense = np.zeros((30, 9), np.float32)
  dense[ids] = values
  packed = kernels.sketch_insert(ids, 12, values, keys(3), buckets=40)
  np.testing.assert_array_equal(kernels.sketch_insert(ids, 12, dense, keys(3), buckets=40, by_id=True), packed)
  told = np.zeros_like(dense)
  told[ids] = kernels.sketch_query(ids, 12, packed, keys(3), unit=9)
  np.testing.assert_array_equal(kernels.sketch_query(ids, 12, packed, keys(3), unit=9, rows=30), told)


def test_a_sketch_of_a_sum_is_the_sum_of_sketches(native):
  """Bitwise for whole numbers; numbers of 24 bits add up without rounding."""
  rng = np.random.default_rng(1)
  ids = np.arange(50, dtype=np.uint32)
  parts = rng.integers(-1000, 1000, (4, 50, 8)).astype(np.float32)
  whole = kernels.sketch_insert(ids, 50, parts.sum(0), keys(3), buckets=37)
  np.testing.assert_array_equal(sum(kernels.sketch_insert(ids, 50, p, keys(3), buckets=37) for p in parts), whole)
  parts = rng.standard_normal((4, 50, 8)).astype(np.float32)
  whole = kernels.sketch_insert(ids, 50, parts.sum(0), keys(3), buckets=37)
  np.testing.assert_allclose(sum(kernels.sketch_insert(ids, 50, p, keys(3), buckets=37) for p in parts), whole,
                             atol=2e-5)


def test_native_code_refuses_blocks_beyond_its_arrays():
  if not kernels.native_in_use():
    pytest.skip('no native code')
  ids = jnp.array([0, 99], jnp.uint32)
  with pytest.raises(Exception, match='more blocks than the arrays hold'):
    kernels.sketch_insert(ids, 2, jnp.zeros((4, 3)), keys(1), buckets=8, by_id=True).block_until_ready()
  with pytest.raises(Exception, match='more blocks than the arrays hold'):
    kernels.sketch_query(ids, 3, jnp.zeros((1, 8)), keys(1), unit=3).block_until_ready()


@pytest.mark.parametrize('universe', [1, 31, 32, 33, 1000])
def test_bitmaps_are_sets(universe):
  rng = np.random.default_rng(0)
  ids = np.flatnonzero(rng.random(universe) < 0.3).astype(np.uint32)
  padded = np.concatenate([ids, np.full(3, universe, np.uint32)])
  words = bitmaps.of_ids(padded, padded.size, universe)  # what is no block is left out
  np.testing.assert_array_equal(words, oracle.bitmap(ids, universe))
  np.testing.assert_array_equal(bitmaps.of_mask(np.isin(np.arange(universe), ids)), words)
  assert int(bitmaps.size(words)) == ids.size
  np.testing.assert_array_equal(bitmaps.to_ids(words, universe, ids.size + 2)[:ids.size], ids)
  np.testing.assert_array_equal(bitmaps.to_ids(words, universe, ids.size + 2)[ids.size:], [universe] * 2)
  np.testing.assert_array_equal(bitmaps.rank(words, jnp.asarray(ids)), np.arange(ids.size))
