"""WikiText's files: words in order of frequency, ends of lines, and files that are not what they should be."""

import gzip
import lzma

import numpy as np
import pytest

from dct_jax.data import words
from dct_jax.data.words import wikitext

TRAIN = ' \n = b = \n \n b a <unk> b c , \n a b \n'


def write(folder, **texts):
  for name, text in ({'train': TRAIN, 'valid': ' a b \n', 'test': ' c d \n'} | texts).items():
    (folder / f'{name}.txt').write_text(text)
  return folder


def test_ids_are_in_order_of_frequency(tmp_path):
  sets = words.load(write(tmp_path))
  # By hand: <eos> 5, b 4, then = and a with 2 (= comes first), then those that occur once, in their order.
  assert sets.vocabulary == ('<eos>', 'b', '=', 'a', '<unk>', 'c', ',')
  assert sets.train.tolist() == [0, 2, 1, 2, 0, 0, 1, 3, 4, 1, 5, 6, 0, 3, 1, 0]
  assert sets.valid.tolist() == [3, 1, 0] and sets.train.dtype == np.int32
  assert sets.test.tolist() == [5, 4, 0]  # d is unknown
  assert sets.best_perplexity is None and sets.name == tmp_path.name


def test_files_may_be_packed_and_have_their_public_names(tmp_path):
  plain = words.load(write(tmp_path))
  (tmp_path / 'other').mkdir()
  (tmp_path / 'other/wiki.train.tokens').write_text(TRAIN)
  (tmp_path / 'other/valid.txt.gz').write_bytes(gzip.compress(b' a b \n'))
  (tmp_path / 'other/wiki.test.tokens.xz').write_bytes(lzma.compress(b' c d \n'))
  packed = words.load(tmp_path / 'other')
  for a, b in zip(plain[:3], packed[:3], strict=True):
    np.testing.assert_array_equal(a, b)


def test_bad_files_are_refused(tmp_path):
  with pytest.raises(FileNotFoundError, match='there is no directory'):
    words.load(tmp_path / 'nowhere')
  write(tmp_path)
  (tmp_path / 'test.txt').unlink()
  with pytest.raises(FileNotFoundError, match=r'has no test set: no test\.txt or wiki\.test\.tokens'):
    words.load(tmp_path)
  with pytest.raises(ValueError, match='has no words in its 2 lines'):
    words.load(write(tmp_path, test=' \n\n'))
  (tmp_path / 'test.txt').write_bytes(b'a b\n\xff\n')
  with pytest.raises(ValueError, match='line 2: this is not UTF-8'):
    words.load(tmp_path)
  with pytest.raises(ValueError, match="no <unk> to stand for them: 'd' is the first"):
    words.load(write(tmp_path, train='a b c\n'))


def test_wikitext_2_is_what_it_is_known_to_be(shared_data):
  if not (shared_data / 'wikitext2').is_dir():
    pytest.skip('WikiText-2 is not here')
  sets = wikitext.load(shared_data / 'wikitext2')
  assert [len(text) for text in sets[:3]] == [2_088_628, 217_646, 245_569]
  assert len(sets.vocabulary) == 33_278 and sets.vocabulary[:3] == ('the', ',', '.')
  counts = np.bincount(sets.train, minlength=33_278)
  assert np.all(np.diff(counts) <= 0) and counts[-1] > 0
