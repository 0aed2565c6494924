"""BLEU and perplexity, against what is known of them."""

import sys

import numpy as np
import pytest

from dct_jax.data.translation import synthetic as synthetic_translation
from dct_jax.measures import bleu, perplexity

SMALL = synthetic_translation.generate(300, 20, 20)


def test_perplexity_of_equal_chances_is_their_number():
  assert perplexity(np.log(7)) == pytest.approx(7)
  assert perplexity(0.0) == 1
  assert perplexity(1e4) == np.inf  # without a warning
  assert type(perplexity(np.float64(1))) is float


def test_bleu():
  pytest.importorskip('sacrebleu')
  lines = SMALL.test.target
  score, signature = bleu(lines, lines)
  assert score == pytest.approx(100)
  assert 'tok:13a' in signature and 'case:mixed' in signature
  assert bleu([x.upper() for x in lines], lines)[0] < 50
  assert bleu([x.upper() for x in lines], lines, lowercase=True)[0] == pytest.approx(100)
  assert bleu(SMALL.test.source, lines)[0] < 1
  assert 'tok:none' in bleu(['a b .'], ['a b .'], tokenize='none')[1]
  # All n-grams right, two words of six missing: the brevity penalty alone.
  assert bleu(['a b c d'], ['a b c d e f'])[0] == pytest.approx(100 * np.exp(1 - 6 / 4))
  for hypotheses in ([], lines[1:]):
    with pytest.raises(ValueError, match='each reference must have a hypothesis'):
      bleu(hypotheses, lines)


def test_without_sacrebleu(monkeypatch):
  monkeypatch.setitem(sys.modules, 'sacrebleu', None)
  with pytest.raises(ImportError, match=r'dct_jax\[experiments\]'):
    bleu(['a'], ['a'])
