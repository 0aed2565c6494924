"""The digits experiment from its command line, for a few steps."""

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip('matplotlib')
pytest.importorskip('sklearn')
ROOT = pathlib.Path(__file__).parents[2]


def run(*arguments):
  return subprocess.run(
      [sys.executable, str(ROOT / 'experiments/digits_mlp.py'), *arguments], capture_output=True,
      text=True, env=os.environ | {'PYTHONPATH': str(ROOT)}, timeout=120, check=False)


def test_compares_and_resumes(tmp_path):
  flags = ('--workers=2', '--steps=8', f'--workdir={tmp_path}')
  done = run(*flags)
  assert done.returncode == 0, done.stderr
  head, dense, dct = done.stdout.splitlines()[:3]
  assert 'train loss' in head
  assert dense.split()[0] == 'dense'
  assert dct.split()[0] == 'dct'
  assert (tmp_path / 'loss.png').stat().st_size > 10_000
  again = run(*flags, '--resume')
  assert again.stdout == done.stdout  # nothing was left to do
  other = run(*flags, '--resume', '--sparsity=0.9', '--method=dct')
  assert other.returncode
  assert "'sparsity' was 0.99, got 0.9" in other.stderr


@pytest.mark.parametrize(('flag', 'message'), [
    ('--resume', 'needs the --workdir'), ('--method=magic', "variant='magic'"),
    ('--num_processes=0', 'num_processes'), ('more', 'there are only flags')])
def test_bad_flags(flag, message):
  done = run(flag)
  assert done.returncode
  assert message in done.stdout + done.stderr
