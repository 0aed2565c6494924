"""Starts several processes of one program on this machine.

    python -m dct_jax.train.launch --processes 4 -- python script.py --flags

Each process finds its place in environment variables that `dct_jax.train.start` reads. Output lines
are prefixed with the number of their process. When one fails, all are ended.
"""

from __future__ import annotations

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
from typing import TextIO

from dct_jax import commands
from dct_jax.commands import INTERRUPTED, TERMINATED
from dct_jax.train import lifeline, memory

TIMED_OUT = 124  # as timeout(1) has it


def launch(argv: Sequence[str], processes: int, *, devices_per_process: int = 1,
           timeout: float | None = None, grace: float = 3.0,
           environment: Mapping[str, str] | None = None, output: TextIO | None = None,
           coordinator: str | None = None,
           prefix: Callable[[int], Sequence[str]] = lambda i: ()) -> int:
  """Runs `argv` in several processes of this machine that find each other.

  Ctrl-C and SIGTERM are passed on once, and leave them 30 seconds to save a checkpoint. If this process ends in any
  other way, those that have called `dct_jax.train.start` end, too.

  Args:
    argv: program and arguments; a first 'python' means this interpreter.
    processes: how many.
    devices_per_process: CPU devices of each.
    timeout: seconds after which all are ended.
    grace: seconds between asking to end and ending, after a failure.
    environment: added to this process's environment.
    output: where their lines go; standard output unless given.
    coordinator: host:port at which process 0 will listen; a free port of the loopback interface
      unless given.
    prefix: words to put before the command of process i (to run it in a network namespace, ...).

  Returns:
    0, or the exit code of the first that failed (128 + n if signal n ended it), 124 after a
    timeout, 130 after Ctrl-C, 143 after SIGTERM.

  Raises:
    ValueError: for arguments that cannot work.
  """
  argv = list(argv)
  if not argv:
    raise ValueError(f'there is no program to run, got {argv=}')
  if processes < 1 or devices_per_process < 1:
    raise ValueError('processes and devices_per_process must be at least 1, got '
                     f'{processes=} and {devices_per_process=}')
  argv[0] = sys.executable if argv[0] == 'python' else argv[0]
  place = _place(coordinator, processes, devices_per_process)
  shared = memory.environment() | os.environ | place | dict(environment or {})
  children: list[subprocess.Popen] = []
  readers: list[threading.Thread] = []
  ended: queue.Queue[tuple[int, int]] = queue.Queue()
  with lifeline.held() as end, _sigterm_raises():
    try:
      for i in range(processes):
        mine = lifeline.environment(end) | {'DCT_JAX_PROCESS_ID': str(i)}
        children.append(_start([*prefix(i), *argv], shared | mine, end))
        readers.append(_follow(i, children[i], ended, output or sys.stdout))
      code, why = _wait(processes, ended, timeout)
      _end(children, grace)
    except (KeyboardInterrupt, _Terminated) as stop:
      number, code = (signal.SIGTERM, TERMINATED) if isinstance(stop, _Terminated) else (signal.SIGINT, INTERRUPTED)
      _signal(children, number)
      _await(children, lifeline.SAVING)
      why = ''
    finally:
      _end(children, 0)
  for reader in readers:
    reader.join(timeout=5)
  if why:  # last, as what the others say when they are ended would bury it
    print(why, file=output or sys.stdout, flush=True)
  return code


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


def _place(coordinator, processes, devices):
  """What is the same for all processes."""
  return {
      'DCT_JAX_COORDINATOR': coordinator or f'127.0.0.1:{_free_port()}',
      'DCT_JAX_NUM_PROCESSES': str(processes),
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


def _wait(processes, ended, timeout):
  """Until all have ended well, one has not, or time is up: exit code, and why it is not 0."""
  deadline = None if timeout is None else time.monotonic() + timeout
  for _ in range(processes):
    try:
      index, code = ended.get(timeout=None if deadline is None else max(0, deadline - time.monotonic()))
    except queue.Empty:
      return TIMED_OUT, f'not done after {timeout:g} seconds: all processes were ended'
    if code:
      how = f'exit code {code}' if code > 0 else f'signal {-code} ({signal.strsignal(-code)})'
      why = f'process {index} failed first, with {how}; the others were ended'
      return code if code > 0 else 128 - code, why
  return 0, ''


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


def main(arguments: Sequence[str] | None = None) -> int:
  parser = commands.Parser(
      'dct_jax.train.launch', description='Starts several processes of a program on this machine.')
  parser.add_argument('--processes', type=int, required=True, help='of the program, on this machine')
  parser.add_argument('--devices-per-process', type=int, default=1, help='workers of each process')
  parser.add_argument('--timeout', type=float, help='seconds after which all are ended')
  parser.add_argument('program', nargs='+', help='after --: program and arguments')
  flags = parser.parse_args(arguments)
  return commands.attempt(parser.prog, lambda: launch(
      flags.program, flags.processes, devices_per_process=flags.devices_per_process, timeout=flags.timeout))


if __name__ == '__main__':
  sys.exit(main())
