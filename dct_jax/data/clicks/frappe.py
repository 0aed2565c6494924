"""Frappe, a log of apps used in contexts, in libfm's format: `label feature:1 ...`, a feature a field."""

from __future__ import annotations

import os
import pathlib

import numpy as np

from dct_jax.data.clicks.rows import Clicks, ClickSets
from dct_jax.data.clicks.vocabulary import count_values, lookup, make_vocabulary
from dct_jax.data.linear import libsvm
from dct_jax.data.linear.csr import Csr

# Public releases have three files. Without the largest one it is still a real set, under a name that says so.
TRAIN = {'frappe.train.libfm': 'frappe', 'frappe.validation.libfm': 'frappe-validation'}
TEST = 'frappe.test.libfm'


def load(directory: str | os.PathLike, cache_dir: str | os.PathLike | None = None, *,
         test: str | os.PathLike = '') -> ClickSets:
  """Reads the training file, or the validation file if there is none, and the test file.

  Args:
    directory: with frappe.train.libfm or frappe.validation.libfm, and frappe.test.libfm, plain, .gz or .xz.
    cache_dir: where parsed files are kept; nowhere unless it is given.
    test: another file to test on; '' takes the directory's own.

  Raises:
    ValueError: naming what is missing.
  """
  directory = pathlib.Path(directory)
  train = next(filter(None, (_find(directory, file) for file in TRAIN)), None)
  tested = test or _find(directory, TEST)
  if not train or not tested:
    raise ValueError(f'there is no {" or ".join(TRAIN)}, or no {TEST} (or they end in neither .gz nor .xz), '
                     f'in {directory}')
  name = next(name for file, name in TRAIN.items() if train.name.startswith(file))
  return read(train, tested, cache_dir=cache_dir)._replace(name=name)


def _find(directory, name):
  return next((path for end in ('', '.gz', '.xz') if (path := directory / (name + end)).exists()), None)


def read(train: str | os.PathLike, test: str | os.PathLike, *,
         cache_dir: str | os.PathLike | None = None) -> ClickSets:
  """Reads two files in which every line has one feature of value 1 for each field, in the order of the fields.

  Ids are of the training file's features, the most frequent one of a field being 1; 0 is for those that only
  the test file has.

  Args:
    train: plain, .gz or .xz.
    test: the same.
    cache_dir: where parsed files are kept; nowhere unless it is given.

  Raises:
    ValueError: for lines of another form, or a feature that belongs to two fields.
  """
  sets = libsvm.read_libsvm_sets([train, test], cache_dir=cache_dir)
  fields = int(sets[0].indptr[1])
  tables = [_table(data, path, fields) for data, path in zip(sets, (train, test), strict=True)]
  distinct = [np.unique(column) for column in np.concatenate(tables).T]
  if len(np.unique(np.concatenate(distinct))) < sum(len(d) for d in distinct):
    raise ValueError('a feature must always have the same position in its line, got others in '
                     f'{train} or {test}')
  words = [make_vocabulary(*count_values([column])) for column in tables[0].T]
  rows = [_clicks(data, table, words) for data, table in zip(sets, tables, strict=True)]
  return ClickSets(rows[0], rows[1], tuple(w.size for w in words), None, 'frappe')


def _table(data: Csr, path, fields):
  """Features by row and field."""
  wrong = np.flatnonzero(np.diff(data.indptr) != fields)
  if not fields or wrong.size:
    raise ValueError(f'{path}: every row must have as many features as the first one, {fields}, and some'
                     + (f', got another number in row {wrong[0] + 1}' if wrong.size else ''))
  if not np.all(data.values == 1) or not np.all(np.abs(data.labels) == 1):
    raise ValueError(f'{path}: values must be 1 and labels -1 or +1')
  return data.indices.reshape(-1, fields)


def _clicks(data: Csr, table, words):
  ids = np.stack([lookup(w, column) for w, column in zip(words, table.T, strict=True)], axis=1)
  return Clicks(np.zeros((len(ids), 0), np.float32), ids, (data.labels > 0).astype(np.float32))
