"""Experiments and benchmarks from their command lines, in processes of their own that have JAX before they start.

Importing JAX, matplotlib and the toolkit takes four seconds. A server does it once and forks.
"""

import json
import multiprocessing
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parents[2]
IMPORTED = ['matplotlib.pyplot', 'orbax.checkpoint', 'sklearn.datasets', 'dct_jax.netlab', 'dct_jax.runtime']
_forks = multiprocessing.get_context('forkserver')
_forks.set_forkserver_preload(IMPORTED)


def run(name, *arguments, timeout=120, folder='experiments'):
  """`python FOLDER/NAME.py ARGUMENTS`, as `subprocess.run` would have it."""
  with tempfile.TemporaryDirectory() as directory:
    outputs = [pathlib.Path(directory) / stream for stream in ('stdout', 'stderr')]
    script = str(ROOT / f'{folder}/{name}.py')
    process = _forks.Process(target=_execute, args=(script, arguments, outputs))
    process.start()
    process.join(timeout)
    if process.exitcode is None:
      process.kill()
      process.join()
      raise subprocess.TimeoutExpired([script, *arguments], timeout)
    return subprocess.CompletedProcess([script, *arguments], process.exitcode, *(x.read_text() for x in outputs))


def _execute(script, arguments, outputs):
  for stream, path in zip((1, 2), outputs, strict=True):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), stream)
  os.environ['PYTHONPATH'] = str(ROOT)  # of processes that this one starts
  sys.argv = [script, *arguments]
  sys.path[:0] = [str(pathlib.Path(script).parent), str(ROOT)]
  runpy.run_path(script, run_name='__main__')


def lines_of(directory):
  """What the log of a run has so far."""
  path = directory / 'metrics.jsonl'
  return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def kill_a_worker(workdir, method, after):
  """SIGKILL for one of the processes of a run, when its log has reached a step."""
  end = time.monotonic() + 200
  while not any(line['step'] >= after for line in lines_of(workdir / method)):
    assert time.monotonic() < end, 'the run does not get that far'
    time.sleep(0.05)
  for entry in pathlib.Path('/proc').glob('[0-9]*'):
    try:
      ours = f'--workdir={workdir}' in (entry / 'cmdline').read_text()
      last = 'DCT_JAX_PROCESS_ID=1' in (entry / 'environ').read_text()
    except OSError:  # gone, or not ours
      continue
    if ours and last:
      return os.kill(int(entry.name), signal.SIGKILL)
  raise AssertionError('there is no such process')
