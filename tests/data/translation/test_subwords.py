"""Subwords: text comes back, the same from anywhere, and quietly."""

import sys

import numpy as np
import pytest

pytest.importorskip('sentencepiece')

from dct_jax.data.translation import ragged, subwords

TEXT = ['Der Bär läuft über die Straße.', 'Eine Katze schläft unter der Straße!',
        'Der Bär & die Katze ("zwei").', 'Schlafende Bären überqueren Straßen.'] * 3
WORDS = subwords.learn(TEXT, 80)


def model(words):
  return words.processor.serialized_model_proto()


def test_text_comes_back():
  ids = subwords.encode(WORDS, TEXT)
  assert ids.tokens.dtype == np.int32
  assert ids.rows == len(TEXT)
  for i in range(ids.rows):
    assert ids.row(i)[-1] == subwords.EOS
    assert ids.row(i)[:-1].min() > subwords.UNK
  assert subwords.decode(WORDS, [ids.row(i) for i in range(ids.rows)]) == TEXT
  filled = ragged.matrix(ids, np.arange(ids.rows), 60, subwords.PAD)
  assert subwords.decode(WORDS, np.insert(filled, 0, subwords.BOS, axis=1)) == TEXT


def test_ids_that_mean_something():
  assert [WORDS.processor.pad_id(), WORDS.processor.bos_id(), WORDS.processor.eos_id(),
          WORDS.processor.unk_id()] == [subwords.PAD, subwords.BOS, subwords.EOS, subwords.UNK] == [0, 1, 2, 3]
  empty, unknown = (subwords.encode(WORDS, [line]).tokens for line in ('', 'Der 猫'))
  assert empty.tolist() == [subwords.EOS]
  assert np.sum(unknown == subwords.UNK) == 1
  control = subwords.encode(WORDS, ['</s><s><pad>']).tokens  # as text, these are not ours
  assert not np.isin(control[:-1], [subwords.PAD, subwords.BOS, subwords.EOS]).any()


def test_what_a_model_may_say():
  der = subwords.encode(WORDS, ['Der Bär']).row(0)
  assert subwords.decode(WORDS, [np.array([*der, 5, 6, 2, 7])]) == ['Der Bär']  # behind EOS is nothing
  assert subwords.decode(WORDS, [der[:-1]]) == ['Der Bär']  # nor need it come
  assert subwords.decode(WORDS, [np.array([2, 4]), np.zeros(3, np.int32)]) == ['', '']
  assert '⁇' in subwords.decode(WORDS, [np.array([WORDS.size, -1])])[0]
  assert subwords.decode(WORDS, []) == []


def test_lower_case_is_not_case_folding():
  words = subwords.learn(TEXT, 80, lower=True)
  ids = subwords.encode(words, ['Die STRAßE'])
  assert subwords.decode(words, [ids.row(0)]) == ['die straße']
  assert not np.any(ids.tokens == subwords.UNK)


def test_size():
  assert WORDS.size == 80
  assert 80 < subwords.learn(TEXT, 8000).size < 300  # there are no more pieces
  with pytest.raises(ValueError, match='got size=10'):
    subwords.learn(TEXT, 10)
  for nothing in ([], ['', ' ']):
    with pytest.raises(ValueError, match='no text'):
      subwords.learn(nothing, 80)


def test_kept_by_content(tmp_path, monkeypatch):
  first = subwords.learn(TEXT, 80, tmp_path / 'cache')
  assert model(first) == model(WORDS) == model(subwords.learn(TEXT, 80))
  (path,) = (tmp_path / 'cache').iterdir()
  assert path.read_bytes() == model(WORDS)
  for text, size, lower in [(TEXT[1:], 80, False), (TEXT, 81, False), (TEXT, 80, True)]:
    subwords.learn(text, size, tmp_path / 'cache', lower=lower)
  assert len(list((tmp_path / 'cache').iterdir())) == 4
  monkeypatch.setattr(subwords, '_train', None)  # what is kept is not learnt again
  assert model(subwords.learn(TEXT, 80, tmp_path / 'cache')) == model(WORDS)


def test_quiet(capfd):
  subwords.encode(subwords.learn(TEXT, 80), TEXT)
  assert capfd.readouterr() == ('', '')


def test_without_sentencepiece(monkeypatch):
  monkeypatch.setitem(sys.modules, 'sentencepiece', None)
  with pytest.raises(ImportError, match=r'dct_jax\[experiments\]'):
    subwords.learn(TEXT, 80)
