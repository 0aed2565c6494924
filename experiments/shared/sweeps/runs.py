"""Runs of a sweep, several at a time: each in a process and a directory of its own, each made once."""

import concurrent.futures
import contextlib
import fcntl
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time

import tqdm

from dct_jax.train import networks

LAST_LINES = 8  # of what a failed run has said
PATIENCE = 60  # seconds in which a run that is asked to stop may save


class Outcome:
  """How runs ended: `done` and `failed`, by name; a failed one with its last lines."""

  def __init__(self):
    self.done, self.failed = {}, {}


def run_all(runs, workdir, processes):
  """Makes all runs that are not there yet; returns an `Outcome`.

  Args:
    runs: of `grid.expand`.
    workdir: each run has a directory in it.
    processes: how many at a time; each has cores of its own, as far as there are enough.

  Raises:
    KeyboardInterrupt: when runs that were going on have been asked to save and have ended.
  """
  outcome, stopped, running = Outcome(), threading.Event(), set()
  slots = queue.SimpleQueue()
  for cores in _shares(processes):
    slots.put(cores)

  def one(run):
    if stopped.is_set():
      return None
    cores = slots.get()
    try:
      return _make(run, workdir / run.name, cores, running, stopped)
    finally:
      slots.put(cores)

  with (concurrent.futures.ThreadPoolExecutor(processes) as pool,
        tqdm.tqdm(total=len(runs), unit='run', file=sys.stderr) as bar):
    jobs = {}
    for run in runs:
      if _finished(workdir / run.name):
        outcome.done[run.name] = _finished(workdir / run.name)
        bar.update()
      else:
        jobs[pool.submit(one, run)] = run
    try:
      for job in _ended(jobs):
        _note(outcome, jobs[job], job.result(), workdir)
        bar.set_postfix({'failed': len(outcome.failed)}, refresh=False)
        bar.update()
    except KeyboardInterrupt:
      stopped.set()
      _stop(running)
      raise
  return outcome


def _ended(jobs):
  """Jobs as they end. It looks now and then, as a signal need not wake up a thread that waits without end."""
  pending = set(jobs)
  while pending:
    ended, pending = concurrent.futures.wait(pending, timeout=0.2, return_when=concurrent.futures.FIRST_COMPLETED)
    yield from ended


def _shares(processes):
  """Cores of each process; all have the same ones if there are too few to share."""
  if not hasattr(os, 'sched_getaffinity'):
    return [None] * processes
  cores = sorted(os.sched_getaffinity(0))
  return [set(cores[i::processes]) or set(cores) for i in range(processes)]


def _finished(directory):
  """What is noted of a run that is complete."""
  path = directory / 'done.json'
  return json.loads(path.read_text()) if path.exists() else None


def _note(outcome, run, lines, workdir):
  if lines is None:
    return
  if not lines:
    outcome.done[run.name] = _finished(workdir / run.name)
    return
  outcome.failed[run.name] = lines
  tqdm.tqdm.write(f'{run.name} failed; its last lines, of {workdir / run.name / "run.log"}:\n'
                  + '\n'.join(f'  {line}' for line in lines), file=sys.stderr)


def _make(run, directory, cores, running, stopped):
  """Makes a run, or goes on with it; returns the last lines of one that failed."""
  directory.mkdir(parents=True, exist_ok=True)
  with contextlib.ExitStack() as stack:
    lock = stack.enter_context(open(directory / 'lock', 'w'))
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
      return ['another process is at this run']
    saved = directory / run.method / 'checkpoints'  # of all of it, or of its stages
    goes_on = any(path.name.isdigit() for pattern in ('*', '*/*') for path in saved.glob(pattern))
    if not goes_on:
      shutil.rmtree(directory / run.method, ignore_errors=True)
    (directory / 'config.json').write_text(json.dumps(run.config, indent=1, sort_keys=True) + '\n')
    log = stack.enter_context(open(directory / 'run.log', 'ab' if goes_on else 'wb'))
    began = time.monotonic()
    code = _wait(_command(run, directory, goes_on), log, lock, cores, running, stopped)
    seconds = _add_seconds(directory / 'seconds', time.monotonic() - began, goes_on)
  if stopped.is_set():
    return None
  if code:
    return _tail(directory / 'run.log') or [f'it ended with exit code {code}']
  noted = {'seconds': seconds, 'cores': len(cores) if cores else networks.available_cores()}
  (directory / 'done.json').write_text(json.dumps(noted) + '\n')
  return []


def _command(run, directory, goes_on):
  return [sys.executable, str(run.script), *run.arguments, f'--method={run.method}', f'--workdir={directory}',
          *(['--resume'] if goes_on else [])]


def _wait(command, log, lock, cores, running, stopped):
  """Starts a process on its cores, and waits for it; its exit code."""
  if cores:
    os.sched_setaffinity(0, cores)  # of this thread, and of what it starts
  # In a session of its own: Ctrl-C is ours to pass on, once. The lock stays with a process that we could not end.
  process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                             start_new_session=True, pass_fds=[lock.fileno()])
  running.add(process)
  if stopped.is_set():  # since it was looked at
    process.send_signal(signal.SIGINT)
  try:
    return process.wait()
  finally:
    running.discard(process)


def _stop(running):
  """Asks all runs to save and end, and ends those that do not."""
  processes = list(running)
  for process in processes:
    process.send_signal(signal.SIGINT)
  end = time.monotonic() + PATIENCE
  for process in processes:
    try:
      process.wait(max(end - time.monotonic(), 0))
    except subprocess.TimeoutExpired:
      process.kill()


def _add_seconds(path, seconds, goes_on):
  before = float(path.read_text()) if goes_on and path.exists() else 0.0
  path.write_text(f'{before + seconds:.1f}')
  return before + seconds


def _tail(path):
  text = path.read_text(errors='replace').replace('\r', '\n')
  return [line for line in text.splitlines() if line.strip()][-LAST_LINES:]
