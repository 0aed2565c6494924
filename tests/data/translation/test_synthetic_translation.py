"""The synthetic pair: its translation is what it says, and its sets have nothing in common."""

import collections

import numpy as np
import pytest

from dct_jax.data.translation import synthetic

SETS = synthetic.generate(4000, 200, 300)


def test_word_by_word_with_two_differences():
  lexicon = synthetic.make_lexicon(0)
  first = {kind: words[0] for kind, words in lexicon.source.items()}

  def say(*kinds):
    return ' '.join(first[k] for k in kinds), ' '.join(lexicon.target[first[k]] for k in kinds)

  source, _ = say('article', 'adjective', 'noun', 'verb', 'adverb', 'article', 'noun', 'preposition', 'article',
                  'adjective', 'noun')
  _, target = say('article', 'noun', 'adjective', 'adverb', 'article', 'noun', 'preposition', 'article', 'noun',
                  'adjective', 'verb')
  assert synthetic.translate(lexicon, f'{source}.') == f'{target}.'
  link = first['and']
  assert synthetic.translate(lexicon, f'{source}, {link} {source}.') == (
      f'{target}, {lexicon.target[link]} {target}.')


def test_the_target_is_a_function_of_the_source():
  lexicon = synthetic.make_lexicon(0)
  for part in SETS[:3]:
    assert part.target == [synthetic.translate(lexicon, line) for line in part.source]
  assert len(set(lexicon.target.values())) == len(lexicon.target) == sum(synthetic.KINDS.values())
  assert not set(lexicon.target.values()) & set(lexicon.target)
  moved = np.mean([[lexicon.target[w] for w in a.strip('.').replace(',', '').split()]
                   != b.strip('.').replace(',', '').split() for a, b in zip(*SETS.train, strict=True)])
  assert moved > 0.99  # the order matters in nearly all


def test_sets_have_nothing_in_common():
  parts = [part.source for part in SETS[:3]]
  assert [len(part) for part in parts] == [4000, 200, 300]
  assert len(set().union(*parts)) == 4500
  assert SETS.name == 'synthetic'


def test_lengths_and_frequencies():
  lengths = [len(line.split()) for line in SETS.train.source]
  assert min(lengths) == 5 and 20 < max(lengths) <= 25
  lexicon = synthetic.make_lexicon(0)
  counts = collections.Counter(w.strip('.,') for line in SETS.train.source for w in line.split())
  nouns = [counts[w] for w in lexicon.source['noun']]
  slope = np.polyfit(np.log(np.arange(1, 49)), np.log(nouns), 1)[0]
  assert abs(slope + 1) < 0.1


def test_more_rows_begin_with_the_same():
  few = synthetic.generate(100, 200, 300)
  assert few.train.source == SETS.train.source[:100] and few.test == SETS.test
  other = synthetic.generate(100, 10, 10, seed=1)
  assert not set(other.train.source) & set(SETS.train.source)


@pytest.mark.parametrize('change', [{'rows': 0}, {'valid_rows': 0}, {'test_rows': 0}])
def test_bad_numbers(change):
  with pytest.raises(ValueError, match='there must be rows'):
    synthetic.generate(**change)
