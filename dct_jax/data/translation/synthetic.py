"""A synthetic language pair with a small grammar and a known translation. Nothing here is real data."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from dct_jax.data.translation.parallel_text import Lines, LineSets

# How many words of each kind there are. Frequencies fall as 1 / rank within a kind.
KINDS = {'article': 3, 'adjective': 24, 'noun': 48, 'verb': 32, 'adverb': 12, 'preposition': 6, 'and': 1}
CHUNK = 1024  # sentences drawn at a time, from a seed of their own
VOWELS = {'source': 'aeiou', 'target': ['ae', 'oa', 'ui', 'eo', 'y']}
CONSONANTS = {'source': 'bdfgklmnprst', 'target': ['ch', 'gr', 'h', 'j', 'sk', 'tr', 'v', 'w', 'z', 'fl']}


class Lexicon(NamedTuple):
  """The words of both languages."""

  source: dict[str, list[str]]  # by kind, the most frequent one first
  kind: dict[str, str]  # of each source word
  target: dict[str, str]  # of each source word


def make_lexicon(seed: int) -> Lexicon:
  """Random words: two or three syllables in one language, one or two in the other, which has longer ones."""
  rng = np.random.default_rng([seed, 0])
  count = sum(KINDS.values())
  sides = [_words(rng, count, side, syllables) for side, syllables in [('source', (2, 3)), ('target', (1, 2))]]
  source, rest = {}, iter(sides[0])
  for kind, size in KINDS.items():
    source[kind] = list(itertools.islice(rest, size))
  kinds = {word: kind for kind, words in source.items() for word in words}
  return Lexicon(source, kinds, dict(zip(*sides, strict=True)))


def _words(rng, count, side, syllables):
  made: dict[str, None] = {}  # in order, each once
  all_syllables = [c + v for c in CONSONANTS[side] for v in VOWELS[side]]
  while len(made) < count:
    made[''.join(rng.choice(all_syllables, rng.choice(syllables)))] = None
  return list(made)


def translate(lexicon: Lexicon, sentence: str) -> str:
  """The one right translation.

  Word by word, with two differences in order: an adjective follows its noun, and in each clause (up to the
  comma or the full stop) the verb comes last.

  Examples:
    >>> lexicon = make_lexicon(0)
    >>> a, b, c, d = (lexicon.source[k][0] for k in ('article', 'adjective', 'noun', 'verb'))
    >>> translate(lexicon, f'{a} {b} {c} {d} {a} {c}.') == (
    ...     '{0} {2} {1} {0} {2} {3}.'.format(*(lexicon.target[w] for w in (a, b, c, d))))
    True
  """
  clauses = sentence.removesuffix('.').split(', ')
  return ', '.join(_translate_clause(lexicon, clause.split()) for clause in clauses) + '.'


def _translate_clause(lexicon, words):
  out, verbs, waiting = [], [], []
  for word in words:
    kind, translated = lexicon.kind[word], lexicon.target[word]
    if kind == 'verb':
      verbs.append(translated)
    elif kind == 'adjective':
      waiting.append(translated)
    else:
      out.append(translated)
      if kind == 'noun':
        out += waiting
        waiting = []
  return ' '.join(out + waiting + verbs)


def generate(rows: int = 20_000, valid_rows: int = 500, test_rows: int = 500, seed: int = 0) -> LineSets:
  """Draws sentences of 5 to 25 words, and translates them: BLEU 100 is possible.

  A clause is a subject, a verb, an object, and now and then an adverb or a place; four sentences in ten have
  two clauses. All sentences differ, within sets and between them. More rows begin with the same rows.

  Args:
    rows: of the training set.
    valid_rows: of the validation set.
    test_rows: of the test set.
    seed: of lexicon and sentences.

  Raises:
    ValueError: if a set has no rows.
  """
  if min(rows, valid_rows, test_rows) < 1:
    raise ValueError(f'there must be rows, got {rows=}, {valid_rows=}, {test_rows=}')
  lexicon = make_lexicon(seed)
  seen: set[str] = set()
  test, valid, train = (_draw(lexicon, [seed, k], n, seen)
                        for k, n in [(1, test_rows), (2, valid_rows), (3, rows)])
  return LineSets(train, valid, test, 'synthetic')


def _draw(lexicon, key, rows, seen):
  """Sentences that were not seen before."""
  lines = Lines([], [])
  for number in itertools.count():
    rng = np.random.default_rng([*key, number])
    for sentence in _sentences(lexicon, rng):
      if sentence not in seen:
        seen.add(sentence)
        lines.source.append(sentence)
        lines.target.append(translate(lexicon, sentence))
        if len(lines.source) == rows:
          return lines


def _sentences(lexicon, rng):
  """A chunk of them. Numbers are drawn for all at once, which is what makes it fast."""
  two = rng.random(CHUNK) < 0.4
  clauses = [_clauses(lexicon, rng) for _ in range(2)]
  link = lexicon.source['and'][0]
  return [f'{a}, {link} {b}.' if both else f'{a}.' for both, a, b in zip(two, *clauses, strict=True)]


def _clauses(lexicon, rng):
  subject, thing, place = (_phrases(lexicon, rng) for _ in range(3))
  verb, adverb, preposition = (_pick(lexicon, rng, kind) for kind in ('verb', 'adverb', 'preposition'))
  has_adverb, has_place = (rng.random((2, CHUNK)) < 0.3).tolist()
  return [' '.join([subject[i], verb[i], *[adverb[i]] * has_adverb[i], thing[i],
                    *[preposition[i], place[i]] * has_place[i]]) for i in range(CHUNK)]


def _phrases(lexicon, rng):
  """Articles and nouns, half of them with an adjective between."""
  article, adjective, noun = (_pick(lexicon, rng, kind) for kind in ('article', 'adjective', 'noun'))
  has_adjective = rng.random(CHUNK) < 0.5
  return [f'{a} {b} {c}' if has else f'{a} {c}'
          for has, a, b, c in zip(has_adjective, article, adjective, noun, strict=True)]


def _pick(lexicon, rng, kind):
  words = lexicon.source[kind]
  frequencies = 1 / np.arange(1, len(words) + 1)
  return [words[i] for i in rng.choice(len(words), CHUNK, p=frequencies / frequencies.sum())]
