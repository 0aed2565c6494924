"""Parallel text: two files of lines, of which line i of one translates line i of the other."""

from __future__ import annotations

import hashlib
import os
import pathlib
from typing import NamedTuple

from absl import logging

from dct_jax.data.text import read_lines

PACKED = ('', '.gz', '.xz')
VALID = ('valid', 'val', 'dev')
PARTS = 10  # of a set that is split: one for the test, one for validation, the others to train on


class Lines(NamedTuple):
  """Sentences and their translations."""

  source: list[str]
  target: list[str]


class LineSets(NamedTuple):
  """The sets of one language pair."""

  train: Lines
  valid: Lines
  test: Lines
  name: str


def read(source: str | os.PathLike, target: str | os.PathLike) -> Lines:
  """Reads two files.

  Raises:
    FileNotFoundError: if one of them is missing.
    ValueError: if they have no lines, or not equally many.
  """
  lines = Lines(read_lines(source), read_lines(target))
  counts = f'{source} has {len(lines.source):,} lines and {target} has {len(lines.target):,}'
  if len(lines.source) != len(lines.target):
    raise ValueError(f'the files do not belong together: {counts}')
  if not lines.source:
    raise ValueError(f'there is nothing to read: {counts}')
  return lines


def load(directory: str | os.PathLike, source: str = 'de', target: str = 'en', *,
         test: str = 'test*') -> LineSets:
  """Finds and reads the sets of a directory.

  Files are called train, valid (or val, dev) and test*, then .LANGUAGE; the pair may stand in between, as in
  valid.de-en.de; each is plain, .gz or .xz. If just one of the sets is there, `split` makes three of it, with
  a warning and a name that says so: results are then not comparable with those on the real sets.

  Args:
    directory: with the files.
    source: language that is translated from.
    target: language that is translated to.
    test: pattern of the test set's name, for directories that have several.

  Raises:
    FileNotFoundError: naming what is missing.
    ValueError: if several test sets fit the pattern, or as `read`.
  """
  directory = pathlib.Path(directory)
  if not directory.is_dir():
    raise FileNotFoundError(f'there is no directory {directory}')
  found = {'train': _find(directory, ('train',), source, target),
           'valid': _find(directory, VALID, source, target), 'test': _find(directory, (test,), source, target)}
  if len(found['test']) > 1:
    raise ValueError(f'{directory} has several test sets, {", ".join(found["test"])}: name one, got {test=}')
  there = {name: stems[0] for name, stems in found.items() if stems}
  if len(there) in (0, 2):
    missing = ' and '.join(sorted(found.keys() - there.keys()))
    raise FileNotFoundError(f'{directory} has no {missing} set: no file like {missing.split()[0]}.{source}, '
                            f'plain, .gz or .xz')
  lines = {name: read(*(_path(directory, stem, language) for language in (source, target)))
           for name, stem in there.items()}
  if len(there) == 3:
    return LineSets(**lines, name=directory.name)
  (stem,), (only,) = there.values(), lines.values()
  logging.warning('%s has only %s: it is split into sets to train, validate and test', directory, stem)
  return split(only, f'{directory.name}: {stem}, split')


def _find(directory, patterns, source, target):
  """Names of sets without language, in the order of the patterns."""
  pairs = ('', f'.{source}-{target}', f'.{target}-{source}')
  paths = [path for pattern in patterns for pair in pairs for packed in PACKED
           for path in sorted(directory.glob(f'{pattern}{pair}.{source}{packed}'))]
  return list(dict.fromkeys(path.name.rpartition(f'.{source}')[0] for path in paths))


def _path(directory, stem, language):
  for packed in PACKED:
    path = directory / f'{stem}.{language}{packed}'
    if path.exists():
      return path
  raise FileNotFoundError(f'there is no {stem}.{language}, nor one that ends in .gz or .xz, in {directory}')


def split(lines: Lines, name: str) -> LineSets:
  """Three sets of one: a tenth to test, a tenth to validate, the others to train, in the order they have.

  A hash of the source sentence decides, not its position: sentences that occur more than once stay together,
  and so no source sentence is in two sets.

  Raises:
    ValueError: if one of them would be empty.

  Examples:
    >>> numbers = [str(i) for i in range(1000)]
    >>> [len(part.source) for part in split(Lines(numbers, numbers), 'numbers')[:3]]
    [812, 99, 89]
  """
  test, valid, train = (Lines([], []) for _ in range(3))
  for source, target in zip(*lines, strict=True):
    part = int.from_bytes(hashlib.blake2b(source.encode(), digest_size=8).digest(), 'big') % PARTS
    into = {0: test, 1: valid}.get(part, train)
    into.source.append(source)
    into.target.append(target)
  if not all(part.source for part in (train, valid, test)):
    raise ValueError(f'{name}: {len(lines.source):,} lines are too few to split')
  return LineSets(train, valid, test, name)
