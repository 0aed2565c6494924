"""Workers end with the launcher that has started them, however that one ends."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

VARIABLE = 'DCT_JAX_LIFELINE'  # the read end of a pipe, and its number on the pipes' file system
SAVING = 30.0  # seconds for saving a checkpoint before a process is ended for good


@contextlib.contextmanager
def held() -> Iterator[int]:
  """A pipe whose read end is for workers: when this process ends, so does the pipe."""
  mine, ours = os.pipe()
  try:
    yield mine
  finally:
    os.close(mine)
    os.close(ours)


def environment(end: int) -> dict[str, str]:
  """What tells a worker of the pipe that it gets."""
  return {VARIABLE: f'{end}:{os.fstat(end).st_ino}'}


def watch() -> None:
  """Ends this process when its launcher is gone: SIGTERM, which saves a checkpoint, and 30 seconds later for good.

  Without a launcher it does nothing.
  """
  end, _, number = os.environ.pop(VARIABLE, '').partition(':')  # children of ours have another parent
  try:
    if not end or os.fstat(int(end)).st_ino != int(number):
      return  # a child of a worker got the variable, and not the pipe
  except OSError:
    return
  threading.Thread(target=_wait, args=(int(end),), name='lifeline', daemon=True).start()


def _wait(end):
  while os.read(end, 1):  # nothing is ever written
    pass
  nowhere = os.open(os.devnull, os.O_WRONLY)  # nobody reads what this process says any more: it must not end of that
  os.dup2(nowhere, 1)
  os.dup2(nowhere, 2)
  os.kill(os.getpid(), signal.SIGTERM)
  time.sleep(SAVING)
  os._exit(1)
