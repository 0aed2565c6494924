"""`experiments/dlrm_criteo.py` and what is built on it from their command lines, for a few steps."""

import json
import pathlib
import re
import runpy
import threading

import commands
import numpy as np
import polars as pl
import pytest
from marks import slow
from scipy import special

from dct_jax import measures

pytest.importorskip('matplotlib')
predictions = runpy.run_path(str(pathlib.Path(__file__).parents[2] / 'experiments/shared/predictions.py'))
SMALL = ('--rows=600', '--test_rows=200', '--batch=32', '--evaluated=100', '--evaluate_every=4')


def run(*arguments, name='dlrm_criteo'):
  return commands.run(name, *SMALL, *arguments, timeout=240)


def table(output):
  """Rows by method, the numbers of the first table."""
  rows: dict[str, list[str]] = {}
  for m in re.finditer(r'^ *(\w+) +([\d., x]+)(?:yes|no)? *$', output, re.MULTILINE):
    rows.setdefault(m[1], m[2].split())
  return rows


@pytest.mark.slow
def test_forms_are_compared_and_a_run_goes_on_where_it_stopped(tmp_path):
  flags = ('--workers=2', '--method=baseline,hybrid')
  done = run(*flags, '--steps=8', f'--workdir={tmp_path / "whole"}')
  assert done.returncode == 0, done.stderr
  assert 'examples=' in done.stderr and 'test_auc=' in done.stderr
  first, second = done.stdout.split('at the cuts')
  rows, cuts = table(first), table(second)
  assert list(rows) == list(cuts) == ['baseline', 'hybrid']
  number = lambda x: float(x.replace(',', '').rstrip('x'))
  assert number(rows['hybrid'][6]) > 20 and number(rows['baseline'][6]) == 1
  assert number(cuts['hybrid'][3]) > 5 and number(cuts['baseline'][0]) == 0
  assert number(cuts['hybrid'][2]) == 4 * 16 * (256 + 256)  # 16 rows of a worker, two cuts of 256
  assert (tmp_path / 'whole/loss.png').stat().st_size > 10_000

  part = run(*flags, '--steps=4', f'--workdir={tmp_path / "parts"}')
  assert part.returncode == 0, part.stderr
  rest = run(*flags, '--steps=8', f'--workdir={tmp_path / "parts"}', '--resume')
  assert rest.stdout.replace('parts', 'whole').split('ms a step')[0] == done.stdout.split('ms a step')[0]


@pytest.fixture
def criteo(tmp_path):
  """A small file in Criteo's format, and another one to test on."""
  rng = np.random.default_rng(0)
  for name, rows in [('train.txt', 350), ('mine.txt', 101)]:
    lines = [[rng.integers(2), *rng.integers(0, 9, 13), *(f'{x:08x}' for x in rng.integers(0, 12, 26))]
             for _ in range(rows)]
    (tmp_path / name).write_text(''.join('\t'.join(map(str, line)) + '\n' for line in lines))
  return f'--data={tmp_path / "train.txt"}', f'--cache={tmp_path / "cache"}', f'--workdir={tmp_path / "run"}'


@pytest.mark.parametrize('flags', [
    ('--method=dp',), *slow((('--method=dp', '--placement=replicated'),),
                            (('--method=hybrid', '--stages=3', '--launch=processes'),))])
def test_a_file_of_ones_own_is_tested_on_and_predicted(criteo, tmp_path, flags):
  flags = (*criteo, '--workers=2', '--steps=6', *flags)
  mine, method = f'--test_data={tmp_path / "mine.txt"}', flags[5].removeprefix('--method=')
  trained = run(*flags, '--evaluated=100', mine)
  assert trained.returncode == 0, trained.stderr
  assert 'the last 14% of the rows of --data are not used' in trained.stdout + trained.stderr
  labels = np.array([float(line[0]) for line in (tmp_path / 'mine.txt').read_text().splitlines()])
  done = run(*flags, mine, f'--predict={tmp_path / "mine.csv"}')
  assert done.returncode == 0 and '101 probabilities, by the checkpoint of step 6' in done.stdout, done.stderr
  found = pl.read_csv(tmp_path / 'mine.csv')
  assert found['row'].to_list() == list(range(101))
  logits = special.logit(found['probability'].to_numpy())
  told = commands.lines_of(tmp_path / 'run' / method)[-1]
  assert measures.of_clicks(logits[:100], labels[:100])['auc'] == pytest.approx(told['eval/test_auc'], abs=1e-3)
  assert np.ptp(logits) > 1e-3


@pytest.mark.parametrize('ending, read', [
    ('.txt', np.loadtxt), ('.csv', lambda path: pl.read_csv(path)['probability'].to_numpy()),
    ('.parquet', lambda path: pl.read_parquet(path)['probability'].to_numpy())])
def test_files_of_probabilities(tmp_path, ending, read):
  wanted = np.random.default_rng(0).random(20).astype(np.float32)
  predictions['write'](tmp_path / f'p{ending}', wanted, step=3)
  np.testing.assert_array_equal(np.float32(read(tmp_path / f'p{ending}')), wanted)


@pytest.mark.parametrize('flags, message', [
    (('--predict=p.csv', '--method=dp'), 'needs the --workdir'),
    (('--predict=p.csv', '--workdir=nowhere'), 'and one --method'),
    (('--predict=p.csv', '--workdir=nowhere', '--method=dp'), 'no checkpoint of dp in nowhere'),
])
def test_what_cannot_be_predicted(flags, message):
  done = run(*flags)
  assert done.returncode
  assert message in done.stdout + done.stderr


@pytest.mark.slow
def test_stages_of_several_processes_go_on_where_they_stopped(tmp_path):
  flags = ('--workers=2', '--stages=2', '--splits=bottom2', '--method=hybrid', '--launch=processes')
  whole = run(*flags, '--steps=8', f'--workdir={tmp_path / "whole"}')
  part = run(*flags, '--steps=4', f'--workdir={tmp_path / "parts"}')
  rest = run(*flags, '--steps=8', f'--workdir={tmp_path / "parts"}', '--resume')
  for done in (whole, part, rest):
    assert done.returncode == 0, done.stdout + done.stderr
  assert table(rest.stdout.replace('[0] ', '')) == table(whole.stdout.replace('[0] ', '')) != {}


@pytest.mark.slow
def test_processes_see_the_same_data_as_devices(tmp_path):
  flags = ('--workers=2', '--method=baseline', '--steps=4')
  devices = run(*flags, f'--workdir={tmp_path / "devices"}')
  processes = run(*flags, f'--workdir={tmp_path / "processes"}', '--launch=processes')
  assert processes.returncode == 0, processes.stdout + processes.stderr
  lines = '\n'.join(line.removeprefix('[0] ') for line in processes.stdout.splitlines())
  measures = lambda text: [float(x) for x in table(text)['baseline'][:5]]
  assert measures(lines) == pytest.approx(measures(devices.stdout), abs=2e-5)


@pytest.mark.slow
def test_replicated_tables_train_as_dealt_out_ones(tmp_path):
  # Not with Adagrad of every entry: it makes a whole step of what is left of a sum that cancels.
  flags = ('--workers=2', '--method=baseline', '--steps=8', '--row_optimizer=row_adagrad')
  places = {'dealt': ('--placement=dealt',), 'union': ('--placement=replicated', '--row_sum=union')}
  losses = {}
  for name, place in places.items():
    done = run(*flags, *place, f'--workdir={tmp_path / name}')
    assert done.returncode == 0, done.stderr
    losses[name] = [line['loss'] for line in commands.lines_of(tmp_path / name / 'baseline') if 'loss' in line]
  assert losses['union'] == pytest.approx(losses['dealt'], rel=1e-6)


def lines_of(workdir):
  return commands.lines_of(workdir / 'mp2')


@pytest.mark.slow
def test_stages_in_processes_train_as_cuts_inside_a_device_also_after_a_kill(tmp_path):
  flags = ('--workers=1', '--method=mp2', '--mp_sparsity=0.9', '--steps=200', '--evaluate_every=200')
  inside = run(*flags, f'--workdir={tmp_path / "inside"}')
  assert inside.returncode == 0, inside.stderr
  stages = (*flags, '--stages=2', '--launch=processes', '--checkpoint_every=10')
  whole = run(*stages, f'--workdir={tmp_path / "whole"}')
  assert whole.returncode == 0, whole.stdout + whole.stderr
  lines = '\n'.join(line.removeprefix('[0] ') for line in whole.stdout.splitlines())
  measures = lambda text: [float(x) for x in table(text.split('at the cuts')[0])['mp2'][:5]]
  assert measures(lines) == pytest.approx(measures(inside.stdout), abs=2e-3)  # 200 steps of rounding apart
  cuts = [table(text.split('at the cuts')[1])['mp2'] for text in (lines, inside.stdout)]
  forward = [float(row[0].replace(',', '')) for row in cuts]
  assert forward[0] == pytest.approx(forward[1] + 12, abs=40)  # its shape, and a mask may have flipped

  killed = threading.Thread(target=commands.kill_a_worker, args=(tmp_path / 'killed', 'mp2', 20))
  killed.start()
  part = run(*stages, f'--workdir={tmp_path / "killed"}')
  killed.join()
  assert part.returncode != 0
  assert lines_of(tmp_path / 'killed')[-1]['step'] < 200
  rest = run(*stages, f'--workdir={tmp_path / "killed"}', '--resume')
  assert rest.returncode == 0, rest.stdout + rest.stderr
  losses = [{line['step']: line['loss'] for line in lines_of(tmp_path / name)} for name in ('killed', 'whole')]
  assert losses[0] == losses[1] and len(losses[0]) == 20


@pytest.mark.slow
def test_figures_of_thresholds(tmp_path):
  flags = ('--workers=2', '--gradients=0.95', '--activations=0.9', f'--workdir={tmp_path}',
           f'--results={tmp_path / "found.json"}')
  done = run(*flags, '--steps=8', '--window=4', name='dlrm_figures')
  assert done.returncode == 0, done.stderr
  gradients, activations = (json.loads((tmp_path / f'figure{n}.json').read_text()) for n in (2, 5))
  assert list(gradients) == ['95.0%'] and 0 < gradients['95.0%']['largest'] < 1
  assert set(activations) == {'bottom2, 90%', 'top2, 90%'}
  without, applied = activations['bottom2, 90%']['without'], activations['bottom2, 90%']['with']
  assert without == pytest.approx(applied, rel=0.1)  # eight steps do not change much
  assert all((tmp_path / f'figure{n}.png').stat().st_size > 10_000 for n in (2, 5))
  found = json.loads((tmp_path / 'found.json').read_text())['tables']
  assert found['figure2']['rows'][0][:2] == ['95.0%', f'{gradients["95.0%"]["largest"]:.0%}']
  assert found['figure5']['rows'][0][1] == ', '.join(f'{tau:.3f}' for tau in without)
  again = run(*flags, '--steps=8', '--window=4', name='dlrm_figures')
  assert again.stdout == done.stdout and 'step/s' not in again.stderr  # nothing was left to do


@pytest.mark.parametrize(('flags', 'message'), [
    (('--method=mp3', '--stages=2'), 'wants 1 splits'),
    (('--method=baseline', '--data=nowhere.tsv'), '--data=nowhere.tsv: there is no such file or directory'),
    (('--method=mp3', '--splits=bottom9'), 'a model is cut at some of'),
    (('--method=mp3', '--mp_sparsity=1.5'), 'sparsity must be in'),
    (('--method=baseline', '--row_optimizer=magic'), 'magic'),
    (('--method=baseline', '--evaluate_every=0'), '--evaluate_every must be')])
def test_bad_settings_are_refused(flags, message, tmp_path):
  done = run('--workers=2', '--steps=1', f'--workdir={tmp_path}', *flags)
  assert done.returncode == 2
  assert re.search(message, done.stderr) and done.stderr.count('\n') == 1, done.stderr
