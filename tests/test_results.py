"""Files of results, and pages that show what they have."""

import importlib.util
import json
import pathlib

import pytest

from dct_jax.train import results

ROOT = pathlib.Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location('render', ROOT / 'docs/render.py')
render = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(render)
FILES = sorted((ROOT / 'results').glob('*.json'))


@pytest.fixture
def file(tmp_path, monkeypatch):
  """A small file of results, where pages look for them."""
  monkeypatch.setattr(render, 'RESULTS', tmp_path)
  main = results.table(['', 'ms'], [['pack', 1.5], ['add', '2.0']])
  return results.write(tmp_path / 'small.json', values={'ratio': 0.754}, tables={'main': main}, seed=[0, 1],
                       command='python benchmarks/small.py')


def test_a_file_says_how_it_was_made(file):
  assert file['tables']['main'] == {'head': ['', 'ms'], 'rows': [['pack', '1.5'], ['add', '2.0']]}
  assert file['versions']['jax'][0].isdigit() and 'cores' in file['machine'] and file['seed'] == [0, 1]


def test_rows_have_the_length_of_the_head():
  with pytest.raises(ValueError, match='a row of 1 cells'):
    results.table(['', 'ms'], [['pack']])


def test_a_page_is_rendered(file):
  page = 'It is\n<!-- table small main -->\nold\n<!-- end -->\nand <!-- value small ratio .2f -->9<!-- end --> times.'
  new = render.rendered(page)
  assert '| pack | 1.5 |' in new and 'old' not in new and '-->0.75<!--' in new
  assert '`python benchmarks/small.py`; seeds 0, 1' in new and file['date'] in new
  assert render.rendered(new) == new


def test_tables_are_put_beside_others(file, tmp_path):
  path = tmp_path / 'small.json'
  found = results.add(path, {'more': results.table(['a'], [[1]])}, seed=2, command='python again.py')
  main, more = found['tables']['main'], found['tables']['more']
  assert main['rows'] == file['tables']['main']['rows']
  assert main['command'] == file['command'] and main['seed'] == [0, 1]
  assert more['command'] == found['command'] == 'python again.py' and more['seed'] == 2
  assert found['values'] == {'ratio': 0.754}
  assert 'again.py`; seed 2' in render.rendered('<!-- table small more -->\n<!-- end -->')
  assert 'small.py`; seeds 0, 1' in render.rendered('<!-- table small main -->\n<!-- end -->')
  replaced = results.add(path, {'more': results.table(['b'], [[2]])}, command='python third.py')
  assert replaced['tables']['more']['head'] == ['b'] and replaced['tables']['main'] == main


def test_a_table_of_a_paper_names_it(file, tmp_path):
  results.add(tmp_path / 'small.json', {'theirs': {'source': 'The paper, Table 2.', **results.table(['a'], [[1]])}})
  page = render.rendered('<!-- table small theirs -->\n<!-- end -->')
  assert '<small>The paper, Table 2.</small>' in page and 'python' not in page


def test_the_command_is_what_a_user_typed(monkeypatch):
  monkeypatch.setattr('sys.argv', ['/some/where/experiments/digits_mlp.py', '--seed=1'])
  assert results.running() == 'python experiments/digits_mlp.py --seed=1'
  monkeypatch.setenv(results.COMMAND, 'python -m dct_jax.netlab run -- python experiments/digits_mlp.py')
  assert results.running().startswith('python -m dct_jax.netlab')


@pytest.mark.parametrize('page, message', [
    ('<!-- table no main -->\n<!-- end -->', 'there is no'),
    ('<!-- table small no -->\n<!-- end -->', "has no 'no' in its tables: main")])
def test_what_is_not_there_is_told(file, page, message, monkeypatch, tmp_path):
  monkeypatch.setattr(render, 'ROOT', tmp_path)
  with pytest.raises(ValueError, match=message):
    render.rendered(page)


def test_tables_that_were_pasted_are_found():
  pasted = '| name | ms |\n|---|---|\n| a | 1.0 |\n| b | 2 |\n'
  words = '| name | meaning |\n|---|---|\n| a | seconds |\n| b | 2 |\n| c | bytes |\n'
  assert render.by_hand(f'{pasted}\n{words}\n```\n{pasted}```\n') == ['| name | ms |']


@pytest.mark.skipif(not FILES, reason='an installed package has no results')
def test_pages_have_the_numbers_of_the_files():
  assert render.main(check=True) == []


@pytest.mark.parametrize('path', FILES, ids=[p.stem for p in FILES])
def test_every_file_can_be_made_again(path):
  found = json.loads(path.read_text())
  assert {'command', 'date', 'versions', 'machine'} <= set(found)
