"""Faults at random times, while a run that mends itself goes on in a lab; and whether it ended as it should."""

from __future__ import annotations

import io
import os
import pathlib
import random
import re
import resource
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TextIO

from dct_jax.netlab import namespaces
from dct_jax.netlab.lab import Lab
from dct_jax.train import results
from dct_jax.train.launch import Elastic
from dct_jax.train.metrics import read_metrics

MEANING = {
    'kill': 'SIGKILL for a worker',
    'stop': 'SIGSTOP for a worker, SIGCONT later',
    'cut': "a host's link is down, and up again later",
    'slow': "a host's link has 1 kbit/s, and its own rate again later",
    'disk': 'no process can write to a file, and later all can again',
    'flip': 'one bit of a file of the newest checkpoint is turned, then a worker is killed',
}
PLACES = ('{workdir}', '{workers}')  # what a command may have
WAITS = 180.0  # seconds for what a fault leads to


class Tried(NamedTuple):
  """A fault, and what came of it."""

  kind: str
  host: int
  detail: str  # what was turned, or how long it lasted
  noticed: float | None  # seconds until the launcher said that a worker has failed; None if the run went on
  found: bool  # whether the run said that a checkpoint is damaged


class Verdict(NamedTuple):
  """What a run with faults came to."""

  tried: list[Tried]
  codes: list[int]  # of the runs that it took to try all faults, one after the other
  compared: int  # steps whose losses were compared with those of the undisturbed run
  different: int  # steps whose loss is another number, or is missing
  left: list[str]  # faults that were not tried

  @property
  def good(self) -> bool:
    return not any(self.codes) and not self.different and not self.left


def parse(text: str) -> list[str]:
  """'kill:2,stop' -> ['kill', 'kill', 'stop'].

  Raises:
    ValueError: for a fault that nobody knows.
  """
  out: list[str] = []
  for part in filter(None, text.split(',')):
    kind, _, count = part.partition(':')
    if kind not in MEANING or (count and not count.isdigit()):
      raise ValueError(f'faults are {", ".join(MEANING)}, each with a number behind it as kill:3, got {part!r}')
    out += [kind] * int(count or 1)
  if not out:
    raise ValueError('there are no faults to try')
  return out


def chaos(lab: Lab, argv: Sequence[str], faults: Sequence[str], workdir: pathlib.Path, *, seed: int = 0,
          every: float = 5.0, hold: float = 3.0, timeout: float = 600.0, output: TextIO | None = None,
          min_workers: int | None = None) -> Verdict:
  """Runs a program undisturbed, and again and again with faults until all of them were tried.

  Args:
    lab: in use. Without the rights to have one there are no links to cut or slow down.
    argv: the program. It has to go on from its last checkpoint when it is started again, as experiments do. In its
      words, {workdir} is a directory of each run, in which logs are looked for, and {workers} the number of hosts.
    faults: as of `parse`.
    workdir: where all runs are.
    seed: of their order, hosts, times and bits.
    every: seconds between a step that was logged and the next fault, at most.
    hold: seconds that a fault lasts which does not last for ever.
    timeout: seconds of a run.
    output: where its lines go.
    min_workers: that it may go on with; losses are not compared if that is less than all of them.

  Raises:
    ValueError: for faults that this machine or this command cannot have.
    RuntimeError: if the program fails without any fault.
  """
  _check(lab, argv, faults)
  order = list(faults)
  dice = random.Random(seed)
  dice.shuffle(order)
  words = lambda place: [word.replace('{workdir}', str(place)).replace('{workers}', str(lab.hosts)) for word in argv]
  undisturbed = workdir / 'undisturbed'
  if code := lab.run(words(undisturbed), timeout=timeout, output=output).code:
    raise RuntimeError(f'the program fails without any fault, with exit code {code}')
  tried: list[Tried] = []
  codes: list[int] = []
  same, different, left = 0, 0, -1
  while len(order) > 0 and len(order) != left:
    left, place = len(order), workdir / f'run{len(codes)}'
    hand = _Hand(lab, order, place, dice, every, hold, output or sys.stdout)
    codes.append(hand.run(words(place), timeout, Elastic(10 * len(faults), min_workers, retry=hold)))
    tried += hand.tried
    if min_workers in (None, lab.hosts):
      compared = compare(undisturbed, place)
      same, different = same + compared[0], different + compared[1]
  return Verdict(tried, codes, same + different, different, order)


def _check(lab, argv, faults):
  if not lab.shaped and {'cut', 'slow'} & set(faults):
    raise ValueError('there is no lab here, and so no links to cut or slow down: take other faults')
  if not any('{workdir}' in word for word in argv):
    raise ValueError('the command needs {workdir}, the directory in which it logs and saves')


def compare(undisturbed: pathlib.Path, disturbed: pathlib.Path) -> tuple[int, int]:
  """Steps that were logged with the same loss to the bit, and those whose loss is another or missing."""
  same = different = 0
  for log in undisturbed.rglob('metrics.jsonl'):
    there = disturbed / log.parent.relative_to(undisturbed)
    mine = {line['step']: line['loss'] for line in read_metrics(there)} if (there / log.name).exists() else {}
    for line in read_metrics(log.parent):
      same += mine.get(line['step']) == line['loss']
      different += mine.get(line['step']) != line['loss']
  return same, different


class _Hand:
  """What disturbs a run."""

  def __init__(self, lab, order, place, dice, every, hold, output):
    self._lab, self._order, self._place, self._dice = lab, order, place, dice
    self._every, self._hold = every, hold
    self._watch = _Watch(output)
    self._pids: dict[int, int] = {}
    self._starts, self._done = 0, threading.Event()
    self.tried: list[Tried] = []

  def run(self, argv, timeout, failures):
    thread = threading.Thread(target=self._disturb, daemon=True)
    thread.start()
    try:
      return self._lab.run(argv, timeout=timeout, output=self._watch, failures=failures, started=self._started).code
    finally:
      self._done.set()
      thread.join(WAITS)

  def _started(self, pids):
    self._pids = pids
    self._starts += 1

  def _disturb(self):
    while self._order and self._progress() and not self._done.wait(self._dice.uniform(0, self._every)):
      if self._order[0] == 'flip' and not self._several_checkpoints():
        self._order.append(self._order.pop(0))
        if set(self._order) != {'flip'}:
          continue
        if not self._until(self._several_checkpoints):
          return
      kind = self._order[0]
      host = self._dice.choice(sorted(self._pids))
      starts, self._watch.failed, self._watch.damaged = self._starts, None, False
      began = time.monotonic()
      try:
        detail = getattr(self, f'_{kind}')(host)
      except ProcessLookupError:
        continue  # it has just ended
      if self._done.is_set() and self._watch.failed is None:
        return  # at the very end: nothing can be said of it
      if self._watch.failed is not None:
        self._until(lambda starts=starts: self._starts > starts)
        self._progress()
      noticed = None if self._watch.failed is None else self._watch.failed - began
      self.tried.append(Tried(kind, host, detail, noticed, self._watch.damaged))
      self._order.pop(0)

  def _progress(self):
    """Waits for a line of the log that is newer than now; False if the run is over before."""
    before = self._lines()
    return self._until(lambda: self._lines() > before)

  def _until(self, happens):
    end = time.monotonic() + WAITS
    while not self._done.is_set() and time.monotonic() < end:
      if happens():
        return True
      self._done.wait(0.05)
    return False

  def _lines(self):
    return sum(os.path.getsize(os.path.join(place, 'metrics.jsonl'))
               for place, _, names in os.walk(self._place) if 'metrics.jsonl' in names)

  def _noticed(self):
    self._until(lambda: self._watch.failed is not None)

  def _kill(self, host):
    os.killpg(self._pids[host], signal.SIGKILL)
    self._noticed()
    return ''

  def _stop(self, host):
    pid = self._pids[host]
    os.killpg(pid, signal.SIGSTOP)
    return self._for_a_while(lambda: os.killpg(pid, signal.SIGCONT))

  def _cut(self, host):
    namespaces.plug(host, False)
    return self._for_a_while(lambda: namespaces.plug(host, True))

  def _slow(self, host):
    namespaces.reshape_one(host, self._lab.link._replace(rate='1kbit'))
    return self._for_a_while(lambda: namespaces.reshape_one(host, self._lab.link))

  def _disk(self, host):
    limits = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in self._everybody()}
    for pid, (_, hard) in limits.items():
      resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))

    def undo():
      for pid, limit in limits.items():
        try:
          resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)
        except ProcessLookupError:
          continue

    return self._for_a_while(undo)

  def _everybody(self):
    return list(self._pids.values())

  def _for_a_while(self, undo: Callable[[], None]):
    begin = time.monotonic()
    while time.monotonic() - begin < self._hold and self._watch.failed is None and not self._done.is_set():
      time.sleep(0.05)
    try:
      undo()
    except ProcessLookupError:
      pass  # it was ended meanwhile
    self._progress()
    return f'{time.monotonic() - begin:.1f} s'

  def _checkpoints(self):
    # Directories come and go meanwhile, which `os.walk` does not mind.
    return sorted((pathlib.Path(place, name) for place, names, _ in os.walk(self._place) for name in names
                   if os.path.basename(place) == 'checkpoints' and name.isdigit()), key=lambda path: int(path.name))

  def _several_checkpoints(self):
    """A run that has but one, and that one damaged, cannot go on, and should not."""
    return len(self._checkpoints()) > 1

  def _flip(self, host):
    """While nobody saves: what is turned must not be written over."""
    newest = self._checkpoints()[-1]
    os.killpg(self._pids[host], signal.SIGKILL)
    self._noticed()
    return turn_a_bit(newest, self._dice)


def turn_a_bit(directory: pathlib.Path, dice: random.Random) -> str:
  """Turns one bit of one file below a directory; says which. Larger files are hit as much more often."""
  files = [path for path in sorted(directory.rglob('*')) if path.is_file() and path.stat().st_size]
  path = dice.choices(files, [file.stat().st_size for file in files])[0]
  data = bytearray(path.read_bytes())
  place, bit = dice.randrange(len(data)), dice.randrange(8)
  data[place] ^= 1 << bit
  path.write_bytes(data)
  return f'bit {bit} of byte {place} of {path.relative_to(directory)}'


class _Watch(io.TextIOBase):
  """Passes lines on, and looks for those that tell of a failure."""

  def __init__(self, output):
    self._output, self.failed, self.damaged = output, None, False

  def write(self, text: str) -> int:
    if re.match(r'elastic: worker \d+ failed', text) and self.failed is None:
      self.failed = time.monotonic()
    self.damaged |= 'is damaged' in text
    return self._output.write(text)

  def flush(self) -> None:
    self._output.flush()


def table(verdict: Verdict) -> dict[str, Any]:
  """Faults, how often each was tried, and what happened."""
  rows = []
  for kind, meaning in MEANING.items():
    those = [one for one in verdict.tried if one.kind == kind]
    if those:
      seconds = [one.noticed for one in those if one.noticed is not None]
      found = sum(one.found for one in those)
      rows.append([kind, meaning, len(those), len(seconds), len(those) - len(seconds), found if kind == 'flip' else '',
                   f'{statistics.median(seconds):.2f}' if seconds else '', f'{max(seconds):.2f}' if seconds else ''])
  return results.table(['fault', 'what it is', 'tried', 'started again', 'went on', 'damage named',
                        'seconds until noticed', 'at most'], rows)


def values(verdict: Verdict) -> dict[str, int]:
  """Numbers of all faults together."""
  return {'faults': len(verdict.tried), 'runs': len(verdict.codes), 'failed_runs': sum(map(bool, verdict.codes)),
          'losses_compared': verdict.compared, 'losses_different': verdict.different}
