"""Batches: every row once in an epoch, the same from any step, and in shares that make up the whole."""

import itertools

import numpy as np
import pytest

from dct_jax.data import clicks

ROWS, BATCH = 107, 8
STEPS = ROWS // BATCH


@pytest.fixture(params=['memory', 'mapped'])
def data(request, tmp_path):
  number = np.arange(ROWS)
  arrays = clicks.Clicks((number[:, None] * np.ones(13)).astype(np.float32),
                         (number[:, None] + np.arange(26)).astype(np.int32), (number % 2).astype(np.float32))
  if request.param == 'memory':
    return arrays
  for name, array in arrays._asdict().items():
    np.save(tmp_path / f'{name}.npy', array)
  return clicks.Clicks(*(np.load(tmp_path / f'{name}.npy', mmap_mode='r') for name in arrays._fields))


def first(data, steps, **options):
  return list(itertools.islice(clicks.batches(data, BATCH, **{'seed': 5, **options}), steps))


def rows_of(some):
  return np.concatenate([b.categories[:, 0] for b in some])


def test_rows_stay_together(data):
  for batch in first(data, 3):
    assert [x.shape for x in batch] == [(BATCH, 13), (BATCH, 26), (BATCH,)]
    assert [x.dtype for x in batch] == [np.float32, np.int32, np.float32]
    number = batch.categories[:, 0]
    np.testing.assert_array_equal(batch.categories, number[:, None] + np.arange(26))
    np.testing.assert_array_equal(batch.dense, number[:, None] * np.ones(13))
    np.testing.assert_array_equal(batch.label, number % 2)


def test_an_epoch_has_a_row_once_and_an_order_of_its_own(data):
  seen = rows_of(first(data, 20 * STEPS)).reshape(20, -1)
  for epoch in seen:
    assert len(set(epoch)) == STEPS * BATCH  # the last three are left out
  assert len({tuple(epoch) for epoch in seen}) == 20
  assert set(seen.ravel()) == set(range(ROWS))  # but not always the same three


@pytest.mark.parametrize('seed', [0, 1, 5])
def test_orders_are_random(seed):
  number = np.arange(5000)
  empty = np.zeros((5000, 0), np.float32)
  data = clicks.Clicks(empty, number[:, None].astype(np.int32), np.zeros(5000, np.float32))
  orders = [rows_of(itertools.islice(clicks.batches(data, 500, seed, step=step), 10)) for step in (0, 10, 20)]
  for a, b in itertools.combinations([number, *orders], 2):
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.06  # four deviations
    assert np.mean(a == b) < 0.002


@pytest.mark.parametrize('multiple, batch, lengths', [(1, 50, [50, 50, 7]), (4, 50, [48, 48, 12]), (4, 2, [4] * 27)])
def test_all_rows_in_order_with_the_last_one_again(data, multiple, batch, lengths):
  found = list(clicks.padded(data, multiple, batch))
  assert [len(b.label) for b in found] == lengths
  assert rows_of(found).tolist() == [*range(ROWS), *[ROWS - 1] * (sum(lengths) - ROWS)]


def test_seeds(data):
  same, other = rows_of(first(data, 2 * STEPS)), rows_of(first(data, 2 * STEPS, seed=6))
  np.testing.assert_array_equal(rows_of(first(data, 2 * STEPS)), same)
  half = STEPS * BATCH
  assert not np.array_equal(same[:half], other[:half])
  assert not np.array_equal(same[half:], other[:half])  # the next seed is not the next epoch


@pytest.mark.parametrize('step', [1, STEPS - 1, STEPS, 3 * STEPS + 5])
def test_resumes_at_any_step(data, step):
  whole, rest = first(data, step + 4), first(data, 4, step=step)
  np.testing.assert_array_equal(rows_of(whole[step:]), rows_of(rest))


@pytest.mark.parametrize('processes', [2, 4, 8])
def test_shares_make_up_the_batch(data, processes):
  shares = [first(data, 2 * STEPS, process=p, processes=processes) for p in range(processes)]
  for whole, *parts in zip(first(data, 2 * STEPS), *shares, strict=True):
    for column in clicks.Clicks._fields:
      together = np.concatenate([getattr(part, column) for part in parts])
      np.testing.assert_array_equal(together, getattr(whole, column))


@pytest.mark.parametrize('change', [
    {'batch': 0}, {'batch': ROWS + 1}, {'step': -1}, {'processes': 3}, {'process': 2, 'processes': 2},
    {'process': -1}, {'processes': 0}])
def test_bad_arguments_at_once(data, change):
  with pytest.raises(ValueError, match='must'):
    clicks.batches(data, **{'batch': BATCH, 'seed': 0, **change})


def test_sets_by_name(tmp_path):
  for name in ('', 'synthetic'):
    sets = clicks.load(name, tmp_path, rows=100, test_rows=10)
    assert sets.name == 'synthetic'
    assert (len(sets.train.label), len(sets.test.label)) == (100, 10)
  with pytest.raises(FileNotFoundError, match='no file or directory'):
    clicks.load(str(tmp_path / 'nothing'), tmp_path)
  with pytest.raises(ValueError, match='frappe.test.libfm'):
    clicks.load(str(tmp_path), tmp_path)
  (tmp_path / 'other.csv').write_bytes(b'a,b\n1,2\n')
  with pytest.raises(ValueError, match='line 1: expected'):
    clicks.load(str(tmp_path / 'other.csv'), tmp_path / 'cache', progress=False)


def test_in_order_leaves_out_what_does_not_divide():
  rows = np.arange(23)
  column = rows[:, None]
  data = clicks.Clicks(column.astype(np.float32), column.astype(np.int32), rows.astype(np.float32))
  found = clicks.in_order(data, 22, multiple=4, batch=10)
  assert [len(b.label) for b in found] == [8, 8, 4]
  np.testing.assert_array_equal(np.concatenate([b.label for b in found]), rows[:20])
