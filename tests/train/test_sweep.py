"""Sweeps: what is refused before anything runs, runs that are made once, and what is made of them."""

import fcntl
import json
import os
import pathlib
import signal
import sys
import threading
import time

import commands
import polars as pl
import pytest

sys.path.append(str(pathlib.Path(__file__).parents[2] / 'experiments'))
from shared.sweeps import grid, runs, tables

# An experiment without JAX: it notes how it was started, and fails or waits if it is asked to.
PROGRAM = '''
import json, pathlib, sys, time
flags = dict(a.lstrip('-').partition('=')[::2] for a in sys.argv[1:])
directory = pathlib.Path(flags['workdir'], flags['method'])
(directory / 'checkpoints').mkdir(parents=True, exist_ok=True)
with open(pathlib.Path(flags['workdir'], 'started'), 'a') as file:
  print('resume' in flags, file=file)
if 'wait' in flags and 'resume' not in flags:
  (directory / 'checkpoints/1').touch()
  try:
    time.sleep(60)
  finally:
    print('saved', file=sys.stderr)
if flags.get('rate') == '3':
  print('what is wrong', file=sys.stderr)
  sys.exit('too fast')
for step in (10, 20):
  line = {'step': step, 'eval/test_loss': float(flags['rate']) / step, 'step_seconds': 0.01,
          'total_sent_bytes': 1000 * step, 'total_encoded_bytes': 500 * step}
  with open(directory / 'metrics.jsonl', 'a') as file:
    print(json.dumps(line), file=file)
'''


def make_runs(tmp_path, *rates, arguments=()):
  script = tmp_path / 'program.py'
  script.write_text(PROGRAM)
  return [grid.Run(f'rate={rate}', script, 'dct', {'rate': rate}, (f'--rate={rate}', *arguments),
                   {'rate': float(rate), 'workers': 2, 'hidden': [8, 8]}) for rate in rates]


def starts(tmp_path, rate):
  return (tmp_path / f'work/rate={rate}/started').read_text().split()


def test_runs_are_made_once_and_one_that_fails_does_not_end_the_others(tmp_path, capfd):
  points = make_runs(tmp_path, '3', '1', '2')
  outcome = runs.run_all(points, tmp_path / 'work', 2)
  assert sorted(outcome.done) == ['rate=1', 'rate=2'] and list(outcome.failed) == ['rate=3']
  assert outcome.failed['rate=3'] == ['what is wrong', 'too fast']
  assert 'rate=3 failed; its last lines' in capfd.readouterr().err
  again = runs.run_all(points, tmp_path / 'work', 1)
  assert again.done == outcome.done
  assert [len(starts(tmp_path, rate)) for rate in '312'] == [2, 1, 1]
  assert json.loads((tmp_path / 'work/rate=1/config.json').read_text())['hidden'] == [8, 8]


def test_runs_share_the_cores(tmp_path):
  cores = sorted(os.sched_getaffinity(0))
  shares = runs._shares(len(cores))
  assert sorted(core for share in shares for core in share) == cores
  assert runs._shares(2 * len(cores))[-1] == set(cores)
  runs.run_all(make_runs(tmp_path, '1'), tmp_path / 'work', 1)
  assert json.loads((tmp_path / 'work/rate=1/done.json').read_text())['cores'] == len(cores)
  assert sorted(os.sched_getaffinity(0)) == cores  # this process keeps its own


def test_a_run_that_another_sweep_makes_is_left_alone(tmp_path):
  (tmp_path / 'work/rate=1').mkdir(parents=True)
  with open(tmp_path / 'work/rate=1/lock', 'w') as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    outcome = runs.run_all(make_runs(tmp_path, '1'), tmp_path / 'work', 1)
  assert outcome.failed == {'rate=1': ['another process is at this run']}


def test_an_interrupted_sweep_goes_on(tmp_path):
  points = make_runs(tmp_path, '1', '2', arguments=('--wait',))

  def press():
    while not (tmp_path / 'work/rate=1/dct/checkpoints/1').exists():
      time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGINT)

  pressing = threading.Thread(target=press)
  pressing.start()
  with pytest.raises(KeyboardInterrupt):
    runs.run_all(points, tmp_path / 'work', 1)
  pressing.join()
  assert 'saved' in (tmp_path / 'work/rate=1/run.log').read_text()
  assert not (tmp_path / 'work/rate=2').exists()
  assert 'rate=1' in runs.run_all(points[:1], tmp_path / 'work', 1).done
  assert starts(tmp_path, 1) == ['False', 'True']


def test_a_row_has_settings_measures_bytes_and_times(tmp_path):
  points = make_runs(tmp_path, '1', '3')
  found = tables.table(points, runs.run_all(points, tmp_path / 'work', 2), tmp_path / 'work', '10mbit')
  one, failed = found.rows(named=True)
  assert (one['method'], one['rate'], one['hidden'], one['last_step']) == ('dct', 1.0, '[8, 8]', 20)
  assert (one['test_loss'], one['total_sent_bytes'], one['total_encoded_bytes']) == (0.05, 20_000, 10_000)
  assert one['finished'] and one['seconds'] > 0
  assert one['seconds_at_10mbit'] == pytest.approx(20 * (one['computation_seconds'] + 0.002) + 20_000 * 8e-7)
  assert not failed['finished'] and failed['test_loss'] is None
  assert tables.measure_of(found) == 'test_loss' and tables.measure_of(found, 'seconds') == 'seconds'
  with pytest.raises(ValueError, match="no measure 'bleu', only"):
    tables.measure_of(found, 'bleu')


@pytest.mark.parametrize('y, higher, wanted', [
    ([9, 5, 7, 1], False, [0, 1, 3]), ([9, 5, 7, 1], True, [0]), ([1, 5, 7, 7], True, [0, 1, 2])])
def test_the_front_is_what_nothing_beats(y, higher, wanted):
  assert tables.front([1, 2, 3, 4], y, higher) == wanted
  assert tables.front([], []) == []


def test_a_picture_is_drawn(tmp_path):
  pytest.importorskip('matplotlib')
  found = pl.DataFrame({'rate': [1.0, 1.0, 2.0], 'seed': [0, 1, 0], 'test_loss': [0.5, 0.6, None],
                        'total_sent_bytes': [10, 20, None], 'seconds_at_1gbit': [1.0, 2.0, None]})
  for names in (['rate', 'seed'], ['seed']):
    tables.draw(found, 'test_loss', names, '1gbit', tmp_path / 'a.png')
    assert (tmp_path / 'a.png').stat().st_size > 10_000


def test_values_with_commas_have_semicolons_between_them():
  assert grid.parse(['seed=0, 1,0', '--splits=bottom2;bottom2,top2']) == {
      'seed': ['0', '1'], 'splits': ['bottom2', 'bottom2,top2']}


@pytest.mark.parametrize('arguments, message', [
    (('nothing', '--grid=seed=0'), "there is no experiment 'nothing' to sweep, only digits_mlp"),
    (('digits_mlp',), 'there is nothing to vary'),
    (('digits_mlp', '--grid=seed'), "must look like seed=0,1, got 'seed'"),
    (('digits_mlp', '--grid=seed=0', '--grid=seed=1'), '--seed is twice'),
    (('digits_mlp', '--grid=seed=0', '--processes=0'), 'at least 1'),
    (('digits_mlp', '--grid=seed=0', '--rate=fast'), "got rate='fast'"),
    (('digits_mlp', '--grid=seed=0', '--nothing'), 'unrecognized arguments'),
    (('digits_mlp', '--grid=sparsity=0.9,high'), '--sparsity=high'),
    (('digits_mlp', '--grid=sparse=1'), 'no flag --sparse'),
    (('digits_mlp', '--grid=sparsity=0.9,1.5'), 'sparsity=1.5'),
    (('digits_mlp', '--grid=method=dct,magic'), "got 'magic'"),
    (('digits_mlp', '--grid=workdir=a,b'), '--workdir is not for sweeps'),
    (('digits_mlp', '--grid=seed=0', '--', '--seed=1'), 'behind -- as well'),
    (('digits_mlp', '--grid=seed=0', '--', '--stepz=1'), "'stepz'"),
    (('digits_mlp', '--grid=seed=0', '--', '--method=dense,dct'), 'one method')])
def test_what_is_wrong_is_said_in_one_line(arguments, message, tmp_path):
  before, behind = (arguments[:-2], arguments[-2:]) if '--' in arguments else (arguments, ())
  done = commands.run('sweep', *before, f'--workdir={tmp_path / "work"}', *behind)
  assert done.returncode == 2 and message in done.stderr, done.stderr
  assert done.stderr.startswith('sweep.py: error: ') and len(done.stderr.splitlines()) == 1
  assert not (tmp_path / 'work').exists()


@pytest.mark.slow
def test_a_sweep_of_an_experiment(tmp_path):
  pytest.importorskip('matplotlib')
  arguments = ('digits_mlp', '--grid=sparsity=0.9,0.99', f'--workdir={tmp_path}')
  done = commands.run('sweep', *arguments, '--', '--workers=2', '--steps=4', '--method=dct', timeout=600)
  assert done.returncode == 0 and '2 of 2 runs are there' in done.stdout, done.stderr
  found = pl.read_parquet(tmp_path / 'table.parquet')
  assert found['sparsity'].to_list() == [0.9, 0.99] and found['finished'].all()
  assert found['total_sent_bytes'][0] > found['total_sent_bytes'][1] > 0
  assert (found['seconds_at_100mbit'] > found['computation_seconds']).all()
  assert pl.read_csv(tmp_path / 'table.csv').columns == found.columns
  assert (tmp_path / 'pareto.png').stat().st_size > 10_000
  other = commands.run('sweep', *arguments[:1], '--grid=sparsity=0.9', arguments[2], '--', '--workers=2', '--steps=5',
                       '--method=dct', timeout=600)
  assert other.returncode == 0 and '1 of 1' in other.stdout  # other settings are another run
  assert len(list(tmp_path.glob('sparsity=0.9,*'))) + len(list(tmp_path.glob('sparsity=0.9-*'))) == 2
