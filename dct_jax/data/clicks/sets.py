"""Click logs from whichever source."""

from __future__ import annotations

import os
from typing import Any

from dct_jax.data.clicks import criteo, frappe
from dct_jax.data.clicks import synthetic as synthetic_clicks
from dct_jax.data.clicks.rows import ClickSets

SYNTHETIC = {'rows': 500_000, 'test_rows': 100_000, 'seed': 0}


def load(data: str, cache_dir: str | os.PathLike, *, test: str = '', **options: Any) -> ClickSets:
  """Loads a training and a test set.

  Args:
    data: '' or 'synthetic' (not real data), the path of a file in Criteo's format, or a directory with
      Frappe's files.
    cache_dir: where prepared files are kept; the synthetic set needs none.
    test: the path of another file in the same format, to test on instead; '' without one.
    options: of `synthetic.generate` (500,000 and 100,000 rows unless they say otherwise),
      `criteo.prepare` or `frappe.load`.

  Raises:
    FileNotFoundError: if there is no such file or directory.
    ValueError: if it has another format.
  """
  if test and not os.path.isfile(test):
    raise FileNotFoundError(f'there is no file {test!r} to test on')
  if data in ('', 'synthetic'):
    if test:
      raise ValueError(f'a file to test on needs data of its kind to train on, got {data=} and {test=}')
    return synthetic_clicks.generate(**{**SYNTHETIC, **options})
  if os.path.isdir(data):
    return frappe.load(data, cache_dir, test=test, **options)
  if os.path.isfile(data):
    return criteo.prepare(data, cache_dir, test=test, **options)
  raise FileNotFoundError(f"there is no file or directory {data!r}: data is a file in Criteo's format, a directory "
                          "with Frappe's files, or '' for synthetic clicks")
