"""Several real processes."""

import io
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import program
import pytest

from dct_jax.train import launch, lifeline

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = str(ROOT / 'tests/train/program.py')
ENVIRONMENT = {'PYTHONPATH': str(ROOT)}


def run(task, directory, processes, **kwargs):
  output = io.StringIO()
  code = launch.launch(['python', PROGRAM, task, str(directory)], processes, timeout=120,
                       environment=ENVIRONMENT, output=output, **kwargs)
  return code, output.getvalue()


def load(path):
  """Losses, and all else."""
  with np.load(path) as file:
    return file['losses'], [file[name] for name in file.files if name != 'losses']


def assert_same_bits(a, b):
  assert len(a) == len(b)
  for x, y in zip(a, b, strict=True):
    assert (x.shape, x.dtype, x.tobytes()) == (y.shape, y.dtype, y.tobytes())


def test_processes_equal_devices_bit_for_bit(tmp_path):
  code, output = run('train', tmp_path, 3)
  assert code == 0, output
  program.save(tmp_path / 'devices.npz', program.Program(3).run(6))
  losses, leaves = load(tmp_path / 'devices.npz')
  for me in range(3):
    my_losses, mine = load(tmp_path / f'{me}.npz')
    # Each device's part of every leaf, residuals and replicas alike.
    assert_same_bits([np.split(x, 3)[me] for x in leaves], mine)
    np.testing.assert_allclose(my_losses, losses, rtol=1e-6)  # a psum may add in another order


@pytest.mark.slow
def test_checkpoint_of_two_processes(tmp_path):
  code, output = run('resume', tmp_path, 2)
  assert code == 0, output
  for me in range(2):
    losses, through = load(tmp_path / f'through{me}.npz')
    again, restored = load(tmp_path / f'restored{me}.npz')
    assert_same_bits([losses, *through], [again, *restored])


@pytest.mark.slow
def test_a_failure_ends_all(tmp_path):
  begin = time.monotonic()
  code, output = run('fail', tmp_path, 2)
  assert code == 1
  assert '[1] OSError: a disk is full' in output
  assert time.monotonic() - begin < 60


def test_replicas_that_differ_are_refused(tmp_path):
  code, output = run('differ', tmp_path, 2)
  assert code == 1
  assert "replicated values differ between workers, the first is [0]['w1'], of which workers [0] have" in output


@pytest.mark.parametrize(('number', 'code', 'how'), [
    (signal.SIGINT, launch.INTERRUPTED, 'interrupted'), (signal.SIGTERM, launch.TERMINATED, 'ended by SIGTERM')])
def test_ctrl_c_and_sigterm_save_the_same_step_everywhere(number, code, how, tmp_path):
  child = subprocess.Popen(
      [sys.executable, '-m', 'dct_jax.train.launch', '--processes=2', '--timeout=120', '--',
       'python', PROGRAM, 'interrupt', str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True,
      env=os.environ | ENVIRONMENT)
  with child:
    for line in child.stdout:
      if 'stepping' in line:  # before that, nobody listens
        child.send_signal(number)
        break
    output = child.stdout.read()
  assert child.returncode == code
  (saved,) = [p for p in (tmp_path / 'saved').iterdir() if p.is_dir()]
  assert f'{how} after step {saved.name}; saved in' in output
  assert number == signal.SIGINT or 'Traceback' not in output


def test_arguments_that_cannot_work_are_one_line(capsys):
  for arguments, words in ((['--processes=0', '--', 'true'], 'processes'),
                           (['--processes=1', '--', '/no/program'], '/no/program')):
    assert launch.main(arguments) == 2
    said = capsys.readouterr().err
    assert words in said and said.count('\n') == 1
  with pytest.raises(SystemExit) as end:
    launch.main(['--processes=many', '--', 'true'])
  assert end.value.code == 2 and capsys.readouterr().err.count('\n') == 1


def alive(word):
  """Processes with a word in their command line."""
  lines = lambda p: p.read_bytes().split(b'\0') if p.exists() else []
  return [p.parent.name for p in pathlib.Path('/proc').glob('[0-9]*/cmdline') if word.encode() in lines(p)]


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='processes are found in /proc')
def test_workers_end_with_a_launcher_that_was_killed(tmp_path):
  command = [sys.executable, '-m', 'dct_jax.train.launch', '--processes=2', '--timeout=120', '--', 'python', PROGRAM,
             'interrupt', str(tmp_path)]
  with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=os.environ | ENVIRONMENT) as child:
    next(line for line in child.stdout if 'stepping' in line)
    assert len(alive(str(tmp_path))) == 3
    child.kill()
  end = time.monotonic() + lifeline.SAVING / 2  # they do not need to be ended by force
  while alive(str(tmp_path)) and time.monotonic() < end:
    time.sleep(0.1)
  assert not alive(str(tmp_path))
  assert [p for p in (tmp_path / 'saved').iterdir() if p.is_dir()]  # SIGTERM saves


def test_a_lifeline_of_somebody_else_is_left_alone(tmp_path, monkeypatch):
  """A child of a worker that has the variable, but another file of that number."""
  before = threading.active_count()
  with open(tmp_path / 'other', 'w') as other:
    for value in (f'{other.fileno()}:1', '999:1', ''):
      monkeypatch.setenv(lifeline.VARIABLE, value)
      lifeline.watch()
  assert threading.active_count() == before and lifeline.VARIABLE not in os.environ


def shell(script, processes=2, **kwargs):
  output = io.StringIO()
  code = launch.launch(['sh', '-c', script], processes, output=output, **kwargs)
  return code, output.getvalue()


def test_lines_are_prefixed():
  code, output = shell('echo $DCT_JAX_PROCESS_ID of $DCT_JAX_NUM_PROCESSES')
  assert code == 0
  assert sorted(output.splitlines()) == ['[0] 0 of 2', '[1] 1 of 2']


@pytest.mark.parametrize(('script', 'want', 'how'), [
    ('test $DCT_JAX_PROCESS_ID = 0 && sleep 60; exit 5', 5, 'exit code 5'),
    ('test $DCT_JAX_PROCESS_ID = 0 && sleep 60; kill -KILL $$', 128 + 9, 'signal 9 (Killed)'),
    ('trap "" TERM; test $DCT_JAX_PROCESS_ID = 0 && sleep 60; exit 5', 5, 'exit code 5')])
def test_the_first_failure_is_told_last(script, want, how):
  begin = time.monotonic()
  code, output = shell(script, grace=0.5)
  assert code == want
  assert output.splitlines()[-1] == f'process 1 failed first, with {how}; the others were ended'
  assert time.monotonic() - begin < 20


def test_timeout():
  code, output = shell('sleep 60', timeout=0.5, grace=0.5)
  assert code == launch.TIMED_OUT
  assert output == 'not done after 0.5 seconds: all processes were ended\n'


@pytest.mark.parametrize(('argv', 'processes'), [([], 2), (['true'], 0)])
def test_bad_arguments_are_refused(argv, processes):
  with pytest.raises(ValueError, match='got'):
    launch.launch(argv, processes)
