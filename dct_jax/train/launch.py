"""Starts several processes of one program on this machine.

    python -m dct_jax.train.launch --processes 4 -- python script.py --flags

Each process finds its place in environment variables that `dct_jax.train.start` reads. Output lines
are prefixed with the number of their process. When one fails, all are ended; with --restarts they are started again,
without it if it stays away (--min_workers).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TextIO

from dct_jax import commands
from dct_jax.commands import INTERRUPTED, TERMINATED
from dct_jax.train import elastic, lifeline, memory
from dct_jax.train.elastic import Ended

TIMED_OUT = 124  # as timeout(1) has it
STARTS = 'DCT_JAX_STARTS'  # environment variable: how often the group was started before
WORKER = 'DCT_JAX_WORKER'  # and which of the workers this is, whoever else takes part
GLANCE = 0.5  # seconds between two looks for workers that are back


class Elastic(NamedTuple):
  """What happens when a worker fails; see `dct_jax.train.elastic`."""

  restarts: int = 0  # failures after which all are started again
  min_workers: int | None = None  # that training may go on with; all of them unless given
  retry: float = 60.0  # seconds until a worker that stays away is tried again, the first time
  multiple: int = 1  # of how many workers a group is


def launch(argv: Sequence[str] | Callable[[int, int], Sequence[str]], processes: int, *,
           devices_per_process: int = 1, timeout: float | None = None, grace: float = 3.0,
           environment: Mapping[str, str] | None = None, output: TextIO | None = None,
           coordinator: str | Callable[[int], str] | None = None,
           prefix: Callable[[int], Sequence[str]] = lambda i: (), failures: Elastic | None = None,
           started: Callable[[dict[int, int]], None] = lambda pids: None) -> int:
  """Runs `argv` in several processes of this machine that find each other.

  Ctrl-C and SIGTERM are passed on once, and leave them 30 seconds to save a checkpoint. If this process ends in any
  other way, those that have called `dct_jax.train.start` end, too.

  With `failures` all are started again when one has failed, or go on without it; lines that begin with 'elastic:' tell
  of it. The program must go on from its own last checkpoint then: DCT_JAX_STARTS says how often it was started before,
  DCT_JAX_WORKER which worker this is, whoever else takes part.

  Args:
    argv: program and arguments; a first 'python' means this interpreter. Or what makes them of the number of
      processes, and of how often they were started before.
    processes: how many.
    devices_per_process: CPU devices of each.
    timeout: seconds after which all are ended.
    grace: seconds between asking to end and ending, after a failure.
    environment: added to this process's environment.
    output: where their lines go; standard output unless given.
    coordinator: host:port at which process 0 will listen, or what makes it of the number of the worker that is
      process 0; a free port of the loopback interface unless given.
    prefix: words to put before the command of worker i (to run it in a network namespace, ...).
    failures: how many of them are mended, and how; none unless given.
    started: is told of the processes of every group by the numbers of their workers.

  Returns:
    0, or the exit code of the first that failed (128 + n if signal n ended it), 124 after a
    timeout, 130 after Ctrl-C, 143 after SIGTERM.

  Raises:
    ValueError: for arguments that cannot work.
  """
  if processes < 1 or devices_per_process < 1:
    raise ValueError('processes and devices_per_process must be at least 1, got '
                     f'{processes=} and {devices_per_process=}')
  command = argv if callable(argv) else lambda *_: argv
  if not command(processes, 0):
    raise ValueError(f'there is no program to run, got {argv=}')
  out = output or sys.stdout
  say = lambda text: print(f'elastic: {text}', file=out, flush=True)
  failures = failures or Elastic()
  least = processes if failures.min_workers is None else failures.min_workers
  roster = elastic.Roster(processes, failures.restarts, least, failures.multiple, failures.retry,
                          lambda worker: _reachable(prefix(worker)), say)
  deadline = None if timeout is None else time.monotonic() + timeout
  starts = 0
  with _sigterm_raises():
    roster.begin()
    while True:
      workers = roster.group()
      shared = memory.environment() | os.environ | _place(coordinator, workers, devices_per_process) | {
          STARTS: str(starts), **(environment or {})}
      group = _Group(_program(command(len(workers), starts)), workers, prefix, shared, out, not roster.elastic)
      ended = group.run(deadline, grace, roster.due, started)
      if not roster.goes_on(ended):
        break
      starts += 1
  if ended.code == TIMED_OUT and ended.worker is None and deadline and time.monotonic() >= deadline:
    print(f'not done after {timeout:g} seconds: all processes were ended', file=out, flush=True)
  elif ended.worker is not None and not roster.elastic:  # last, as what the others say at their end would bury it
    print(f'process {ended.worker} failed first, with {ended.how}; the others were ended', file=out, flush=True)
  return ended.code


def _program(argv):
  argv = list(argv)
  return [sys.executable if argv[0] == 'python' else argv[0], *argv[1:]]


def _reachable(prefix):
  """Whether a worker's host starts anything; one without a prefix is this one."""
  if not prefix:
    return True
  try:
    return subprocess.run([*prefix, 'true'], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, timeout=10, check=False).returncode == 0
  except (OSError, subprocess.TimeoutExpired):
    return False


class _Group:
  """Processes that train together, from their start to the end of all of them."""

  def __init__(self, argv, workers, prefix, environment, output, strict):
    self._argv, self._workers, self._prefix, self._environment = argv, workers, prefix, environment
    self._output, self._strict = output, strict
    self._children: list[subprocess.Popen] = []
    self._readers: list[threading.Thread] = []
    self._ended: queue.Queue[tuple[int, int]] = queue.Queue()
    self._begin = time.monotonic()

  def run(self, deadline, grace, parting, started) -> Ended:
    with lifeline.held() as end:
      try:
        ended = self._start(end)
        if ended is None:
          started({w: child.pid for w, child in zip(self._workers, self._children, strict=True)})
          ended = self._wait(deadline, parting)
        _end(self._children, grace)
      except (KeyboardInterrupt, _Terminated) as stop:
        number, code = (signal.SIGTERM, TERMINATED) if isinstance(stop, _Terminated) else (signal.SIGINT, INTERRUPTED)
        _signal(self._children, number)
        _await(self._children, lifeline.SAVING)
        ended = Ended(code)
      finally:
        _end(self._children, 0)
    for reader in self._readers:
      reader.join(timeout=5)
    return ended

  def _start(self, end):
    """Starts all of them; says who could not be started."""
    for i, worker in enumerate(self._workers):
      mine = lifeline.environment(end) | {'DCT_JAX_PROCESS_ID': str(i), WORKER: str(worker)}
      try:
        child = _start([*self._prefix(worker), *self._argv], self._environment | mine, end)
      except OSError as error:
        if self._strict:
          raise
        return Ended(commands.WRONG, worker, str(error), time.monotonic() - self._begin, started=False)
      self._children.append(child)
      self._readers.append(_follow(worker, child, self._ended, self._output))
    return None

  def _wait(self, deadline, parting) -> Ended:
    """Until all have ended well, one has not, time is up, or others want to join."""
    left = len(self._children)
    while left:
      late = None if deadline is None else max(0, deadline - time.monotonic())
      try:
        worker, code = self._ended.get(timeout=GLANCE if late is None else min(late, GLANCE))
      except queue.Empty:
        if late is not None and time.monotonic() >= deadline:
          return Ended(TIMED_OUT)
        if left == len(self._children) and parting():
          return self._part()
        continue
      if code:
        how = f'exit code {code}' if code > 0 else f'signal {-code} ({signal.strsignal(-code)})'
        return Ended(code if code > 0 else 128 - code, worker, how, time.monotonic() - self._begin)
      left -= 1
    return Ended(0)

  def _part(self):
    """SIGTERM saves a checkpoint of the step that all agree on, and ends them."""
    _signal(self._children, signal.SIGTERM)
    _await(self._children, lifeline.SAVING)
    done = all(child.poll() == 0 for child in self._children)
    return Ended(0) if done else Ended(TERMINATED, parted=True)


class _Terminated(SystemExit):
  """Somebody ends us with SIGTERM; the others must not be left behind."""


@contextlib.contextmanager
def _sigterm_raises():
  """SIGTERM as an exception, in the main thread."""

  def stop(*_):
    raise _Terminated(TERMINATED)

  main = threading.current_thread() is threading.main_thread()
  before = signal.signal(signal.SIGTERM, stop) if main else None
  try:
    yield
  finally:
    if main:
      signal.signal(signal.SIGTERM, before)


def _place(coordinator, workers, devices):
  """What is the same for all processes of a group."""
  address = coordinator(workers[0]) if callable(coordinator) else coordinator
  return {
      'DCT_JAX_COORDINATOR': address or f'127.0.0.1:{_free_port()}',
      'DCT_JAX_NUM_PROCESSES': str(len(workers)),
      'DCT_JAX_LOCAL_DEVICES': str(devices),
      'PYTHONUNBUFFERED': '1',
      'TQDM_MININTERVAL': os.environ.get('TQDM_MININTERVAL', '10'),
  }


def _free_port():
  """Free now; nobody can promise more."""
  with socket.socket() as probe:
    probe.bind(('127.0.0.1', 0))
    return probe.getsockname()[1]


def _start(argv, environment, end):
  # Its own session: Ctrl-C reaches it through us, once, and not from the terminal as well.
  return subprocess.Popen(argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors='replace',
                          start_new_session=True, pass_fds=(end,))


def _follow(index, child, ended, output):
  """Copies a child's lines, and reports its end as soon as it happens."""

  def copy():
    with child.stdout:
      for line in child.stdout:  # a progress bar's carriage returns end lines here, too
        output.write(f'[{index}] {line}')
        output.flush()

  reader = threading.Thread(target=copy, daemon=True)
  reader.start()
  threading.Thread(target=lambda: ended.put((index, child.wait())), daemon=True).start()
  return reader


def _signal(children, number):
  for child in children:
    if child.poll() is None:
      try:
        os.killpg(child.pid, number)
      except ProcessLookupError:
        pass  # it has just ended


def _await(children, seconds):
  deadline = time.monotonic() + seconds
  while time.monotonic() < deadline and any(c.poll() is None for c in children):
    time.sleep(0.05)


def _end(children, grace):
  """Asks, then ends: JAX takes SIGTERM for a notice of preemption, and a stuck collective stays."""
  if grace:
    _signal(children, signal.SIGTERM)
    _await(children, grace)
  _signal(children, signal.SIGKILL)
  for child in children:
    child.wait()


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Flags of what happens when a worker fails."""
  parser.add_argument('--restarts', type=int, default=0,
                      help='failures after which all are started again, to go on from their last checkpoint')
  parser.add_argument('--min_workers', type=int, help='workers that training may go on with; all of them unless given')
  parser.add_argument('--retry', type=float, default=60.0, help='seconds until a worker that stays away is tried again')


def main(arguments: Sequence[str] | None = None) -> int:
  parser = commands.Parser(
      'dct_jax.train.launch', description='Starts several processes of a program on this machine.')
  parser.add_argument('--processes', type=int, required=True, help='of the program, on this machine')
  parser.add_argument('--devices-per-process', type=int, default=1, help='workers of each process')
  parser.add_argument('--timeout', type=float, help='seconds after which all are ended')
  add_flags(parser)
  parser.add_argument('program', nargs='+', help='after --: program and arguments')
  flags = parser.parse_args(arguments)
  return commands.attempt(parser.prog, lambda: launch(
      flags.program, flags.processes, devices_per_process=flags.devices_per_process, timeout=flags.timeout,
      failures=Elastic(flags.restarts, flags.min_workers, flags.retry)))


if __name__ == '__main__':
  sys.exit(main())
