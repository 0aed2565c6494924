"""Windows of text and negatives: every word once a pass, any step at once, shares of processes, the sampler's law."""

import itertools

import numpy as np
import pytest

from dct_jax.data import words

TEXT = np.arange(1000, dtype=np.int32) % 97
OPTIONS = {'vocabulary': 97, 'rows': 3, 'length': 5, 'negatives': 7, 'seed': 1}


def steps(count, workers=2, **more):
  return list(itertools.islice(words.batches(TEXT, workers, **(OPTIONS | more)), count))


def test_streams_go_on_and_targets_are_what_comes_next():
  text = np.arange(1000, dtype=np.int32)
  count = words.steps_of_a_pass(text, 2, rows=3, length=5)
  assert count == (1000 // 6 - 5) // 5
  passes = list(itertools.islice(words.batches(text, 2, **(OPTIONS | {'vocabulary': 1000})), 2 * count))
  begins = []
  for batches in (passes[:count], passes[count:]):
    tokens = np.concatenate([b['tokens'] for b in batches], axis=1)
    assert tokens.shape == (6, 5 * count) and np.all(np.diff(tokens, axis=1) == 1)
    begins.append(tokens[:, 0] - 166 * np.arange(6))
    assert np.all(begins[-1] == begins[-1][0]) and 0 <= begins[-1][0] < 5
    for b in batches:
      np.testing.assert_array_equal(b['targets'], b['tokens'] + 1)
  assert begins[0][0] != begins[1][0]  # with this seed


def test_any_step_is_had_without_those_before():
  whole = steps(70)
  for start in (1, 33, 64):
    for a, b in zip(whole[start:], steps(3, step=start), strict=False):
      assert {k: v.tolist() for k, v in a.items()} == {k: v.tolist() for k, v in b.items()}


def test_processes_share_what_one_has():
  whole = steps(3, workers=4)
  parts = [steps(3, workers=4, process=i, processes=2) for i in range(2)]
  for t, batch in enumerate(whole):
    for name, x in batch.items():
      np.testing.assert_array_equal(np.concatenate([part[t][name] for part in parts]), x)
  assert {k: (v.shape, v.dtype) for k, v in whole[0].items()} == {
      'tokens': ((12, 5), np.int32), 'targets': ((12, 5), np.int32), 'negatives': ((28,), np.int32),
      'seed': ((4,), np.uint32)}


def test_negatives_differ_between_workers_and_steps_unless_asked():
  first, second = (b['negatives'].reshape(2, -1) for b in steps(2, negatives=50))
  assert (first[0] != first[1]).any() and (first != second).any()
  first, second = (b['negatives'].reshape(2, -1) for b in steps(2, negatives=50, same_negatives=True))
  assert (first[0] == first[1]).all() and (first != second).any()
  assert len({int(s) for b in steps(5) for s in b['seed']}) == 10


def drawn_one_by_one(rng, count, vocabulary):
  """Different words, by drawing until there are enough."""
  p = [np.log((k + 2) / (k + 1)) / np.log(vocabulary + 1) for k in range(vocabulary)]
  found = []
  while len(found) < count:
    word = rng.choice(vocabulary, p=p)
    if word not in found:
      found.append(int(word))
  return found


def test_the_sampler_is_log_uniform():
  rng, count, vocabulary, times = np.random.default_rng(0), 4, 12, 3000
  ours = np.array([words.log_uniform(rng, count, vocabulary) for _ in range(times)])
  assert all(len(set(row)) == count for row in ours) and ours.dtype == np.int32
  theirs = np.array([drawn_one_by_one(rng, count, vocabulary) for _ in range(times)])
  often, expected = (np.bincount(x.reshape(-1), minlength=vocabulary) / times for x in (ours, theirs))
  assert np.all(np.abs(often - expected) < 5 * np.sqrt(2 * 0.25 / times))
  single = np.bincount([words.log_uniform(rng, 1, vocabulary)[0] for _ in range(times)], minlength=vocabulary) / times
  law = np.log1p(1 / np.arange(1, vocabulary + 1)) / np.log(vocabulary + 1)
  assert np.all(np.abs(single - law) < 5 * np.sqrt(law / times))


@pytest.mark.parametrize(('count', 'vocabulary'), [(10, 40), (300, 3000), (39, 40), (40, 40)])
def test_words_are_drawn_as_often_as_expected(count, vocabulary):
  rng, times = np.random.default_rng(1), 2000
  often = sum(np.bincount(words.log_uniform(rng, count, vocabulary), minlength=vocabulary)
              for _ in range(times)) / times
  expected = words.expected_counts(count, vocabulary)
  assert expected.sum() == pytest.approx(count) and expected.max() <= 1
  # Five standard errors, and what a fixed time of arrival leaves out.
  assert np.all(np.abs(often - expected) < 5 * np.sqrt(0.25 / times) * expected.clip(0.1)**0.5 + 0.01)


@pytest.mark.parametrize('most', [None, 1, 37, 45, 2000])
def test_evaluation_has_every_word_once(most):
  text = np.arange(100, 200)
  batches = list(words.in_order(text, most, rows=3, length=5))
  assert {b['tokens'].shape for b in batches} == {(3, 5)}
  tokens, targets, weight = (np.concatenate([b[k].reshape(-1) for b in batches])
                             for k in ('tokens', 'targets', 'weight'))
  count = min(most or 99, 99)
  np.testing.assert_array_equal(tokens[weight > 0], text[:count])
  np.testing.assert_array_equal(targets[weight > 0], text[1:count + 1])
  assert len(batches) == -(-count // 15) and set(weight) <= {0, 1}


@pytest.mark.parametrize(('change', 'message'), [
    ({'workers': 0}, 'there must be workers'),
    ({'negatives': 0}, 'there must be workers'),
    ({'negatives': 98}, 'negatives are different words'),
    ({'step': -1}, 'no step is negative'),
    ({'processes': 3}, 'share the workers equally'),
    ({'process': 2, 'processes': 2}, 'share the workers equally'),
    ({'rows': 60}, 'too short for 120 streams'),
    ({'vocabulary': 96}, 'ids of words are from 0 to 95, got 0 to 96')])
def test_bad_settings_are_refused(change, message):
  with pytest.raises(ValueError, match=message):
    steps(1, **change)


def test_bad_texts_are_refused():
  for text in (np.zeros((3, 4), np.int32), np.zeros(500), np.zeros(0, np.int32)):
    with pytest.raises(ValueError, match=r'a text is int\[words\]'):
      words.batches(text, 1, vocabulary=9, negatives=3)
  with pytest.raises(ValueError, match='words to predict'):
    words.in_order(np.zeros(1, np.int32), rows=2)
  with pytest.raises(ValueError, match='as many words to draw from'):
    words.log_uniform(np.random.default_rng(0), 3, 0)
