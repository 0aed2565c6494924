"""The experiments from their command lines, for a few steps."""

import json

import commands
import pytest

pytest.importorskip('matplotlib')
pytest.importorskip('sklearn')


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
    ('--resume', 'needs the --workdir'), ('--method=magic', "variant='magic'"),
    ('--num_processes=0', 'num_processes'), ('more', 'there are only flags')])
def test_bad_flags(flag, message):
  done = run(flag)
  assert done.returncode
  assert message in done.stdout + done.stderr


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
