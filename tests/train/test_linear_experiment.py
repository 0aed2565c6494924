"""The experiment on linear models from its command line, on a few synthetic rows."""

import commands
import pytest

from dct_jax.train import read_metrics

pytest.importorskip('matplotlib')


def run(*arguments):
  flags = ('--dataset=synthetic', '--num_features=30000', '--rows=600', '--batch=100', '--workers=2')
  return commands.run('linear_libsvm', *flags, *arguments)


def test_compares_and_resumes(tmp_path):
  flags = ('--method=dense,all_gather', '--penalty=l1', '--strength=1e-4', f'--workdir={tmp_path}')
  done = run(*flags, '--passes=2')
  assert done.returncode == 0, done.stderr
  assert 'speedup (comm.)' in done.stdout
  dense, sparse = (read_metrics(tmp_path / name) for name in ('dense', 'all_gather'))
  assert [x['step'] for x in dense] == [3, 6]
  assert dense[-1]['eval/train_loss'] == pytest.approx(sparse[-1]['eval/train_loss'], rel=1e-5)
  assert dense[-1]['eval/train_loss'] < 0.69
  assert sparse[-1]['total_sent_bytes'] < dense[-1]['total_sent_bytes']
  again = run(*flags, '--passes=2', '--resume')
  assert again.stdout == done.stdout, again.stderr  # nothing was left to do
  more = run(*flags, '--passes=3', '--resume', '--method=all_gather')
  assert more.returncode == 0, more.stderr
  assert [x['step'] for x in read_metrics(tmp_path / 'all_gather')] == [3, 6, 9]


def test_coordinate_descent_has_no_hinge(tmp_path):
  done = run('--solver=scd', '--loss=hinge', '--method=dense', f'--workdir={tmp_path}')
  assert done.returncode
  assert 'needs a smooth loss' in done.stderr
