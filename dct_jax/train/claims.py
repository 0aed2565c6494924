"""A directory for one run at a time: a second one would write over what the first one saves."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Iterator

NAME = '.lock'
_held: dict[str, int] = {}  # descriptors by directory; a claim ends with the process, however that ends


def claim(directory: str | os.PathLike) -> pathlib.Path:
  """Claims a directory, which is made, for this process; again does nothing.

  Raises:
    ValueError: if a run of another process is at work there.
  """
  place = pathlib.Path(directory).resolve()
  if str(place) in _held:
    return place
  place.mkdir(parents=True, exist_ok=True)
  file = os.open(place / NAME, os.O_RDWR | os.O_CREAT, 0o644)
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except OSError:
    who = os.read(file, 1000).decode(errors='replace').strip() or 'another process'
    os.close(file)
    raise ValueError(f'{place} belongs to a run that is still at work ({who}): wait for its end, or take another '
                     'directory') from None
  os.ftruncate(file, 0)
  os.write(file, f'process {os.getpid()} of {os.uname().nodename}\n'.encode())
  _held[str(place)] = file
  return place


@contextlib.contextmanager
def alone(directory: str | os.PathLike) -> Iterator[pathlib.Path]:
  """Claims a directory for a while, also from other runs of this process.

  Raises:
    ValueError: if a run is at work there.
  """
  key = str(pathlib.Path(directory).resolve())
  if key in _held:
    raise ValueError(f'{key} belongs to a run of this process that is still at work')
  try:
    yield claim(directory)
  finally:
    if file := _held.pop(key, None):
      os.close(file)
