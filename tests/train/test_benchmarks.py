"""Benchmarks start, and what they show goes to files that pages can render. What they measure is not tested."""

import importlib.util
import json

import commands
import pytest

SCRIPTS = sorted(p.stem for p in (commands.ROOT / 'benchmarks').glob('*.py') if 'app.run(' in p.read_text())
SPEC = importlib.util.spec_from_file_location('render', commands.ROOT / 'docs/render.py')
render = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(render)

SMALL = {
    'kernels': ['--sizes=4096', '--seconds=0.01'],
    'codecs': ['--sizes=4096', '--seconds=0.01'],
    'sketch_error': ['--rows=1,3', '--lambdas=0.5', '--keys=20'],
    'partition': ['--rates=1', '--servers=1', '--seconds=0.1', '--exact_seconds=0.1'],
}
TABLES = {
    'kernels': ['entries_4096', 'over_add', 'rice'],
    'codecs': ['entries_4096'],
    'sketch_error': [f'{load}_{what}' for load in ('normal', 'words', 'words_root')
                     for what in ('error', 'bias', 'entries')],
    'partition': ['dlrm', 'mlp', 'transformer'],
}


def test_there_are_benchmarks():
  assert {'kernels', 'step', 'dlrm_lab', 'push_pull_lab', 'hierarchical'} <= set(SCRIPTS)


@pytest.mark.parametrize('name', SCRIPTS)
def test_it_starts_and_knows_out(name):
  shown = commands.run(name, '--help', folder='benchmarks')
  assert '--out: File for all tables and numbers' in shown.stdout, shown.stderr


@pytest.mark.parametrize('name', [
    pytest.param(name, marks=() if name == 'kernels' else [pytest.mark.slow]) for name in SMALL])
def test_what_it_shows_is_in_the_file(name, tmp_path, monkeypatch):
  done = commands.run(name, *SMALL[name], f'--out={tmp_path}/new.json', folder='benchmarks', timeout=600)
  assert done.returncode == 0, done.stderr
  found = json.loads((tmp_path / 'new.json').read_text())
  assert json.loads(done.stdout.splitlines()[-1]) == found['values'] != {}
  assert found['command'].startswith(f'python benchmarks/{name}.py {SMALL[name][0]}')
  assert list(found['tables']) == TABLES[name]
  monkeypatch.setattr(render, 'RESULTS', tmp_path)
  for key, table in found['tables'].items():
    page = render.rendered(f'<!-- table new {key} -->\n<!-- end -->')
    assert table['title'] in done.stdout and all(row[0] in page and row[-1] in page for row in table['rows'])
    assert all(cell in done.stdout for row in table['rows'] for cell in row)
