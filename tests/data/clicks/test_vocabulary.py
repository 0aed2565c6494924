"""Counts and ids, against Python's own counter."""

import collections

import numpy as np
import pytest

from dct_jax.data.clicks import vocabulary


@pytest.mark.parametrize('pending', [0, 5, 1 << 20])
def test_counts(monkeypatch, pending):
  monkeypatch.setattr(vocabulary, 'PENDING', pending)
  rng = np.random.default_rng(0)
  chunks = [rng.zipf(1.3, size).astype(np.uint32) for size in (1, 0, 50, 300, 7, 1000)]
  values, counts = vocabulary.count_values(chunks)
  expected = collections.Counter(np.concatenate(chunks).tolist())
  assert dict(zip(values.tolist(), counts.tolist(), strict=True)) == expected
  assert np.all(values[1:] > values[:-1])


def test_ids_by_falling_count_then_value():
  words = vocabulary.make_vocabulary(np.array([2, 5, 7, 9]), np.array([3, 8, 3, 8]))
  assert words.size == 5
  ids = vocabulary.lookup(words, np.array([5, 9, 2, 7, 0, 6, 99]))
  assert ids.tolist() == [1, 2, 3, 4, 0, 0, 0]
  assert ids.dtype == np.int32


def test_nothing_has_an_id():
  words = vocabulary.make_vocabulary(np.empty(0, np.uint32), np.empty(0, np.int64))
  assert words.size == 1
  assert vocabulary.lookup(words, np.array([1, 2], np.uint32)).tolist() == [0, 0]
