"""Imports point one way through the rooms; experiments stay in those for users."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
# A room may import itself and the rooms listed with it.
FACTS = {'arrays', 'axes', 'contract', 'state'}
ALLOWED = {
    'version': set(),
    'arrays': set(),
    'axes': {'arrays'},
    'contract': {'arrays', 'axes'},
    'state': set(),
    'commands': set(),
    'wire': FACTS,
    'native': {*FACTS, 'wire'},
    'kernels': {*FACTS, 'native', 'wire'},
    'transport': {*FACTS, 'native', 'wire'},
    'compressors': {*FACTS, 'kernels', 'wire'},
    'collectives': {*FACTS, 'compressors', 'kernels', 'transport', 'wire'},
    'transforms': {*FACTS, 'collectives', 'compressors', 'kernels', 'transport', 'wire'},
    'train': {*FACTS, 'collectives', 'commands', 'compressors', 'kernels', 'transforms', 'transport', 'wire'},
    'tables': {*FACTS, 'collectives', 'kernels', 'train', 'transforms', 'transport', 'wire'},
    'boundaries': {*FACTS, 'compressors', 'kernels', 'wire'},
    'runtime': {*FACTS, 'boundaries', 'kernels', 'partition', 'tables', 'train', 'transforms', 'transport', 'wire'},
    'netlab': {'collectives', 'commands', 'runtime', 'train', 'transforms', 'transport', 'wire'},
    'partition': {*FACTS, 'commands', 'compressors', 'models', 'wire'},  # models: nets that are ready made
    'data': set(),
    'measures': set(),
    'models': {'arrays'},  # what communicates is passed in
}


def imported_rooms(path):
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      names = [a.name for a in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module:
      names = [node.module] if node.module != 'dct_jax' else [
          f'dct_jax.{a.name}' for a in node.names]
    else:
      continue
    for name in names:
      if name.startswith('dct_jax.'):
        yield name.split('.')[1]


FILES = sorted((ROOT / 'dct_jax').rglob('*.py'))


@pytest.mark.parametrize('path', FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_step_backwards(path):
  room = path.relative_to(ROOT / 'dct_jax').parts[0].removesuffix('.py')
  if room == '__init__':
    return
  for other in imported_rooms(path):
    assert other == room or other in ALLOWED[room], f'{room} must not import {other}'


def test_every_room_has_files():
  assert {p.relative_to(ROOT / 'dct_jax').parts[0].removesuffix('.py') for p in FILES} <= {
      *ALLOWED, '__init__'}


@pytest.mark.parametrize('path', sorted((ROOT / 'experiments').rglob('*.py')), ids=lambda p: str(p.relative_to(ROOT)))
def test_experiments_use_the_rooms_for_users(path):
  """What they need of the inner rooms, `dct_jax` itself exports; `test_public.py` says which names."""
  assert set(imported_rooms(path)) <= {
      'boundaries', 'collectives', 'data', 'measures', 'models', 'netlab', 'partition', 'runtime', 'tables', 'train'}
