"""Every flag of a script says what it does, in words that stand alone; those of experiments are settings."""

import ast
import pathlib
import runpy
import types

import pytest

from dct_jax.train import experiment

ROOT = pathlib.Path(__file__).parents[1]
FOLDERS = ('experiments', 'benchmarks', 'dct_jax/train')
FILES = [p for folder in FOLDERS for p in sorted((ROOT / folder).glob('*.py'))]
SPARSE = types.SimpleNamespace(**runpy.run_path(str(ROOT / 'experiments/shared/sparse.py')))
FRAGMENTS = ('Of ', 'For ', 'In ', 'And ', 'The same', 'Likewise', 'See ', 'As ', 'To ')  # these lean on others


def called(node):
  function = node.func if isinstance(node, ast.Call) else None
  return function.attr if isinstance(function, ast.Attribute) else getattr(function, 'id', '')


def defined_flags(path):
  """Name -> help text, of absl's flags."""
  found = {}
  for node in ast.walk(ast.parse(path.read_text())):
    if called(node).startswith('DEFINE_') and isinstance(node.args[0], ast.Constant):
      found[node.args[0].value] = ast.literal_eval(node.args[3 if called(node) == 'DEFINE_enum' else 2])
  return found | settings(path)


def settings(path):
  """Name -> help text, of `experiment.define_flags`; some are those that experiments share."""
  calls = [node for node in ast.walk(ast.parse(path.read_text()))
           if called(node) == 'define_flags' and len(node.args) == 2]
  given = [eval(ast.unparse(call.args[1]), {'sparse': SPARSE}) for call in calls]
  return {name: text for flags in given for name, (_, text) in flags.items()}


def has_flags(path):
  return bool(defined_flags(path))


def is_help(text):
  return (text[0].isupper() and text.endswith('.') and len(text.split()) >= 4 and not text.startswith(FRAGMENTS)
          and 'see the config' not in text.lower())


@pytest.mark.parametrize('path', filter(has_flags, FILES), ids=lambda p: p.stem)
def test_flags_say_what_they_do(path):
  assert {name: text for name, text in defined_flags(path).items() if not is_help(text)} == {}


def test_common_flags_say_what_they_do():
  assert [text for _, text in experiment.COMMON.values() if not is_help(text)] == []


def test_options_of_commands_say_what_they_do():
  calls = [(path.name, node) for path in (*FILES, *sorted((ROOT / 'dct_jax').rglob('__main__.py')))
           for node in ast.walk(ast.parse(path.read_text())) if called(node) == 'add_argument']
  assert len(calls) > 20
  assert [f'{name}: {ast.unparse(node)}' for name, node in calls
          if node.args and not any(k.arg == 'help' for k in node.keywords)] == []


@pytest.mark.parametrize('text', [
    'See the configuration.', 'Steps.', 'Of the tables, if another one.', 'no capital here.'])
def test_what_is_no_help(text):
  assert not is_help(text)


@pytest.mark.parametrize('path', filter(settings, FILES), ids=lambda p: p.stem)
def test_flags_of_an_experiment_are_settings_of_its_configuration(path):
  base = runpy.run_path(str(ROOT / 'configs' / path.name))['base']()
  for name in (*settings(path), *experiment.COMMON):
    assert name in base, f'--{name} changes nothing'
