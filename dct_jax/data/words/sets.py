"""Running text as ids of words, from whichever source."""

from __future__ import annotations

import os
from typing import Any

from dct_jax.data.words import synthetic as synthetic_words
from dct_jax.data.words import wikitext
from dct_jax.data.words.texts import WordSets


def load(data: str | os.PathLike, **options: Any) -> WordSets:
  """Loads a training, a validation and a test set.

  Args:
    data: '' or 'synthetic' (not real text), or a directory with WikiText's files.
    options: of `synthetic.generate`; a directory has none.

  Raises:
    FileNotFoundError: if there is no such directory, or it misses a file.
    ValueError: if a file cannot be read, or as `synthetic.generate`.
  """
  if os.fspath(data) in ('', 'synthetic'):
    return synthetic_words.generate(**options)
  return wikitext.load(data)
