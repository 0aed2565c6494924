"""`experiments/hierarchical_figures.py` on a tiny setting, its clock on a tiny net, and the tables of its results."""

import json
import pathlib
import sys

import commands
import pytest

pytest.importorskip('matplotlib')
ROOT = pathlib.Path(__file__).parents[2]
RESULTS = ROOT / 'results/hierarchical.json'
TINY = ('--seeds=1', '--processes=1', '--clock=0', '--sets=synthetic', '--variants=easgd10,easgd40', '--nets=1',
        '--batch=4', '--rows=240')


@pytest.fixture
def shared(monkeypatch):
  """Modules that experiments share."""
  monkeypatch.syspath_prepend(str(ROOT / 'experiments'))
  from shared.hierarchical import clocks, pictures, tables
  yield clocks, pictures, tables
  for name in [n for n in sys.modules if n.split('.')[0] == 'shared']:
    del sys.modules[name]


@pytest.mark.slow
def test_figures(tmp_path):
  flags = (*TINY, f'--workdir={tmp_path / "runs"}', f'--out={tmp_path / "out/found.json"}', f'--pictures={tmp_path}')
  done = commands.run('hierarchical_figures', *flags)
  assert done.returncode == 0, done.stderr
  found = json.loads((tmp_path / 'out/found.json').read_text())
  rows = found['quality']['synthetic']['figure 3']
  assert list(found['quality']['synthetic']) == ['figure 3'] and list(rows) == ['easgd10', 'easgd40']
  few, many = rows['easgd10'], rows['easgd40']
  assert few['percent'] == 0 and many['plus_minus'] is None and many['batches'] == 60
  assert many['percent'] == pytest.approx(100 * (many['ne'][0] / few['ne'][0] - 1))
  assert many['over_the_run'][-1]['percent'] == many['percent'] and len(many['over_the_run']) == 10
  assert few['dense_staleness'] == 0 < few['table_staleness'] < many['table_staleness'] < 40
  assert f'{many["percent"]:+.2f}%' in done.stdout
  made = found['tables']['synthetic_figure3']
  assert made['head'][2] == 'against easgd10' and made['rows'][1][2] == f'{many["percent"]:+.2f}%'
  assert found['seed'] == [0] and found['best_ne']
  assert (tmp_path / 'hierarchical_quality.png').stat().st_size > 10_000
  unknown = commands.run('hierarchical_figures', *flags, '--sets=frappe')
  assert unknown.returncode and 'got --sets=frappe' in unknown.stderr  # it has no path
  again = commands.run('hierarchical_figures', *flags, '--learning_rate=0.5')
  assert again.returncode and 'learning_rate was 0.005, got 0.5' in again.stderr  # runs are not mixed


@pytest.mark.slow
def test_clock(shared, tmp_path, monkeypatch):
  clocks, pictures, tables = shared
  from dct_jax.partition import ready
  small = ready.dlrm(batch=8, tables=4, bottom=(64, 8), top=(64, 64, 1), optimizer='adagrad')
  monkeypatch.setattr(clocks, 'net', lambda batch=8: small)
  monkeypatch.setattr(clocks, 'NETS', 2)
  found = json.loads(json.dumps(clocks.figures(batches=1, seeds=2, groups=(2, 4), sizes=(2,))))
  assert found['figure 11']['all'] == found['figure 8']['ht5'][0]
  assert found['figure 8']['ht5'][0] != found['figure 8']['ht5'][1]  # jitter has a seed
  assert found['figure 8']['ht10'][0] > 1.5 * found['figure 8']['ht5'][0]
  assert set(found['figure 9']) == {*(f'group{i}' for i in range(6)), 'trainers'}
  assert all(0 <= share <= 1 for use in found['figure 9'].values() for share in use.values())
  assert len(found['figure 11 at random']) == clocks.DRAWS
  pictures.clock(found, tmp_path / 'clock.png')
  assert (tmp_path / 'clock.png').stat().st_size > 10_000
  batches = json.loads(json.dumps(clocks.batch_sizes({}, 1, sizes=(4, 8))))
  assert set(batches['1 Gbit, exact']) == {'4', '8'}
  assert all(of['8'] > of['4'] > 0 for of in batches.values())  # calls and latencies are shared by more examples
  assert len(tables.tables({'quality': {}, 'clock': {'Model-A': found}, 'batches': batches})) == 6


@pytest.mark.skipif(not RESULTS.exists(), reason='an installed package has no results')
def test_tables_are_those_of_the_numbers(shared):
  found = json.loads(RESULTS.read_text())
  assert found['tables'] == shared[2].tables(found)
  assert found['seed'] == list(range(found['seeds']))
  assert {'synthetic_figure7', 'Model-A_figure8'} <= set(found['tables'])
