"""Sentence pairs as models take them: text, through subwords, to ids."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np

from dct_jax.data.translation import parallel_text, ragged, subwords
from dct_jax.data.translation import synthetic as synthetic_translation
from dct_jax.data.translation.parallel_text import Lines, LineSets
from dct_jax.data.translation.ragged import Ragged
from dct_jax.data.translation.subwords import EOS, UNK, Subwords


class Pairs(NamedTuple):
  """Ids of sentences and of their translations; every row ends with EOS."""

  source: Ragged
  target: Ragged

  @property
  def rows(self) -> int:
    """How many there are."""
    return self.source.rows


def first(pairs: Pairs, most: int) -> Pairs:
  """The first pairs, at most so many."""
  return Pairs(*(ragged.take(side, np.arange(min(most, pairs.rows))) for side in pairs))


class Report(NamedTuple):
  """What became of a set's lines; as text it is a line for a log."""

  name: str
  lines: int
  kept: int  # lines minus empty and long in a training set; all in others, where the long ones are cut
  empty: int  # pairs with nothing on one side, or on both
  long: int  # pairs of more than `longest` tokens on one side, or on both
  longest: int
  source_tokens: int  # of the pairs that were kept, with EOS
  target_tokens: int
  unknown: int  # tokens that are UNK among them

  def __str__(self) -> str:
    return (f'{self.name}: kept {self.kept:,} of {self.lines:,} pairs ({self.empty:,} empty, {self.long:,} '
            f'over {self.longest} tokens), {self.source_tokens:,} and {self.target_tokens:,} tokens, '
            f'{self.unknown:,} of them unknown')


class TranslationSets(NamedTuple):
  """All that an experiment needs."""

  train: Pairs
  valid: Pairs  # row i is line i of lines.valid, and so for the test set: nothing is skipped there
  test: Pairs
  lines: LineSets  # the text, for BLEU
  source_words: Subwords
  target_words: Subwords
  reports: tuple[Report, ...]  # of train, valid and test

  @property
  def name(self) -> str:
    """Of the data."""
    return self.lines.name


def load(data: str | os.PathLike, cache_dir: str | os.PathLike | None, *, source: str = 'de',
         target: str = 'en', test: str = 'test*', **options: Any) -> TranslationSets:
  """Loads a training, a validation and a test set.

  Args:
    data: '' or 'synthetic' (not real data; the languages then mean nothing), or a directory as
      `parallel_text.load` takes it.
    cache_dir: where learnt subwords are kept; nowhere if it is None.
    source: language that is translated from.
    target: language that is translated to.
    test: pattern of the test set's name.
    options: of `prepare`.

  Raises:
    FileNotFoundError: as `parallel_text.load`.
    ValueError: as `parallel_text.load` and `prepare`.
  """
  if os.fspath(data) in ('', 'synthetic'):
    return prepare(synthetic_translation.generate(), cache_dir, **options)
  return prepare(parallel_text.load(data, source, target, test=test), cache_dir, **options)


def prepare(lines: LineSets, cache_dir: str | os.PathLike | None = None, *, size: int = 8000,
            joint: bool = False, lower: bool = False, longest: int = 128,
            max_skipped: float = 0.05) -> TranslationSets:
  """Learns subwords from the training set, and encodes all sets.

  Of the training set, pairs that are empty on a side or too long are skipped and counted. The other sets keep
  all their lines, for BLEU is of all: what is too long is cut (the text of a reference is not), and counted.

  Args:
    lines: the text.
    cache_dir: where learnt subwords are kept; nowhere if it is None.
    size: ids of each vocabulary, at most.
    joint: whether both languages have one vocabulary. By default each has its own: no embedding is then spent
      on the other's words, and pieces are longer. fairseq's recipe for IWSLT'14 learns pieces from both and
      keeps two dictionaries, which comes to nearly the same but for names that both languages share. Joint
      ids are what a model needs that shares the embeddings of both sides.
    lower: whether to lower-case what models see. References keep their case: let BLEU ignore it.
    longest: tokens of a sentence, with EOS.
    max_skipped: share of the training pairs that may be skipped.

  Raises:
    ValueError: if more is skipped, or nothing is left, or as `subwords.learn`.
  """
  if longest < 2 or not 0 <= max_skipped <= 1:
    raise ValueError('a sentence must have room for a token and EOS, and max_skipped is a share, got '
                     f'{longest=}, {max_skipped=}')
  learn = lambda text: subwords.learn(text, size, cache_dir, lower=lower)
  words = [learn(lines.train.source + lines.train.target)] * 2 if joint else [learn(x) for x in lines.train]
  train, first = _skip(_encode(words, lines.train), lines.train, longest, f'{lines.name}, train')
  if not first.kept or first.lines - first.kept > max_skipped * first.lines:
    raise ValueError(f'too many pairs are unfit to train on, got {max_skipped=}: {first}')
  valid, second = _cut(_encode(words, lines.valid), lines.valid, longest, f'{lines.name}, valid')
  test, third = _cut(_encode(words, lines.test), lines.test, longest, f'{lines.name}, test')
  return TranslationSets(train, valid, test, lines, words[0], words[1], (first, second, third))


def _encode(words, lines):
  return Pairs(*(subwords.encode(w, side) for w, side in zip(words, lines, strict=True)))


def _skip(pairs, lines, longest, name):
  empty, long = _unfit(pairs, longest)
  kept = np.flatnonzero(~empty & ~long)
  chosen = Pairs(*(ragged.take(side, kept) for side in pairs))
  return chosen, _report(name, lines, chosen, empty, long, longest)


def _cut(pairs, lines, longest, name):
  empty, long = _unfit(pairs, longest)
  chosen = Pairs(*(_shorten(side, longest) for side in pairs))
  return chosen, _report(name, lines, chosen, empty, long, longest)


def _unfit(pairs, longest):
  """Which are empty (nothing but EOS), and which are too long and not empty."""
  lengths = np.stack([side.lengths for side in pairs])
  empty = np.any(lengths == 1, axis=0)
  return empty, np.any(lengths > longest, axis=0) & ~empty


def _shorten(side, longest):
  """Rows up to a length; EOS stays at their end."""
  lengths = np.minimum(side.lengths, longest)
  starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
  at = np.repeat(side.starts[:-1] - starts[:-1], lengths) + np.arange(starts[-1])
  tokens = side.tokens[at]
  tokens[starts[1:] - 1] = EOS
  return Ragged(tokens, starts)


def _report(name, lines: Lines, pairs, empty, long, longest):
  unknown = sum(int(np.sum(side.tokens == UNK)) for side in pairs)
  return Report(name, len(lines.source), pairs.rows, int(empty.sum()), int(long.sum()), longest,
                len(pairs.source.tokens), len(pairs.target.tokens), unknown)
