"""Batches by row and by column hold the data that they are cut from."""

import numpy as np
import pytest
from reference import linear as reference

from dct_jax.data.linear import columns, entries
from dct_jax.data.linear.synthetic import SyntheticLinear, generate

DATA = generate(SyntheticLinear(num_features=50, teacher_features=9, row_entries=6), 29)
DENSE = reference.dense_rows(*DATA[:3], 50)


@pytest.mark.parametrize('workers', [1, 2, 3])
@pytest.mark.parametrize('rows', [1, 4, 100])
def test_batches_are_the_rows(workers, rows):
  windows = entries.cut(DATA, workers, rows)
  share, seen = 29 // workers, []
  for step in range(windows.steps):
    batch = entries.batch(windows, range(workers), step)
    for w in range(workers):
      cut = lambda x, n: x[w * n:(w + 1) * n]
      row, index, value = (cut(batch[k], windows.capacity) for k in ('rows', 'indices', 'values'))
      assert np.all(np.diff(index.astype(np.int64)) >= 0)
      x = np.zeros((windows.rows + 1, 51))
      np.add.at(x, (row, index), value)
      labels = cut(batch['labels'], windows.rows)
      live = labels != 0
      assert not x[:-1][~live].any()
      at = w * share + step * windows.rows
      np.testing.assert_array_equal(x[:-1, :-1][live], DENSE[at:at + live.sum()])
      np.testing.assert_array_equal(labels[live], DATA.labels[at:at + live.sum()])
      assert len(np.unique(index[index < 50])) <= windows.distinct
      seen.append(live.sum())
  assert sum(seen) == share * workers


@pytest.mark.parametrize(('workers', 'rows'), [(30, 1), (1, 0)])
def test_bad_cuts(workers, rows):
  with pytest.raises(ValueError, match='a row for every worker'):
    entries.cut(DATA, workers, rows)


@pytest.mark.parametrize('workers', [1, 3])
@pytest.mark.parametrize('picks', [1, 5, 40])
def test_columns(workers, picks):
  table = columns.cut(DATA, workers, picks, seed=3, passes=2)
  width, seen = -(-50 // workers), set()
  for step in range(2 * table.steps):
    batch = columns.batch(table, step)
    for w in range(workers):
      coordinates = batch['coordinates'][w]
      live = coordinates[coordinates < 50]
      assert np.all(np.diff(live.astype(np.int64)) > 0)
      assert set(live // width) <= {w}
      x = np.zeros((picks + 1, 30))
      np.add.at(x, (batch['slots'][w], batch['rows'][w]), batch['values'][w])
      np.testing.assert_array_equal(x[:len(live), :29], DENSE[:, live].T)
      assert not x[len(live):].any()
      seen |= set(live.tolist())
  assert seen <= set(DATA.indices.tolist())
  assert table.features == len(np.unique(DATA.indices))
