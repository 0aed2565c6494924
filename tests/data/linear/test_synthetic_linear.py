"""The synthetic rows are what their description says."""

import numpy as np
import pytest

from dct_jax.data.linear import sets as linear_sets
from dct_jax.data.linear.synthetic import CHUNK, SyntheticLinear, _spread, chunks, generate


def test_shape_and_frequencies():
  data = generate(SyntheticLinear(), 2000)
  assert data.num_features == 16_000_000
  lengths = np.diff(data.indptr)
  assert 95 < lengths.mean() < 110
  first = data.indices[:data.indptr[1000]]
  assert 30_000 < len(np.unique(first)) < 60_000  # as the docstring says: some 40,000
  inside = np.repeat(np.arange(2000), lengths)
  assert np.all((data.indices[1:] > data.indices[:-1]) | (inside[1:] != inside[:-1]))
  counts = np.sort(np.bincount(data.indices))[::-1]
  assert counts[0] > 20 * counts[500] > 0  # a head and a tail


def test_deterministic_and_by_chunk():
  spec = SyntheticLinear(num_features=1000, teacher_features=100, row_entries=5)
  long, short = generate(spec, CHUNK + 100), generate(spec, 50)
  np.testing.assert_array_equal(long.indices[:short.indptr[-1]], short.indices)
  np.testing.assert_array_equal(long.labels[:50], short.labels)
  second = generate(spec, 100, first_chunk=1)
  np.testing.assert_array_equal(long.labels[CHUNK:], second.labels)
  np.testing.assert_array_equal(long.indices[long.indptr[CHUNK]:], second.indices)
  assert not np.array_equal(generate(spec._replace(seed=1), 50).indices, short.indices)
  assert (chunks(1), chunks(CHUNK), chunks(CHUNK + 1)) == (1, 1, 2)


def test_the_teacher_has_the_best_accuracy():
  spec = SyntheticLinear(num_features=5000, teacher_features=300, row_entries=20, noise=0.1)
  data = generate(spec, 2 * CHUNK)
  teacher = np.zeros(5000)
  teacher[_spread(spec, np.arange(300))] = np.random.default_rng([0, 1]).normal(size=300).astype(np.float32)
  margins = np.add.reduceat(teacher[data.indices], data.indptr[:-1])
  assert abs(np.mean((margins > 0) == (data.labels > 0)) - 0.9) < 0.01


@pytest.mark.parametrize('size', [1, 2, 10, 16, 1000, 4097])
def test_spread_is_one_to_one(size):
  assert len(set(_spread(SyntheticLinear(num_features=size), np.arange(size)).tolist())) == size


@pytest.mark.parametrize('change', [
    {'teacher_features': 0}, {'num_features': 5}, {'exponent': 1.0}, {'noise': 0.6}, {'row_entries': 0},
    {'offset': 0.0}])
def test_bad_distributions(change):
  with pytest.raises(ValueError, match='must'):
    generate(SyntheticLinear()._replace(**change), 1)


def test_load_linear():
  sets = linear_sets.load('synthetic', num_features=30_000, rows=1000)
  assert len(sets['train'].labels) == 900
  assert len(sets['test'].labels) == 100
  with pytest.raises(ValueError, match='dataset'):
    linear_sets.load('magic')
  with pytest.raises(ValueError, match='path'):
    linear_sets.load('urls')
