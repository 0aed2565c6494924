"""Files of results, and pages that show what they have."""

import importlib.util
import json
import pathlib
import re
import shlex

import pytest

from dct_jax.train import results

ROOT = pathlib.Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location('render', ROOT / 'docs/render.py')
render = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(render)
FILES = sorted((ROOT / 'results').glob('*.json'))
BENCHMARKS = [p for p in FILES if 'benchmarks/' in json.loads(p.read_text())['command']]
# Pages that still have tables by hand. One that has none any more fails here, and is to be taken off.
BY_HAND = ()
SHOWN = [str(p.relative_to(ROOT)) for p in render.pages()]


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


def test_the_command_can_be_typed(monkeypatch):
  monkeypatch.setattr('sys.argv', ['/anywhere/benchmarks/small.py', '--contenders=dense,L = 1', '--rounds=2'])
  assert results.running() == "python benchmarks/small.py '--contenders=dense,L = 1' --rounds=2"


def test_versions_of_rivals_are_told_where_they_are(monkeypatch):
  monkeypatch.setattr(results, 'RIVALS', ('pytest', 'there_is_no_such_package'))
  assert {*results.versions()} == {*results.PACKAGES, 'pytest'}


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


def test_a_cell_is_rendered(file):
  page = 'pack: <!-- cell small main pack ms -->?<!-- end --> ms'
  assert render.rendered(page) == 'pack: <!-- cell small main pack ms -->1.5<!-- end --> ms'


def test_how_a_table_was_made_fits_a_line(file, monkeypatch):
  monkeypatch.setitem(file, 'command', 'python benchmarks/small.py ' + '--flag=value ' * 20)
  found = render.small(render.origin(file))
  assert max(map(len, found.splitlines())) <= 120 and found.replace('\n', ' ').count('--flag=value') == 20


@pytest.mark.parametrize('page, message', [
    ('<!-- cell small main pack kg --><!-- end -->', "no cell 'pack', 'kg': pack, add"),
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


@pytest.mark.parametrize('row, pasted', [
    ('| ratio of two | **0.96** (0.96 to 1.05) | at most two |', True),  # a column of numbers among words
    ('| time | (50.5) | at most two |', True),
    ('| bytes | 4 | always |', False),  # of a format
    ('| codec | `0.5 * n` | always |', False),
    ('| ratio | <!-- value small ratio .2f -->0.75<!-- end --> | at most two |', False)])
def test_what_a_pasted_number_is(row, pasted):
  for indent in ('', '  '):
    page = f'{indent}| name | here | there |\n{indent}|---|---|---|\n{indent}{row}\n'
    assert bool(render.by_hand(page)) == pasted


def test_seeds_are_told():
  seeds = {'': None, 'seed 3; ': 3, 'seeds 0, 2; ': [0, 2], 'seeds 0 to 3; ': [0, 1, 2, 3]}
  assert {render.spoken(given): given for given in seeds.values()} == seeds


@pytest.mark.skipif(not FILES, reason='an installed package has no results')
def test_pages_have_the_numbers_of_the_files():
  assert render.main(check=True) == []


@pytest.mark.parametrize('path', FILES, ids=[p.stem for p in FILES])
def test_every_file_can_be_made_again(path):
  found = json.loads(path.read_text())
  assert {'command', 'date', 'versions', 'machine'} <= set(found)


@pytest.mark.skipif(not FILES, reason='an installed package has no results')
@pytest.mark.parametrize('page', [
    pytest.param(page, marks=[pytest.mark.xfail(strict=True)] if page in BY_HAND else []) for page in SHOWN])
def test_no_table_is_pasted(page):
  assert render.by_hand((ROOT / page).read_text()) == []


@pytest.mark.parametrize('page', SHOWN)
def test_no_line_begins_with_a_value(page):
  assert re.findall(r'^(?: *[*-])? *<!-- value.*', (ROOT / page).read_text(), re.M) == []


def flags_of(script):
  """Names of the flags that it may have: its own, those of what it imports, and those of experiments."""
  files = [script, ROOT / 'benchmarks/timing.py', *ROOT.glob('experiments/**/*.py'), *ROOT.glob('dct_jax/train/*.py')]
  return set(re.findall(r"""(?:DEFINE_\w+\(\s*|^ +)'(\w+)'[,:]""", '\n'.join(p.read_text() for p in files), re.M))


@pytest.mark.parametrize('path', BENCHMARKS, ids=[p.stem for p in BENCHMARKS])
def test_commands_of_benchmarks_are_there(path):
  for command in json.loads(path.read_text())['command'].split('; '):
    _, script, *arguments = shlex.split(command)
    known = flags_of(ROOT / script)
    assert [a for a in arguments if re.match(r'--(\w+)', a)[1] not in known] == []
