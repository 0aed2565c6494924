"""The synthetic log is what its description says, and its best loss is the teacher's."""

import numpy as np
import pytest

from dct_jax.data.clicks import synthetic

SETS = synthetic.generate(40_000, 60_000, seed=0)


def teacher_probabilities(sets, seed=0, click_rate=0.25):
  teacher = synthetic.make_teacher(seed, sets.vocabularies, click_rate)
  return 1 / (1 + np.exp(-synthetic.logits(teacher, sets.test)))


def log_losses(p, label):
  return -np.log(np.where(label > 0, p, 1 - p))


def area_under_curve(p, label):
  ranks = np.empty(len(p))
  ranks[np.argsort(p)] = np.arange(1, len(p) + 1)
  clicks = label.sum()
  return (ranks[label > 0].sum() - clicks * (clicks + 1) / 2) / (clicks * (len(p) - clicks))


def test_shapes():
  assert SETS.train.dense.shape == (40_000, 13) and SETS.train.categories.shape == (40_000, 26)
  assert [x.dtype for x in SETS.test] == [np.float32, np.int32, np.float32]
  assert len(SETS.vocabularies) == 26
  assert (min(SETS.vocabularies), max(SETS.vocabularies)) == (3, 1000)
  assert SETS.train.categories.min() == 0 and np.all(SETS.train.categories < SETS.vocabularies)
  assert SETS.train.dense.min() == 0


def test_the_teacher_has_the_best_loss():
  losses = log_losses(teacher_probabilities(SETS), SETS.test.label)
  noise = losses.std() / np.sqrt(len(losses))
  assert abs(losses.mean() - SETS.best_loss) < 4 * noise
  factors = np.random.default_rng(0).uniform(0.5, 1.5, len(losses))
  shaken = np.clip(teacher_probabilities(SETS) * factors, 0, 0.99)
  assert log_losses(shaken, SETS.test.label).mean() > SETS.best_loss + 4 * noise


@pytest.mark.parametrize('seed', [0, 1, 2])
def test_as_hard_as_the_real_log(seed):
  sets = synthetic.generate(1, 40_000, seed)
  assert 0.43 < sets.best_loss < 0.47
  assert 0.78 < area_under_curve(teacher_probabilities(sets, seed), sets.test.label) < 0.81


@pytest.mark.parametrize('rate', [0.03, 0.25, 0.5])
def test_click_rate(rate):
  label = synthetic.generate(60_000, 1, seed=3, click_rate=rate).train.label
  assert abs(label.mean() - rate) < 5 * np.sqrt(rate * (1 - rate) / len(label))


def test_marginals():
  for k, (missing, quantiles) in enumerate(zip(synthetic.MISSING_INTEGERS, synthetic.QUANTILES, strict=True)):
    x = SETS.train.dense[:, k]
    assert x.max() <= quantiles[-1] + 0.7  # rounding may add a half to an integer
    wanted = np.quantile(np.where(np.arange(1000) < 1000 * missing, 0, np.interp(
        (np.arange(1000) / 1000 - missing) / max(1 - missing, 1e-9), synthetic.LEVELS, quantiles)), 0.9)
    assert abs(np.quantile(x, 0.9) - wanted) < 0.35
  for k, missing in enumerate(synthetic.MISSING_CATEGORIES):
    assert abs(np.mean(SETS.train.categories[:, k] == 0) - missing) < 0.02


def test_frequencies_fall_as_a_power():
  field = int(np.argmax(SETS.vocabularies))
  counts = np.bincount(SETS.train.categories[:, field], minlength=1000)[1:]
  slope = np.polyfit(np.log(np.arange(1, 101)), np.log(counts[:100]), 1)[0]
  assert abs(slope + synthetic.EXPONENTS[field]) < 0.1


def test_more_rows_begin_with_the_same():
  few = synthetic.generate(100, 50, seed=0)
  for a, b in zip(few.train, SETS.train, strict=True):
    np.testing.assert_array_equal(a, b[:100])
  long = synthetic.generate(synthetic.CHUNK + 10, 50, seed=0)
  np.testing.assert_array_equal(long.train.categories[:40_000], SETS.train.categories)
  assert len(long.train.label) == synthetic.CHUNK + 10
  assert not np.array_equal(synthetic.generate(100, 50, seed=1).train.categories, few.train.categories)
  assert not np.array_equal(few.train.categories[:50], few.test.categories)


@pytest.mark.parametrize('change', [
    {'rows': 0}, {'test_rows': 0}, {'vocabulary': 2}, {'click_rate': 0.0}, {'click_rate': 1.0}])
def test_bad_numbers(change):
  with pytest.raises(ValueError, match='there must be'):
    synthetic.generate(**{'rows': 10, 'test_rows': 10, 'seed': 0, **change})
