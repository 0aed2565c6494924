"""Reader of libsvm files: `label index:value index:value ...`, one example a line."""

from __future__ import annotations

import os
import pathlib
import re
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from dct_jax.data import text
from dct_jax.data.linear.csr import Csr, concatenate

__all__ = ['Csr', 'read_libsvm', 'read_libsvm_sets']
COLON, HASH, SPACE = b':#\x20'
MOST_FEATURES = 1 << 28  # a weight for each of them takes 1 GiB
BLANK_COLONS = bytes.maketrans(b':', b' ')


def read_libsvm(path: str | os.PathLike, **options: Any) -> Csr:
  """Reads one file; see `read_libsvm_sets` for the options."""
  return read_libsvm_sets([path], **options)[0]


def read_libsvm_sets(paths: Sequence[str | os.PathLike], *, zero_based: bool | None = None,
                     num_features: int | None = None, most_features: int = MOST_FEATURES, max_malformed: int = 0,
                     cache_dir: str | os.PathLike | None = None) -> list[Csr]:
  """Reads files that belong together, as a training and a test set do.

  Labels stay as they are (see `binary_labels`). Comments after # are left out. Lines are malformed if a
  number cannot be read or is not a finite float32, or if indices do not increase strictly.

  Args:
    paths: plain, .gz or .xz files.
    zero_based: whether the first feature is 0 and not 1; None looks for a feature 0 in any of the files.
      One file alone may not tell: a test set may lack feature 0.
    num_features: entries beyond this are dropped; None takes the largest index of all files.
    most_features: without `num_features`, how many there may be: a single wrong index would ask for a weight for each
      one below it.
    max_malformed: malformed lines that are skipped, with a warning, in each file.
    cache_dir: where parsed files are kept as .npz; nothing is kept unless it is given.

  Returns:
    A `Csr` for each file, all with the same `num_features`, indices from 0.

  Raises:
    ValueError: for more malformed lines than allowed, naming the first one beyond; for a feature 0 in a
      file that is said not to have one; for a file without rows, or with more features than allowed.
  """
  sets = [_cached(path, cache_dir, max_malformed) for path in paths]
  for path, data in zip(paths, sets, strict=True):
    if not data.labels.size:
      raise ValueError(f'{path} has no rows')
    if num_features is None and data.num_features > most_features:
      raise ValueError(f'{path} has a feature {data.num_features - 1:,}: give {num_features=} to drop those beyond, or '
                       f'raise {most_features=}')
  zero = any(s.indices.size and s.indices.min() == 0 for s in sets)
  if zero and zero_based is False:
    raise ValueError(f'a feature 0 occurs, got {zero_based=}')
  base = 0 if (zero if zero_based is None else zero_based) else 1
  size = max((s.num_features for s in sets), default=0) - base if num_features is None else num_features
  return [_cut(s._replace(indices=s.indices - np.uint32(base), num_features=size)) for s in sets]


def _cut(data):
  """Without entries that the model has no weight for."""
  keep = data.indices < data.num_features
  if keep.all():
    return data
  indptr = np.concatenate([[0], np.cumsum(keep)])[data.indptr]
  return data._replace(indptr=indptr, indices=data.indices[keep], values=data.values[keep])


def _cached(path, cache_dir, max_malformed):
  if cache_dir is None:
    return _read(path, max_malformed)
  status = os.stat(path)
  key = zlib.crc32(f'{os.path.abspath(path)} {status.st_size} {status.st_mtime_ns} {max_malformed}'.encode())
  kept = pathlib.Path(cache_dir, f'{pathlib.Path(path).name}-{key:08x}.npz')
  if not kept.exists():
    data = _read(path, max_malformed)
    kept.parent.mkdir(parents=True, exist_ok=True)
    partial = kept.with_name(f'{os.getpid()}-{kept.name}')  # whole or not at all: others may read it now
    np.savez(partial, **data._asdict())
    partial.replace(kept)
  with np.load(kept) as arrays:
    return Csr(**dict(arrays))._replace(num_features=int(arrays['num_features']))


def _read(path, max_malformed):
  """Indices as in the file; `num_features` is the largest one + 1."""
  bad = text.Malformed(path, max_malformed, 'label index:value ...')
  parts, line = [], 1
  for block in text.blocks(path):
    parts.append(_parse(block, line, bad))
    line += block.count(b'\n')
  if bad.count:
    logging.warning('%s: skipped %d malformed lines of %d', bad.path, bad.count, line - 1)
  return concatenate(parts)


class _Lines(NamedTuple):
  """Where the lines of a block lie and what they hold."""

  starts: np.ndarray  # of each line that is not blank
  ends: np.ndarray
  numbers: np.ndarray  # line numbers in the block
  tokens: np.ndarray  # how many it has
  good: np.ndarray  # whether the colons are where they should be


def _parse(block, first_line, bad):
  """A block of whole lines. All text is read at once; single lines are looked at only after a failure."""
  if HASH in block:
    block = re.sub(rb'#[^\n]*', b'', block)
  lines = _find(block)
  good = lines.good
  try:
    flat = np.fromstring(_without(block, lines, ~good).translate(BLANK_COLONS), sep=' ')
  except ValueError:
    flat = np.empty(0)
  if flat.size != np.sum(2 * lines.tokens[good] - 1):
    good, flat = _one_by_one(block, lines)
  data, sound = _split(flat, lines.tokens[good])
  good[good] = sound
  for i in np.flatnonzero(~good):
    bad.add(first_line + int(lines.numbers[i]), block[lines.starts[i]:lines.ends[i]])
  return data


def _find(block):
  chars = np.frombuffer(block, np.uint8)
  blank = chars <= SPACE
  starts = np.flatnonzero(~blank & np.concatenate([[True], blank[:-1]]))
  ends = np.flatnonzero(blank & ~np.concatenate([[True], blank[:-1]]))  # a block ends with a newline
  colons = np.diff(np.searchsorted(np.flatnonzero(chars == COLON), np.append(starts, chars.size)))
  newlines = np.flatnonzero(chars == 10)
  at = np.searchsorted(starts, np.concatenate([[0], newlines]))
  tokens = np.diff(at)
  some = np.flatnonzero(tokens)
  first = at[some]
  wanted = np.ones(starts.size, np.int64)
  wanted[first] = 0
  # A colon at the edge of a token leaves one number only.
  wrong = (colons != wanted) | (chars[starts] == COLON) | (chars[ends - 1] == COLON)
  good = np.add.reduceat(wrong, first) == 0 if some.size else np.empty(0, bool)
  return _Lines(np.append(0, newlines[:-1] + 1)[some], newlines[some], some, tokens[some], good)


def _without(block, lines, which):
  if not which.any():
    return block
  out = bytearray(block)
  for a, b in zip(lines.starts[which], lines.ends[which], strict=True):
    out[a:b] = b' ' * (b - a)
  return bytes(out)


def _one_by_one(block, lines):
  """Which lines are made of numbers, and these; for blocks in which something is not one."""
  good, numbers = lines.good.copy(), []
  for i in np.flatnonzero(good):
    line = block[lines.starts[i]:lines.ends[i]]
    try:
      numbers.append([float(x) for x in line.translate(BLANK_COLONS).split()])
    except ValueError:
      good[i] = False
    else:
      if b'_' in line:  # a number to Python only
        good[i] = False
        numbers.pop()
  return good, np.array([x for line in numbers for x in line])


def _is_float32(x):
  """False for NaN, infinities, and what becomes one."""
  return np.abs(x) <= np.finfo(np.float32).max


def _split(flat, tokens):
  """Numbers of lines with so many tokens -> rows, and which of the lines are sound."""
  lengths, starts = tokens - 1, np.cumsum(2 * tokens - 1) - (2 * tokens - 1)
  labels = flat[starts]
  pairs = np.delete(flat, starts).reshape(-1, 2)
  indices, values = pairs[:, 0], pairs[:, 1]
  rows = np.repeat(np.arange(tokens.size), lengths)
  wrong = ~_is_float32(values) | (indices != np.floor(indices)) | (indices < 0) | (indices >= 2**32 - 1)
  wrong[1:] |= (indices[1:] <= indices[:-1]) & (rows[1:] == rows[:-1])
  sound = _is_float32(labels) & (np.bincount(rows, wrong, minlength=tokens.size) == 0)
  keep = sound[rows]
  indices, values, lengths = indices[keep], values[keep], lengths[sound]
  largest = int(indices.max()) + 1 if indices.size else 0
  return Csr(np.concatenate([[0], np.cumsum(lengths)]), indices.astype(np.uint32),
             values.astype(np.float32), labels[sound].astype(np.float32), largest), sound
