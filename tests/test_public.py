"""What is public, who uses what, and what the public parts promise.

Public is what `dct_jax` and its rooms export in `__all__`. A room exports a module by naming it there; such a module is
public itself, with what it exports in turn, or, without `__all__`, what it defines without an underscore.
"""

import ast
import configparser
import functools
import importlib
import inspect
import json
import pathlib
import pkgutil
import re
import subprocess
import sys
import textwrap

import pytest

import dct_jax

ROOT = pathlib.Path(__file__).parents[1]
ROOMS = ['contract', 'state', *(m.name for m in pkgutil.iter_modules(dct_jax.__path__) if m.ispkg)]


def exported(module):
  """Names that a public module exports."""
  if hasattr(module, '__all__'):
    return set(module.__all__)
  names = set()
  for node in ast.parse(inspect.getsource(module)).body:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
      names.add(node.name)
    elif isinstance(node, ast.Assign | ast.AnnAssign):
      targets = node.targets if isinstance(node, ast.Assign) else [node.target]
      names |= {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
  return {name for name in names if not name.startswith('_')}


def member(module, name):
  """What a name of a module stands for; modules need not have been imported."""
  if not hasattr(module, name):
    importlib.import_module(f'{module.__name__}.{name}')
  return getattr(module, name)


def private_part(path):
  """The first part of a dotted path below dct_jax that is not public; None if all of it is."""
  module = dct_jax
  for part in path.split('.')[1:]:
    if module is dct_jax and part in ROOMS:
      module = importlib.import_module(f'dct_jax.{part}')
      continue
    if part not in exported(module):
      return f'{module.__name__}.{part}'
    module = member(module, part)
    if not inspect.ismodule(module):
      return None  # what follows is an attribute of an object
  return None


@functools.cache
def namespaces():
  """Every public module by its path, rooms first."""
  found, queue = {}, [dct_jax, *(importlib.import_module(f'dct_jax.{room}') for room in ROOMS)]
  while queue:
    module = queue.pop(0)
    if module.__name__ not in found:
      found[module.__name__] = module
      queue += [x for x in (member(module, name) for name in sorted(exported(module))) if inspect.ismodule(x)]
  return found


# Who uses what.

def used_paths(source):
  """Dotted paths below dct_jax that a program imports, or reaches through what it imported."""
  tree, aliases, paths = ast.parse(source), {}, set()
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      for a in node.names:
        if a.name.split('.')[0] == 'dct_jax':
          aliases[a.asname or 'dct_jax'] = a.name if a.asname else 'dct_jax'
          paths.add(a.name)
    elif isinstance(node, ast.ImportFrom) and (node.module or '').split('.')[0] == 'dct_jax':
      for a in node.names:
        aliases[a.asname or a.name] = f'{node.module}.{a.name}'
        paths.add(f'{node.module}.{a.name}')
  hidden = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
  hidden |= {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
  hidden |= {a.arg for n in ast.walk(tree) if isinstance(n, ast.arguments)
             for a in (*n.posonlyargs, *n.args, *n.kwonlyargs)}
  for node in ast.walk(tree):
    attributes = []
    while isinstance(node, ast.Attribute):
      attributes.insert(0, node.attr)
      node = node.value
    if attributes and isinstance(node, ast.Name) and node.id in aliases and node.id not in hidden:
      paths.add('.'.join([aliases[node.id], *attributes]))
  return paths


def blocks(text):
  """Python blocks of a Markdown text."""
  return [textwrap.dedent(body) for body in re.findall(r'^ *```python\n(.*?)^ *```', text, re.S | re.M)]


def cells(path):
  """The code of a notebook, without what is meant for IPython."""
  code = '\n'.join(''.join(cell['source']) for cell in json.loads(path.read_text())['cells']
                   if cell['cell_type'] == 'code')
  return re.sub(r'^[%!].*$', '', code, flags=re.M)


def users():
  """Name of a file -> programs in it."""
  files = [p for folder in ('experiments', 'benchmarks', 'configs') for p in (ROOT / folder).rglob('*.py')]
  texts = [ROOT / 'README.md', ROOT / 'CONTRIBUTING.md', *(ROOT / 'docs').rglob('*.md')]
  found = {p: [p.read_text()] for p in files} | {p: blocks(p.read_text()) for p in texts}
  found |= {p: [cells(p)] for p in (ROOT / 'colab').glob('*.ipynb')}
  return {str(p.relative_to(ROOT)): programs for p, programs in sorted(found.items())}


@pytest.mark.parametrize('name, programs', users().items(), ids=lambda x: x if isinstance(x, str) else '')
def test_only_public_names_are_used(name, programs):
  private = {private_part(path) for program in programs for path in used_paths(program)} - {None}
  assert not private, f'{name} uses what is not public: {sorted(private)}'


def test_the_walk_finds_what_is_private():
  program = """
    from dct_jax import train
    from dct_jax.data.clicks import synthetic
    from dct_jax.kernels.stream_twin import encode
    import dct_jax.wire.size as sizes
    train.make_step, train.loop.run, synthetic.generate, synthetic.CHUNK, synthetic._draw, train.experiment.FLAGS.x
  """
  paths = used_paths(textwrap.dedent(program))
  assert {private_part(path) for path in paths} - {None} == {
      'dct_jax.kernels.stream_twin', 'dct_jax.wire.size', 'dct_jax.train.loop', 'dct_jax.data.clicks.synthetic._draw'}
  indented = '* An item:\n\n     ```python\n     if True:\n       import dct_jax.axes\n     ```\n'
  assert [used_paths(block) for block in blocks(indented)] == [{'dct_jax.axes'}]


def test_what_is_exported_is_there():
  for path, module in namespaces().items():
    names = list(getattr(module, '__all__', ()))
    assert len(names) == len(set(names)), path
    for name in names:
      assert member(module, name) is not None
  assert 'dct_jax.data.clicks.synthetic' in namespaces()


@pytest.mark.parametrize('name', [n for n in users() if n.endswith('.md')])
def test_documents_name_only_what_is_public(name):
  paths = set(re.findall(r'`(dct_jax(?:\.\w+)+)', (ROOT / name).read_text()))
  assert not {private_part(path) for path in paths} - {None}


# One name, one home.

TWICE = {
    'load': 'kinds of data answer to the same names, so that one stands for another',
    'batches': 'as load',
    'in_order': 'as load',
    'synthetic': 'as load',
    'linear': 'linear models and their data, each a module that is read with its room',
}


def test_a_name_has_one_home():
  """What rooms and kinds of data export under one name is one thing; names of modules are read with the module."""
  homes = {}
  for path, module in namespaces().items():
    if hasattr(module, '__path__') or path.split('.')[-1] in ROOMS:
      for name in exported(module):
        homes.setdefault(name, {})[path] = member(module, name)
  several = {name for name, found in homes.items() if any(x is not y for x in found.values() for y in found.values())}
  assert several == set(TWICE)


def test_a_class_has_one_home():
  defined = [node.name for path in (ROOT / 'dct_jax').rglob('*.py') for node in ast.parse(path.read_text()).body
             if isinstance(node, ast.ClassDef) and not node.name.startswith('_')]
  assert len(defined) == len(set(defined)), sorted(name for name in set(defined) if defined.count(name) > 1)


# What public parts promise.


def functions(value, name):
  """A function, or the methods that a class defines itself and that others call."""
  if inspect.isclass(value):
    for key, method in vars(value).items():
      method = method.func if isinstance(method, functools.cached_property) else getattr(
          method, 'fget', getattr(method, '__func__', method))
      generated = hasattr(value, '_fields') or getattr(value, '__dataclass_fields__', None) is not None
      called = not key.startswith('_') or key == '__call__' or (key == '__init__' and not generated)
      if called and inspect.isfunction(method):
        yield f'{name}.{key}', method
  elif inspect.isfunction(inspect.unwrap(value)) if callable(value) else False:
    yield name, inspect.unwrap(value)


def missing_annotations(function):
  signature = inspect.signature(function)
  missing = [p.name for i, p in enumerate(signature.parameters.values())
             if p.annotation is p.empty and not (i == 0 and p.name in ('self', 'cls'))]
  if signature.return_annotation is signature.empty and function.__name__ != '__init__':
    missing.append('return')
  return missing


@pytest.mark.parametrize('path', sorted(set(namespaces()) - {'dct_jax'}))
def test_public_functions_are_annotated(path):
  module = namespaces()[path]
  found = {}
  for name in sorted(exported(module)):
    for called, function in functions(member(module, name), name):
      if function.__module__.startswith('dct_jax') and (missing := missing_annotations(function)):
        found[called] = missing
  assert not found, f'{path}: {found}'


def test_a_wheel_has_all_files_of_the_package():
  """Native code is built on the user's machine, from an sdist; without a header it would not be, in silence."""
  config = configparser.ConfigParser()
  config.read(ROOT / 'setup.cfg')
  shipped = {path for package, patterns in config['options.package_data'].items()
             for pattern in patterns.split(',') for path in ROOT.joinpath(*package.split('.')).glob(pattern.strip())}
  there = {path for path in (ROOT / 'dct_jax').rglob('*') if path.is_file() and '__pycache__' not in path.parts}
  assert {path for path in there if path.suffix not in ('.py', '.so')} == shipped
  assert ROOT / 'dct_jax/py.typed' in shipped


def test_importing_the_library_stays_light():
  heavy = ['orbax', 'chex', 'tensorboardX', 'ml_collections', 'matplotlib', 'polars', 'sacrebleu', 'sklearn',
           'dct_jax.train', 'dct_jax.models', 'dct_jax.data']
  program = f'import sys, dct_jax; print(*(name for name in {heavy} if name in sys.modules))'
  done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, check=True, cwd=ROOT)
  assert done.stdout.split() == []
