"""The Frappe reader on lines written here, and on the real files where they are at hand."""

import lzma

import numpy as np
import pytest

from dct_jax.data import clicks
from dct_jax.data.clicks import frappe

TRAIN = b'1 0:1 4:1 9:1\n-1 1:1 4:1 8:1\n1 1:1 3:1 9:1\n-1 1:1 4:1 8:1\n'
TEST = b'-1 0:1 5:1 8:1\n1 2:1 3:1 9:1\n'


def write(tmp_path, train=TRAIN, test=TEST):
  (tmp_path / 'frappe.validation.libfm').write_bytes(train)
  (tmp_path / 'frappe.test.libfm.xz').write_bytes(lzma.compress(test))
  return tmp_path


def test_ids_by_position(tmp_path):
  sets = frappe.load(write(tmp_path))
  # Field 1: feature 1 three times, 0 once. Field 2: 4 three times, 3 once. Field 3: 8 and 9 twice each.
  assert sets.train.categories.tolist() == [[2, 1, 2], [1, 1, 1], [1, 2, 2], [1, 1, 1]]
  assert sets.test.categories.tolist() == [[2, 0, 1], [0, 2, 2]]  # 5 and 2 are in the test file only
  assert sets.vocabularies == (3, 3, 3)
  assert sets.train.label.tolist() == [1, 0, 1, 0]
  assert sets.test.label.tolist() == [0, 1]
  assert sets.train.dense.shape == (4, 0)
  assert [x.dtype for x in sets.train] == [np.float32, np.int32, np.float32]
  assert (sets.name, sets.best_loss) == ('frappe-validation', None)


def test_the_training_file_comes_first(tmp_path):
  write(tmp_path)
  (tmp_path / 'frappe.train.libfm').write_bytes(TRAIN + TRAIN)
  sets = clicks.load(str(tmp_path), tmp_path / 'cache')
  assert (sets.name, len(sets.train.label)) == ('frappe', 8)


def test_another_file_to_test_on(tmp_path):
  own = frappe.load(write(tmp_path))
  (tmp_path / 'mine').write_bytes(b'1 2:1 3:1 9:1\n')
  mine = clicks.load(str(tmp_path), tmp_path / 'cache', test=str(tmp_path / 'mine'))
  np.testing.assert_array_equal(mine.train.categories, own.train.categories)
  assert mine.test.categories.tolist() == [[0, 2, 2]] and mine.test.label.tolist() == [1]


@pytest.mark.parametrize(('train', 'test', 'message'), [
    (TRAIN + b'1 0:1 4:1\n', TEST, 'as many features as the first one, 3, .* row 5'),
    (TRAIN, b'1 0:1\n', 'row 1'), (b'', TEST, 'has no rows'), (TRAIN, b'1 4:1 5:1 9:1\n', 'same position'),
    (TRAIN, b'1 0:1 4:2 9:1\n', 'values must be 1'), (TRAIN, b'0 0:1 4:1 9:1\n', 'labels')])
def test_other_forms_are_refused(tmp_path, train, test, message):
  with pytest.raises(ValueError, match=message):
    frappe.load(write(tmp_path, train, test))


def test_missing_files(tmp_path):
  write(tmp_path)
  (tmp_path / 'frappe.validation.libfm').unlink()
  with pytest.raises(ValueError, match='frappe.train.libfm or frappe.validation.libfm'):
    frappe.load(tmp_path)


def test_real_files(shared_data):
  sets = frappe.load(shared_data / 'frappe')
  assert sets.train.categories.shape == (57_722, 10) and sets.test.categories.shape == (28_860, 10)
  assert sum(sets.vocabularies) <= 5_382 + 10
  for part in sets[:2]:
    assert np.all(part.categories < sets.vocabularies)
    assert 0.3 < part.label.mean() < 0.37  # two negatives were drawn for each positive
  assert np.all(sets.train.categories > 0)
  assert np.mean(sets.test.categories == 0) < 0.01
