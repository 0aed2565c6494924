"""From text to ids: what is skipped, what is cut, what is refused."""

import numpy as np
import pytest

pytest.importorskip('sentencepiece')

from dct_jax.data.translation import pairs as translation
from dct_jax.data.translation import subwords
from dct_jax.data.translation import synthetic as synthetic_translation
from dct_jax.data.translation.parallel_text import Lines, LineSets

SMALL = synthetic_translation.generate(300, 20, 20)


def texts(words, side):
  return subwords.decode(words, [side.row(i) for i in range(side.rows)])


def with_train(*pairs):
  lines = Lines(SMALL.train.source + [a for a, _ in pairs], SMALL.train.target + [b for _, b in pairs])
  return SMALL._replace(train=lines)


def test_text_comes_back():
  sets = translation.prepare(SMALL)
  for pairs, lines in zip(sets[:3], SMALL[:3], strict=True):
    assert texts(sets.source_words, pairs.source) == lines.source
    assert texts(sets.target_words, pairs.target) == lines.target
  assert [r.kept for r in sets.reports] == [300, 20, 20]
  assert sets.lines is SMALL and sets.name == 'synthetic'


def test_one_vocabulary_or_two():
  one, two = translation.prepare(SMALL, joint=True), translation.prepare(SMALL)
  assert one.source_words is one.target_words
  assert two.source_words is not two.target_words
  assert texts(one.target_words, one.test.target) == SMALL.test.target


def test_training_pairs_that_are_skipped():
  long = ' '.join(SMALL.train.source[:40])
  sets = translation.prepare(with_train(('', 'x'), ('x', ' '), ('', ''), (long, 'x'), ('x', long), ('', long)))
  report = sets.reports[0]
  assert report[:6] == ('synthetic, train', 306, 300, 4, 2, 128)
  assert str(report).startswith('synthetic, train: kept 300 of 306 pairs (4 empty, 2 over 128 tokens), ')
  assert texts(sets.source_words, sets.train.source) == SMALL.train.source
  assert (report.source_tokens, report.target_tokens) == (len(sets.train.source.tokens),
                                                          len(sets.train.target.tokens))


def test_too_many_are_refused():
  assert translation.prepare(with_train(*[('', 'x')] * 15)).reports[0].empty == 15
  unfit = with_train(*[('', 'x')] * 16)
  with pytest.raises(ValueError, match=r'max_skipped=0\.05: synthetic, train: kept 300 of 316 pairs \(16 emp'):
    translation.prepare(unfit)
  assert translation.prepare(unfit, max_skipped=0.1).train.rows == 300
  with pytest.raises(ValueError, match='kept 0 of'):
    translation.prepare(SMALL, longest=2, max_skipped=1)
  for change in ({'longest': 1}, {'max_skipped': 1.1}, {'max_skipped': -0.1}):
    with pytest.raises(ValueError, match='must have room'):
      translation.prepare(SMALL, **change)


@pytest.mark.parametrize('name', ['valid', 'test'])
def test_nothing_else_is_skipped(name):
  long = ' '.join(SMALL.train.source[:40])
  lines = Lines(['', long, *SMALL.test.source, long], ['x', *SMALL.test.target, 'y', ''])
  sets = translation.prepare(SMALL._replace(**{name: lines}))
  pairs, report = getattr(sets, name), sets.reports[('train', 'valid', 'test').index(name)]
  assert (report.lines, report.kept, report.empty, report.long) == (23, 23, 2, 1)
  assert pairs.source.row(0).tolist() == pairs.target.row(22).tolist() == [subwords.EOS]
  for row in (1, 22):
    cut, whole = pairs.source.row(row), subwords.encode(sets.source_words, [long]).row(0)
    np.testing.assert_array_equal(cut, [*whole[:127], subwords.EOS])
  assert texts(sets.source_words, pairs.source)[2:22] == SMALL.test.source
  assert getattr(sets.lines, name) is lines  # the references are whole


def test_lower_case():
  shout = LineSets(*(Lines([x.upper() for x in part.source], part.target) for part in SMALL[:3]), name='loud')
  sets = translation.prepare(shout, lower=True)
  assert texts(sets.source_words, sets.test.source) == SMALL.test.source
  assert sets.lines.test.source == shout.test.source


def test_sets_by_name(tmp_path, monkeypatch):
  monkeypatch.setattr(synthetic_translation, 'generate', lambda: SMALL)
  for name in ('', 'synthetic'):
    assert translation.load(name, tmp_path).name == 'synthetic'
  with pytest.raises(FileNotFoundError, match='no directory'):
    translation.load(tmp_path / 'nowhere', None)
  for name, lines in zip(('train', 'val', 'test_a'), SMALL[:3], strict=True):
    for language, side in zip(('xx', 'yy'), lines, strict=True):
      (tmp_path / f'{name}.{language}').write_text(''.join(x + '\n' for x in side))
  sets = translation.load(tmp_path, None, source='xx', target='yy', size=200)
  assert sets.lines[:3] == SMALL[:3]
  assert sets.source_words.size == 200
