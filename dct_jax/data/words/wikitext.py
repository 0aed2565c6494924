"""WikiText-2, or other text of words between spaces, from its files."""

from __future__ import annotations

import collections
import os
import pathlib

import numpy as np

from dct_jax.data.text import read_lines
from dct_jax.data.words.texts import WordSets

PACKED = ('', '.gz', '.xz')
EOS, UNK = '<eos>', '<unk>'


def load(directory: str | os.PathLike) -> WordSets:
  """Reads the three sets of a directory, with the words of the training set as vocabulary.

  Files are called train.txt or wiki.train.tokens, and so for valid and test; each is plain, .gz or .xz. Every line
  ends with the word <eos>, an empty line is nothing else. Ids are in order of frequency in the training set, words
  that are equally frequent in that of their first occurrence. WikiText-2 has 33,278 words then.

  Args:
    directory: with the files.

  Raises:
    FileNotFoundError: naming the directory or the set that is missing.
    ValueError: if a file cannot be unpacked or is not UTF-8, if a set has no words, or if a set has a word that the
      training set has not while there is no <unk> to stand for it.
  """
  directory = pathlib.Path(directory)
  if not directory.is_dir():
    raise FileNotFoundError(f'there is no directory {directory}')
  paths = {name: find(directory, name) for name in ('train', 'valid', 'test')}
  texts = {name: read(path) for name, path in paths.items()}
  counts = collections.Counter(texts['train'])
  vocabulary = tuple(word for word, _ in counts.most_common())
  numbers = {word: i for i, word in enumerate(vocabulary)}
  sets = {name: _ids(texts[name], numbers, paths[name]) for name in texts}
  return WordSets(**sets, vocabulary=vocabulary, best_perplexity=None, name=directory.name)


def find(directory: pathlib.Path, name: str) -> pathlib.Path:
  """The file of a set.

  Raises:
    FileNotFoundError: if there is none.
  """
  names = (f'{name}.txt', f'wiki.{name}.tokens')
  for path in (directory / f'{plain}{packed}' for plain in names for packed in PACKED):
    if path.exists():
      return path
  raise FileNotFoundError(f'{directory} has no {name} set: no {names[0]} or {names[1]}, plain, .gz or .xz')


def read(path: str | os.PathLike) -> list[str]:
  """All words of a file in their order, with <eos> at the end of each line.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: if it cannot be unpacked, is not UTF-8, or has no words.
  """
  words: list[str] = []
  lines = read_lines(path)
  for line in lines:
    words += line.split()
    words.append(EOS)
  if len(words) == len(lines):
    raise ValueError(f'{path} has no words in its {len(lines):,} lines')
  return words


def _ids(words, numbers, path):
  """int32[words]; those that the vocabulary has not are <unk>."""
  unknown = numbers.get(UNK, -1)
  ids = np.fromiter((numbers.get(word, unknown) for word in words), np.int32, len(words))
  if np.any(ids < 0):
    raise ValueError(f'{path} has words that the training set has not, which has no {UNK} to stand for them: '
                     f'{words[int(np.argmax(ids < 0))]!r} is the first')
  return ids
