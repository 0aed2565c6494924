"""URLs as hashed character n-grams: millions of features, a hundred or two of them in a row."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence

import numpy as np

from dct_jax.data import text
from dct_jax.data.linear.csr import Csr, concatenate

NUM_FEATURES = 3_231_961  # as the URL set that SparCML trains on has
LABELS = {b'0': 0.0, b'1': 1.0, b'-1': -1.0, b'+1': 1.0}
TOGETHER = 4096  # URLs whose n-grams are sorted at a time


def read_urls(path: str | os.PathLike, *, num_features: int = NUM_FEATURES,
              ngrams: Sequence[int] = (3, 4, 5), binary: bool = True, max_malformed: int = 0) -> Csr:
  """Reads lines of a label (0, 1, -1 or +1), a tab and a URL.

  Args:
    path: a plain, .gz or .xz file.
    num_features: n-grams are hashed to so many features; some will share one.
    ngrams: lengths, in bytes.
    binary: whether a feature is 1 if it occurs, or counts how often.
    max_malformed: malformed lines that are skipped.

  Returns:
    A `Csr`; a URL that is too short for any n-gram is an empty row.

  Raises:
    ValueError: for more malformed lines than allowed, a file without rows, or arguments that make no sense.
  """
  if not 1 <= num_features < 2**32 - 1 or not ngrams or min(ngrams) < 1:
    raise ValueError(f'there must be features and n-grams, got {num_features=}, {ngrams=}')
  bad = text.Malformed(path, max_malformed, 'label<TAB>url')
  lines = itertools.chain.from_iterable(block.splitlines() for block in text.blocks(path))
  parts = []
  for numbered in _chunks(enumerate(lines, 1), TOGETHER):
    labels, urls = [], []
    for number, line in numbered:
      label, tab, url = line.partition(b'\t')
      if tab and url and label in LABELS:
        labels.append(LABELS[label])
        urls.append(url)
      elif line.strip():
        bad.add(number, line)
    parts.append(hash_ngrams(urls, num_features, ngrams, binary)._replace(labels=np.array(labels, np.float32)))
  if not any(part.labels.size for part in parts):
    raise ValueError(f'{path} has no rows')
  return concatenate(parts)


def hash_ngrams(strings: Sequence[bytes], num_features: int, ngrams: Sequence[int] = (3, 4, 5),
                binary: bool = True) -> Csr:
  """Rows of hashed n-grams, all labels 0; an n-gram never reaches over the end of its string.

  Examples:
    >>> hash_ngrams([b'abcabc', b'ab'], num_features=100, ngrams=(3,), binary=False).values.tolist()
    [2.0, 1.0, 1.0]
  """
  chars = np.frombuffer(b''.join(strings), np.uint8).astype(np.uint32)
  lengths = np.array([len(s) for s in strings], np.int64)
  rows = np.repeat(np.arange(len(strings)), lengths)
  left = np.repeat(np.cumsum(lengths), lengths) - np.arange(chars.size)  # bytes until the end of the string
  keys = [np.empty(0, np.uint64)]
  for n in ngrams:
    at = np.flatnonzero(left >= n)
    feature = (_hash(chars, at, n).astype(np.uint64) * np.uint64(num_features)) >> np.uint64(32)
    keys.append(rows[at].astype(np.uint64) << np.uint64(32) | feature)
  distinct, counts = np.unique(np.concatenate(keys), return_counts=True)
  indptr = np.searchsorted(distinct, np.arange(len(strings) + 1, dtype=np.uint64) << np.uint64(32))
  values = np.ones(distinct.size, np.float32) if binary else counts.astype(np.float32)
  return Csr(indptr.astype(np.int64), distinct.astype(np.uint32), values,
             np.zeros(len(strings), np.float32), num_features)


def _hash(chars, at, n):
  """FNV-1a of n bytes from each position, then murmur's finalizer, for FNV's high bits mix poorly."""
  h = np.full(at.size, (2166136261 + n) % 2**32, np.uint32)
  for k in range(n):
    h = (h ^ chars[at + k]) * np.uint32(16777619)
  h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
  h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
  return h ^ (h >> np.uint32(16))


def _chunks(items: Iterable, size: int):
  source = iter(items)
  while chunk := list(itertools.islice(source, size)):
    yield chunk
