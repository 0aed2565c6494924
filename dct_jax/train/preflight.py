"""What can be known to fail before anything is loaded or compiled: numbers, paths, and where a run goes."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import Any

from dct_jax.compressors import fraction

COUNTS = ('workers', 'steps', 'stages', 'microbatches', 'batch', 'rows', 'test_rows', 'passes', 'evaluated',
          'evaluate_every', 'checkpoint_every')
PATHS = ('data', 'test_data')


def settings(config: Any, default: Any) -> None:
  """Refuses numbers that no run can have, and paths that lead nowhere.

  Args:
    config: of one variant, with what flags say.
    default: the same without; a count that is 0 there means something.
  """
  for name in COUNTS:
    value = config.get(name)
    if isinstance(value, int) and value < min(1, default.get(name, 1)):
      raise ValueError(f'--{name} must be at least {min(1, default.get(name, 1))}, got {value}')
  for name in config:
    if name.endswith('sparsity'):
      fraction.check(f'--{name}', config[name], zero=True)
  for name in PATHS:
    path = config.get(name)
    if path and path != 'synthetic' and not os.path.exists(path):
      raise FileNotFoundError(f'--{name}={path}: there is no such file or directory')


def place(workdir: pathlib.Path, names: Sequence[str], resume: bool) -> list[str]:
  """Refuses a work directory that cannot be written, has another run, or has none to resume.

  Returns:
    Those of the names that begin at step 0.
  """
  _check_writable(workdir)
  begun = [name for name in names if (workdir / name / 'metrics.jsonl').exists() or has_checkpoint(workdir / name)]
  if resume and not begun:
    raise FileNotFoundError(f'--resume: there is no run of {", ".join(names)} in {workdir}')
  if begun and not resume:
    raise ValueError(f'{workdir} has a run of {", ".join(begun)} already: --resume goes on with it, and another '
                     '--workdir begins anew')
  return [name for name in names if not has_checkpoint(workdir / name)]


def has_checkpoint(directory: pathlib.Path) -> bool:
  """Whether a run has saved something there, of all of it or of its stages."""
  saved = directory / 'checkpoints'
  return any(path.name.isdigit() for pattern in ('*', '*/*') for path in saved.glob(pattern))


def _check_writable(workdir):
  there = next(path for path in (workdir.absolute(), *workdir.absolute().parents) if path.exists())
  if not there.is_dir():
    raise NotADirectoryError(f'--workdir={workdir}: {there} is a file')
  if not os.access(there, os.W_OK | os.X_OK):
    raise PermissionError(f'--workdir={workdir}: {there} cannot be written to')
