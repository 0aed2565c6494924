"""Which workers go on when one has failed, and when one that stayed away joins again; `launch` does what it says.

JAX's distributed runtime cannot lose a process: the whole group is started anew, and goes on from its last checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from dct_jax.commands import WRONG

SOON = 60.0  # seconds within which a failure is one of the start
LONGEST = 16  # times `retry`, after which a worker that stays away is tried again, at most


class Ended(NamedTuple):
  """How a group of workers has ended."""

  code: int  # 0 if all did their work
  worker: int | None = None  # who failed first; None where nobody did
  how: str = ''
  seconds: float = 0.0  # since its start
  parted: bool = False  # it was asked to save and end, so that others can join
  started: bool = True  # whether that worker's command could be started at all


class Roster:
  """Who takes part.

  A worker that fails is started again, with all others. One that fails twice in a row, the second time at once, or
  whose host cannot start anything, is away: the others go on without it. It is tried again later, and ever more seldom.
  Where too few would be left, all are started again as often as failures are allowed.

  Args:
    workers: how many there are.
    restarts: failures after which a group is started again; those of a worker that is tried again do not count.
    least: workers that must be left.
    multiple: the group's size is a multiple of this; workers that are left over wait.
    retry: seconds until a worker that is away is tried again, the first time.
    reachable: whether a worker's host can start something.
    say: what tells the story.
    clock: seconds.
  """

  def __init__(self, workers: int, restarts: int, least: int, multiple: int = 1, retry: float = 60.0,
               reachable: Callable[[int], bool] = lambda worker: True, say: Callable[[str], None] = print,
               clock: Callable[[], float] = time.monotonic):
    if restarts < 0 or not 1 <= least <= workers or multiple < 1 or retry <= 0:
      raise ValueError('restarts must be at least 0, min_workers from 1 to the number of workers, multiple at least 1 '
                       f'and retry positive, got {restarts=}, min_workers={least}, {workers=}, {multiple=}, {retry=}')
    self._all, self._restarts, self._least, self._multiple = list(range(workers)), restarts, least, multiple
    self._retry, self._reachable, self._say, self._clock = retry, reachable, say, clock
    self._away: dict[int, float] = {}  # when each is tried again
    self._waits: dict[int, float] = {}  # for how long each has been left alone the last time
    self._trial: set[int] = set()  # those that have just come back
    self._suspect: int | None = None  # who has failed the last time
    self._wrong = False  # whether it was for what was wrong with the arguments; that does not get better
    self.failures = 0

  @property
  def elastic(self) -> bool:
    """Whether groups are started again at all."""
    return self._restarts > 0

  def group(self) -> list[int]:
    """Those that train now."""
    return self._fitting(w for w in self._all if w not in self._away)

  def _fitting(self, workers):
    present = list(workers)
    return present[:len(present) // self._multiple * self._multiple]

  def begin(self) -> None:
    """Says who begins."""
    if self.elastic:
      self._say(f'{_count(len(self.group()))} begin')

  def due(self) -> bool:
    """Whether workers that were away can join now, so that the group should save and part."""
    now = self._clock()
    back = {w for w, when in self._away.items() if now >= when and self._is_reachable(w, now)}
    if not back or len(self._fitting([*self._present(), *back])) <= len(self.group()):
      return False
    self._trial |= back
    return True

  def _present(self):
    return [w for w in self._all if w not in self._away]

  def _is_reachable(self, worker, now):
    if self._reachable(worker):
      return True
    self._away[worker] = now + self._retry  # to ask costs nobody anything, so that there is no need to ask less often
    return False

  def _leave_alone(self, worker, now):
    wait = min(2 * self._waits.get(worker, self._retry / 2), LONGEST * self._retry)
    self._waits[worker], self._away[worker] = wait, now + wait

  def goes_on(self, ended: Ended) -> bool:
    """Takes note of an end; returns whether there is another group, `group`."""
    if ended.parted:
      return self._join()
    at_once = ended.seconds < SOON
    wrong, self._wrong = self._wrong, at_once and ended.started and ended.code == WRONG
    if not self.elastic or ended.worker is None or (wrong and self._wrong):
      self._say_end(ended)
      return False
    on_trial = at_once and ended.worker in self._trial
    self.failures += not on_trial
    if self.failures > self._restarts:
      self._say_end(ended, f'there were {_times(self._restarts, "restart")} already')
      return False
    away = self._gone(ended, on_trial or (at_once and ended.worker == self._suspect))
    self._suspect = ended.worker
    self._trial.clear()
    self._say(f'worker {ended.worker} failed {"again at once" if away else f"after {ended.seconds:.0f} s"}, with '
              f'{ended.how}{", and stays away" if away else ""}; {_count(len(self.group()))} go on from the last '
              f'checkpoint ({self._number(on_trial)})')
    return True

  def _number(self, on_trial):
    return 'it was tried again' if on_trial else f'restart {self.failures} of {self._restarts}'

  def _gone(self, ended, again):
    """Whether a worker that has failed is left out."""
    if not (again or not ended.started or not self._reachable(ended.worker)):
      return False
    if len(self._fitting(w for w in self._present() if w != ended.worker)) < self._least:
      return False  # without it there is nothing to do but to try again
    self._leave_alone(ended.worker, self._clock())
    return True

  def _join(self):
    before = len(self.group())
    for worker in self._trial:
      del self._away[worker]
    self._say(f'worker {" and ".join(map(str, sorted(self._trial)))} can be started again: {_count(before)} have saved '
              f'a checkpoint, {_count(len(self.group()))} go on from it')
    return True

  def _say_end(self, ended, why=''):
    if not self.elastic or ended.code == 0:
      if self.elastic:
        self._say(f'done, with {_count(len(self.group()))}, after {_times(self.failures, "restart")}')
    elif ended.worker is not None:
      self._say(f'worker {ended.worker} failed after {ended.seconds:.0f} s, with {ended.how}; all end here'
                f'{": " + why if why else ""}')


def _count(workers):
  return _times(workers, 'worker')


def _times(number, what):
  return f'{number} {what}{"" if number == 1 else "s"}'
