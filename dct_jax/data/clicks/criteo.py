"""Criteo's display advertising log: from its text to arrays that are memory-mapped.

A line is a label, 13 integers and 26 hexadecimal categories, with tabs between them; an empty field is a
missing value. The file is parsed once, block by block, into parts on the disk; a second pass over these gives
values their ids and writes one array each for the integers, the categories and the labels.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import itertools
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tqdm
from absl import logging

from dct_jax.data import text
from dct_jax.data.clicks.rows import Clicks, ClickSets
from dct_jax.data.clicks.vocabulary import count_values, lookup, make_vocabulary

INTEGERS = [f'I{i}' for i in range(1, 14)]
CATEGORIES = [f'C{i}' for i in range(1, 27)]
COLUMNS = ['label', *INTEGERS, *CATEGORIES]
FORM = 'label (0 or 1), 13 integers, 26 hexadecimal categories; tabs between them'
TAB, NEWLINE, PLUS = b'\t\n+'
BLOCK = 16 << 20  # bytes that are parsed at a time: some 70,000 rows
COUNTED = 1 << 26  # training rows for each pass of counting: it bounds the distinct values held in memory
VERSION = 1  # of the cache's format
Encode = Callable[[np.ndarray], np.ndarray]


def prepare(path: str | os.PathLike, cache_dir: str | os.PathLike, *, vocabulary: str = 'frequency',
            min_count: int = 10, buckets: int = 100_000, max_malformed: int = 0,
            days: Sequence[int] | None = None, test_share: float = 1 / 7, test: str | os.PathLike = '',
            progress: bool = True) -> ClickSets:
  """Reads the log, once: later calls with the same file and options open what was kept.

  Integers become log(1 + x). Missing values and negative ones count as 0, as in the public DLRM, which sets
  them to 0 before it takes log(x + 1). A missing category is the same as the value 0 there and here.

  Memory holds a block of text and the distinct values of a field, or of a range of its values if the log is
  long, but never the log. A preparation that was interrupted goes on behind the last part that it finished.
  Other processes that want the same wait for the first.

  Args:
    path: a plain, .gz or .xz file, its rows in the order of time.
    cache_dir: where arrays are kept: 160 bytes a row, and twice that while they are being made.
    vocabulary: 'frequency' gives an id to each value that occurs often enough among the training rows, the
      most frequent one being 1, and 0 to all others; 'hash' takes the value modulo `buckets`.
    min_count: what often enough is.
    buckets: ids of a field for 'hash'.
    max_malformed: malformed lines that are skipped, with a warning.
    days: rows of each day, of which the last one is the test set. None takes a share of the rows.
    test_share: of the rows, from the end, without `days`. Kaggle's file holds seven days.
    test: another file, of whose rows the test set is made instead; values have the ids that they have among the
      training rows, and rows of the test share are not used. '' without one.
    progress: whether to show bars.

  Returns:
    Sets of memory-mapped arrays. A field without any value has a vocabulary of 1.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: for options that make no sense, more malformed lines than allowed, days that are not the
      file's, or a packed file that is damaged.
  """
  _check(vocabulary, min_count, buckets, days, test_share)
  name, cache, source = pathlib.Path(path).name, pathlib.Path(cache_dir), _identity(path)
  chosen = [vocabulary, min_count if vocabulary == 'frequency' else buckets, list(days or []), test_share,
            *(_identity(test) if test else ())]
  unpacked, kept = cache / f'{name}-{_digest(source)}.parts', cache / f'{name}-{_digest(source + chosen)}'
  tested = cache / f'{name}-{_digest(source + chosen)}.test-parts'
  cache.mkdir(parents=True, exist_ok=True)
  with _locked(cache / f'{name}.lock'):
    if not kept.exists():
      parts, malformed = _read_whole(path, unpacked, max_malformed, progress)
      rows = _rows(parts)
      train_rows = _split(path, rows, days, test_share)
      about = {'train_rows': train_rows, 'test_from': rows if test else train_rows, **malformed}
      if test:
        more, about['test_malformed'] = _read_whole(test, tested, max_malformed, progress)
        parts += more
        if not _rows(more):
          raise ValueError(f'{test} has no rows to test on')
      encoders, about['vocabularies'] = (_frequent(parts, train_rows, min_count, progress)
                                         if vocabulary == 'frequency' else _hashed(parts, buckets))
      _assemble(parts, _rows(parts), encoders, kept, about, progress)
      for directory in {part.parent for part in parts}:
        _remove(directory)
  return _open(path, test, kept, max_malformed)


def _identity(path):
  status = os.stat(path)
  return [VERSION, BLOCK, os.path.abspath(path), status.st_size, status.st_mtime_ns]


def _rows(parts):
  return sum(len(np.load(part / 'label.npy', mmap_mode='r')) for part in parts)


def _check(vocabulary, min_count, buckets, days, test_share):
  if vocabulary not in ('frequency', 'hash'):
    raise ValueError(f"vocabulary must be 'frequency' or 'hash', got {vocabulary=}")
  if min_count < 1 or not 1 <= buckets < 2**31:
    raise ValueError(f'min_count and buckets must be positive, got {min_count=}, {buckets=}')
  if not 0 <= test_share < 1 or (days is not None and (len(days) < 2 or min(days) < 1)):
    raise ValueError(f'there must be rows to train on, got {test_share=}, {days=}')


def _digest(what):
  return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]


@contextlib.contextmanager
def _locked(path) -> Iterator[None]:
  """One process at a time; the lock goes with the process that holds it, and its file with the last one."""
  while True:
    with open(path, 'w') as file:
      fcntl.flock(file, fcntl.LOCK_EX)
      if not _is(file, path):  # who had it before has removed it: this is no lock any more
        continue
      try:
        yield
      finally:
        os.unlink(path)
      return


def _is(file, path):
  """Whether an open file is still the one at a path."""
  try:
    return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
  except FileNotFoundError:
    return False


def _read_whole(path, directory, max_malformed, progress):
  """`_read_parts`, which leaves nothing of a damaged file: when that is mended, it is another one."""
  try:
    return _read_parts(path, directory, max_malformed, progress)
  except text.DamagedError:
    _remove(directory)
    raise


def _read_parts(path, directory, max_malformed, progress):
  """Parses what is not parsed yet; paths of all parts, in order, and what was malformed."""
  directory.mkdir(exist_ok=True)
  bad = text.Malformed(path, max_malformed, FORM)
  parts, line = [], 1
  with tqdm.tqdm(total=text.plain_size(path), unit='B', unit_scale=True, desc='parsing',
                 disable=not progress) as bar:
    for number, block in enumerate(text.blocks(path, BLOCK)):
      parts.append(directory / f'{number:06d}')
      if not parts[-1].exists():
        _write(parts[-1], _parse(block))
      wrong = np.load(parts[-1] / 'malformed.npy')
      lines = block.split(b'\n') if wrong.size else []
      for i in wrong:
        bad.add(line + int(i), lines[i])
      line += block.count(b'\n')
      bar.update(len(block))
  return parts, {'malformed': bad.count, 'first_malformed': bad.first}


def _write(directory, arrays):
  """Whole or not at all: an interruption leaves nothing under the final name."""
  partial = directory.with_suffix('.partial')
  shutil.rmtree(partial, ignore_errors=True)
  partial.mkdir()
  for name, array in arrays.items():
    np.save(partial / f'{name}.npy', array)
  partial.replace(directory)


def _remove(directory):
  """Under another name first: an interruption must not leave a half of it that looks like a whole."""
  condemned = directory.with_suffix('.removed')
  shutil.rmtree(condemned, ignore_errors=True)
  directory.replace(condemned)
  shutil.rmtree(condemned)


def _parse(block):
  """Whole lines -> label[rows], dense[rows, 13], categories[26, rows], malformed (numbers of lines, from 0)."""
  import polars as pl
  good, blank, block = _find_rows(block)
  texts = pl.read_csv(block, has_header=False, separator='\t', quote_char=None, encoding='utf8-lossy',
                      schema=dict.fromkeys(COLUMNS, pl.String))
  numbers = texts.select(pl.col(INTEGERS).cast(pl.Int64, strict=False),
                         pl.col(CATEGORIES).str.to_integer(base=16, dtype=pl.UInt32, strict=False))
  sound = texts['label'].is_in(['0', '1']).fill_null(False).to_numpy()
  for name in numbers.columns:
    if numbers[name].null_count() > texts[name].null_count():  # something there was not a number
      sound = sound & (numbers[name].is_not_null() | texts[name].is_null()).to_numpy()
  good[good] = sound
  numbers = numbers.fill_null(0)
  integers = np.maximum(numbers.select(INTEGERS).to_numpy()[sound], 0)
  return {'label': (texts['label'] == '1').fill_null(False).to_numpy()[sound].astype(np.float32),
          'dense': np.ascontiguousarray(np.log1p(integers), np.float32),
          # By column: the second pass looks at one field at a time.
          'categories': np.ascontiguousarray(numbers.select(CATEGORIES).to_numpy().T[:, sound]),
          'malformed': np.flatnonzero(~good & ~blank)}


def _find_rows(block):
  """Which lines have all columns, which have nothing at all, and a block of the former.

  Polars would fill up short lines as if values were missing.
  """
  chars = np.frombuffer(block, np.uint8)
  ends = np.flatnonzero(chars == NEWLINE)
  good = np.diff(np.searchsorted(np.flatnonzero(chars == TAB), ends), prepend=0) == len(COLUMNS) - 1
  good[np.searchsorted(ends, np.flatnonzero(chars == PLUS))] = False  # part of a number to polars, not here
  blank = np.zeros_like(good)
  if not good.all():
    lines = block.split(b'\n')
    blank[~good] = [not lines[i].strip(b' \r') for i in np.flatnonzero(~good)]
    block = b''.join(lines[i] + b'\n' for i in np.flatnonzero(good))
  return good, blank, block


def _split(path, rows, days, test_share):
  """How many rows are for training."""
  if days is not None and sum(days) != rows:
    raise ValueError(f'{path} has {rows} rows, the days have {sum(days)}, got {days=}')
  train_rows = rows - (round(rows * test_share) if days is None else days[-1])
  if train_rows < 1:
    raise ValueError(f'{path} has {rows} rows, which leaves none to train on')
  return train_rows


def _columns(parts, field) -> Iterator[np.ndarray]:
  for part in parts:
    yield np.asarray(np.load(part / 'categories.npy', mmap_mode='r')[field])


def _frequent(parts, train_rows, min_count, progress) -> tuple[list[Encode], list[int]]:
  words = []
  for field in tqdm.tqdm(range(len(CATEGORIES)), desc='counting', disable=not progress):
    # The values are hashes: equal ranges have about equally many of them.
    edges = np.linspace(0, 2**32, 1 + -(-train_rows // COUNTED)).astype(np.uint64)
    found = [count_values(_between(_columns(parts, field), train_rows, *pair))
             for pair in itertools.pairwise(edges)]
    values, counts = (np.concatenate(x) for x in zip(*found, strict=True))
    keep = (counts >= min_count) & (values != 0)
    words.append(make_vocabulary(values[keep], counts[keep]))
  return [functools.partial(lookup, w) for w in words], [w.size for w in words]


def _between(columns, rows, low, high):
  """Of the first rows, the values in a range."""
  for column in columns:
    column = column[:rows]
    rows -= len(column)
    yield column[(column >= low) & (column < high)]


def _hashed(parts, buckets) -> tuple[list[Encode], list[int]]:
  encode = lambda column: (column % np.uint32(buckets)).astype(np.int32)
  sizes = [buckets if any(column.any() for column in _columns(parts, field)) else 1
           for field in range(len(CATEGORIES))]
  return [encode] * len(CATEGORIES), sizes


def _assemble(parts, rows, encoders, kept, about, progress):
  """Writes the arrays and what is to know about them, whole or not at all."""
  partial = kept.with_name(f'{kept.name}.partial')
  shutil.rmtree(partial, ignore_errors=True)
  partial.mkdir()
  with contextlib.ExitStack() as stack:
    # Written, not mapped: what is mapped stays in memory for as long as the system likes.
    files = {name: stack.enter_context(_create(partial / f'{name}.npy', dtype, (rows, *shape)))
             for name, dtype, shape in [('label', np.float32, ()), ('dense', np.float32, (len(INTEGERS),)),
                                        ('categories', np.int32, (len(CATEGORIES),))]}
    for part in tqdm.tqdm(parts, desc='encoding', disable=not progress):
      arrays = {name: np.load(part / f'{name}.npy') for name in files}
      columns = zip(encoders, arrays['categories'], strict=True)
      arrays['categories'] = np.stack([encode(column) for encode, column in columns], axis=1)
      for name, file in files.items():
        arrays[name].tofile(file)
  (partial / 'about.json').write_text(json.dumps(about))
  partial.replace(kept)


def _create(path, dtype, shape):
  """An .npy file, up to where its values begin."""
  file = open(path, 'wb')
  header = {'descr': np.lib.format.dtype_to_descr(np.dtype(dtype)), 'fortran_order': False, 'shape': shape}
  np.lib.format.write_array_header_1_0(file, header)
  return file


def _open(path, test, kept, max_malformed):
  about = json.loads((kept / 'about.json').read_text())
  _check_malformed(path, about, max_malformed)
  if test:
    _check_malformed(test, about['test_malformed'], max_malformed)
  data = Clicks(*(np.load(kept / f'{name}.npy', mmap_mode='r') for name in Clicks._fields))
  train, tested = (Clicks(*(column[rows] for column in data))
                   for rows in (slice(about['train_rows']), slice(about.get('test_from', about['train_rows']), None)))
  return ClickSets(train, tested, tuple(about['vocabularies']), None, 'criteo')


def _check_malformed(path, about, max_malformed):
  if about['malformed'] > max_malformed:
    raise ValueError(f'{path} has {about["malformed"]} malformed lines, the first of them is '
                     f'{about["first_malformed"]}, got {max_malformed=}')
  if about['malformed']:
    logging.warning('%s: skipped %d malformed lines, the first of them is %d', path, about['malformed'],
                    about['first_malformed'])
