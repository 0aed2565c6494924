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
