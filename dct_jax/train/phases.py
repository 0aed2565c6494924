"""Errors that say where they came from: XLA's own, and those of a file system, name no worker and no step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def phase(what: str, step: int) -> Iterator[None]:
  """Adds a note to any error that passes: which worker it was, which step, and what it was doing.

  Args:
    what: as in 'saving a checkpoint'.
    step: of the training.
  """
  try:
    yield
  except Exception as error:
    error.add_note(f'on worker {jax.process_index()} of {jax.process_count()}, in step {step}, while {what}')
    raise
