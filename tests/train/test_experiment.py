"""The experiments from their command lines, for a few steps."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import commands
import pytest

from dct_jax.train import preflight

pytest.importorskip('matplotlib')
pytest.importorskip('sklearn')


ROOT = pathlib.Path(__file__).parents[2]


def run(*arguments, name='digits_mlp'):
  return commands.run(name, *arguments)


def test_compares_and_resumes(tmp_path):
  flags = ('--workers=2', '--steps=8', f'--workdir={tmp_path}', f'--results={tmp_path / "found.json"}')
  done = run(*flags)
  assert done.returncode == 0, done.stderr
  head, dense, dct = done.stdout.splitlines()[:3]
  assert 'train loss' in head
  assert dense.split()[0] == 'dense'
  assert dct.split()[0] == 'dct'
  assert (tmp_path / 'loss.png').stat().st_size > 10_000
  found = json.loads((tmp_path / 'found.json').read_text())
  assert found['tables']['main']['rows'][:2] == [dense.split(), dct.split()] and found['seed'] == [0]
  assert found['command'] == f'python experiments/digits_mlp.py {" ".join(flags)}'
  again = run(*flags, '--resume')
  assert again.stdout == done.stdout  # nothing was left to do
  other = run(*flags, '--resume', '--sparsity=0.9', '--method=dct')
  assert other.returncode
  assert "'sparsity' was 0.99, got 0.9" in other.stderr


def test_help_lists_settings_and_where_to_run():
  done = run('--help', name='dlrm_tables')  # its own flags, and those of the experiment that it is made of
  for flag in ('--seeds', '--mp_sparsity', '--workers', '--workdir', '--coordinator'):
    assert f'\n  {flag}: ' in done.stdout


@pytest.mark.parametrize(('flag', 'message'), [
    ('--resume', 'needs the --workdir'), ('--method=magic', "got 'magic'"),
    ('--num_processes=0', 'num_processes'), ('more', 'there are only flags'), ('--colour=red', 'colour'),
    ('--steps=many', 'steps'), ('--steps=0', '--steps must be at least 1'), ('--workers=-1', '--workers'),
    ('--sparsity=1.5', '--sparsity must be in'), ('--lifespan=0', 'lifespan=0'), ('--value_codec=int3', 'int3'),
    ('--config=nowhere.py', 'nowhere.py'), ('--workdir=/dev/null/x', '/dev/null is a file')])
def test_bad_flags_are_one_line(flag, message):
  begin = time.monotonic()
  done = run(flag)
  assert done.returncode == 2
  assert message in done.stderr and not done.stdout
  assert done.stderr.count('\n') == 1 and done.stderr.startswith('digits_mlp.py: error: ')
  assert time.monotonic() - begin < 60


def test_errors_tell_where_they_come_from_when_asked(monkeypatch):
  monkeypatch.setenv('DCT_JAX_TRACEBACK', '1')
  assert 'Traceback' in subprocess.run(
      [sys.executable, ROOT / 'experiments/digits_mlp.py', '--steps=0'], capture_output=True, text=True,
      env=os.environ | {'PYTHONPATH': str(ROOT)}).stderr


def test_any_number_of_workers(tmp_path):
  """And says what is left over; SIGTERM and Ctrl-C are in test_loop.py."""
  done = run('--workers=3', '--steps=2', '--method=dct', f'--workdir={tmp_path}')
  assert done.returncode == 0, done.stderr
  assert 'batches of 255 examples, not 256' in done.stderr
  again = run('--workers=3', '--steps=2', '--method=dct', f'--workdir={tmp_path}')
  assert again.returncode == 2 and 'has a run of dct already: --resume goes on with it' in again.stderr
  more = run('--workers=3', '--steps=2', '--method=dct,dense', '--resume', f'--workdir={tmp_path}')
  assert more.returncode == 0 and f'no checkpoint in {tmp_path} of dense: begun at step 0' in more.stderr
  few = run('--workers=3', '--batch=2', name='dlrm_criteo')
  assert few.returncode == 2 and '--batch must have an example for each of 3' in few.stderr


def test_zero_is_dense_and_one_worker_says_nothing_of_compression(tmp_path):
  done = run('--workers=1', '--steps=2', '--sparsity=0', f'--workdir={tmp_path}', '--method=dense,dct')
  assert done.returncode == 0, done.stderr
  dense, dct = (line.split() for line in done.stdout.splitlines()[1:3])
  assert dense[1:4] == dct[1:4] and len(dense) == len(dct) == 7  # losses, accuracy; no compression
  assert dct[-2:] == ['0', '0.00']


def test_ctrl_c_is_one_line_and_a_checkpoint(tmp_path):
  program = subprocess.Popen(
      [sys.executable, ROOT / 'experiments/digits_mlp.py', '--steps=1000000', '--workers=1', '--method=dense',
       f'--workdir={tmp_path}'], env=os.environ | {'PYTHONPATH': str(ROOT)}, stderr=subprocess.PIPE, text=True)
  while program.poll() is None and not commands.lines_of(tmp_path / 'dense'):
    time.sleep(0.1)
  program.send_signal(signal.SIGINT)
  said = program.communicate()[1]
  assert program.returncode == 130
  assert 'Traceback' not in said
  assert said.splitlines()[-1].startswith('interrupted after step ')
  assert preflight.has_checkpoint(tmp_path / 'dense')


def test_a_place_for_a_run(tmp_path):
  assert preflight.place(tmp_path / 'new/one', ['a', 'b'], False) == ['a', 'b']
  assert not (tmp_path / 'new').exists()
  with pytest.raises(FileNotFoundError, match='no run of a, b in'):
    preflight.place(tmp_path, ['a', 'b'], True)
  (tmp_path / 'a/checkpoints/stage0/12').mkdir(parents=True)
  assert preflight.place(tmp_path, ['a', 'b'], True) == ['b']
  assert preflight.place(tmp_path, ['b'], False) == ['b']
  with pytest.raises(ValueError, match='a run of a already'):
    preflight.place(tmp_path, ['a', 'b'], False)
  (tmp_path / 'file').touch()
  with pytest.raises(NotADirectoryError, match='file is a file'):
    preflight.place(tmp_path / 'file/x', ['a'], False)


@pytest.mark.slow
def test_mlp_on_the_stand_in_for_mnist(tmp_path):
  methods = ('dense', 'q4', 'topk4', 'top16_q4')
  done = run('--workers=2', '--steps=30', '--hidden=64', f'--workdir={tmp_path}',
             f'--method={",".join(methods)}', name='mlp_mnist')
  assert done.returncode == 0, done.stderr
  assert 'not MNIST but a stand-in' in done.stderr
  rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()[1:5]}
  assert set(rows) == set(methods)
  loss, accuracy, encoded = 1, 2, 3
  assert all(float(rows[m][accuracy]) > 0.6 for m in methods), done.stdout
  assert abs(float(rows['q4'][loss]) - float(rows['dense'][loss])) < 0.05
  number = lambda m: int(rows[m][encoded].replace(',', ''))
  assert number('topk4') < number('q4') < number('dense') / 4
