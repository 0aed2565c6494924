"""Parameters that several threads read and write, in NumPy: see native/src/kernels/shared_memory.h."""

from __future__ import annotations

import numpy as np


def read(shared: np.ndarray) -> np.ndarray:
  """A copy of what is there."""
  return shared.copy()


def write(shared: np.ndarray, before: np.ndarray, after: np.ndarray) -> None:
  """Makes of `before` `after`, and where others have written since, adds the difference."""
  changed = _bits(before) != _bits(after)
  now = shared[changed]
  with np.errstate(over='ignore', invalid='ignore'):  # NaN and infinity stay what they are, in silence as natively
    moved = now + (after[changed] - before[changed])
  shared[changed] = np.where(_bits(now) == _bits(before)[changed], after[changed], moved)


def _bits(x: np.ndarray) -> np.ndarray:
  return x.view(np.uint32)
