"""The walks of docs/architecture.md lead through functions that are there, and never against the imports."""

import ast
import pathlib
import re

import pytest
from test_imports import ALLOWED

ROOT = pathlib.Path(__file__).parents[1]
LINE = re.compile(r'^( *)- `([\w/.]+):(\w+)`')


def walks():
  """[(indentation, file, function)] of every list, by its heading."""
  text = (ROOT / 'docs/architecture.md').read_text()
  for section in text.split('\n## ')[1:]:
    heading, _, rest = section.partition('\n')
    steps = [LINE.match(line) for line in rest.partition('<!-- walk -->')[2].splitlines()]
    yield heading, [(len(m[1]), m[2], m[3]) for m in steps if m]


def room_of(file):
  return file.split('/')[0].removesuffix('.py')


@pytest.mark.parametrize(('heading', 'steps'), list(walks()), ids=[heading for heading, _ in walks()])
def test_a_walk(heading, steps):
  assert len(steps) >= 5
  above: list[tuple[int, str]] = []
  for indentation, file, function in steps:
    source = (ROOT / 'dct_jax' / file).read_text()
    if file.endswith('.py'):
      names = {n.name for n in ast.parse(source).body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
      assert function in names, f'{file} has no {function}'
    else:
      assert re.search(rf'\b{function}\b[\w\s:]*[({{]', source), f'{file} has no {function}'
    above = [(i, room) for i, room in above if i < indentation]
    if above:
      caller, room = above[-1][1], room_of(file)
      assert room == caller or room in ALLOWED[caller], f'{file}:{function} is a step back from {caller}'
    above.append((indentation, room_of(file)))


def test_all_walks_are_there():
  assert [heading for heading, _ in walks()] == [
      'A gradient, portable', 'A gradient, native', 'An activation', 'A row', 'A program on nodes',
      'A net on a cluster', 'A batch', 'A checkpoint']
