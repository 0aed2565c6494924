"""Docstring examples, and the programs of the README and of the guides, run as printed."""

import doctest
import importlib
import io
import os
import pathlib
import pkgutil
import re
import subprocess
import sys

import numpy as np
import pytest

import dct_jax
from dct_jax.train import launch

ROOT = pathlib.Path(__file__).parents[1]
GUIDES = ROOT / 'docs/guides'
MODULES = [m.name for m in pkgutil.walk_packages(dct_jax.__path__, 'dct_jax.')
           if not m.name.endswith(('_native', '__main__'))]


@pytest.mark.parametrize('name', [
    pytest.param(name, marks=[pytest.mark.slow] if name.startswith('dct_jax.models.') else []) for name in MODULES])
def test_docstring_examples(name):
  assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
  count = sum(len(t.examples) for name in MODULES
              for t in doctest.DocTestFinder().find(importlib.import_module(name)))
  assert count > 20


def programs(page):
  """The Python blocks of a page: those that begin with the name of a file, by that, and the page's own program."""
  own, files = [], {}
  for block in re.findall(r'^```python\n(.*?)^```', (ROOT / page).read_text(), re.S | re.M):
    name = re.match(r'# (\w+)\.py: python -m ', block)
    if name:
      files[name[1]] = block
    else:
      own.append(block.replace("jax.config.update('jax_num_cpu_devices', 8)\n", ''))  # tests have them
  return own, files


def in_processes(tmp_path, guide, name, processes, **changes):
  """What the program of a guide says that runs in several processes."""
  block = programs(f'docs/guides/{guide}.md')[1][name]
  for old, new in changes.values():
    assert old in block
    block = block.replace(old, new)
  (tmp_path / f'{name}.py').write_text(block)
  lines = io.StringIO()
  code = launch.launch(['python', str(tmp_path / f'{name}.py')], processes, timeout=300, output=lines,
                       environment={'PYTHONPATH': str(ROOT)})
  assert code == 0, lines.getvalue()
  return lines.getvalue()


def losses(said):
  """All losses that a program has printed."""
  return [float(x) for x in re.findall(r'loss ([\d.]+)', said)]


def falls(said, names):
  """The program has learnt."""
  first, *_, last = losses(said)
  return last < 0.5 * first


CHECKS = {  # guide -> (what it has printed, its names) -> whether that is as it should be
    'start': lambda said, names: callable(names['tx'].update),
    'optax': lambda said, names: falls(said, names) and 'restored step 100' in said,
    'training_loop': lambda said, names: falls(said, names) and 'went on from step 60' in said,
    'slow_network': lambda said, names: callable(names['sketched'].update),
    'recommenders': lambda said, names: falls(said.replace('step 49', 'loss 0.69'), names)
                    and names['exchange'].wanted({'tokens': 3}) == {'words': 3},
    'pipelines': lambda said, names: names['jnp'].count_nonzero(names['gradient']) == 4 * 11,
    'parameter_server': falls,
    'add_a_compressor': lambda said, names: '24 bytes of 132' in said and names['state'].SUM,
}
LONG = ('optax', 'parameter_server', 'recommenders', 'training_loop')


@pytest.mark.parametrize('name', [
    pytest.param(path.stem, marks=[pytest.mark.slow] * (path.stem in LONG))
    for path in sorted(GUIDES.glob('*.md')) if programs(path.relative_to(ROOT))[0]])
def test_a_guide(name, tmp_path, monkeypatch, capsys):
  """The Python blocks of a guide are one program, unless they begin with the name of a file."""
  monkeypatch.chdir(tmp_path)
  names = {}
  for block in programs(f'docs/guides/{name}.md')[0]:
    exec(block, names)
  said = capsys.readouterr().out
  assert CHECKS[name](said, names), said


@pytest.mark.slow
def test_sparse_vectors_of_a_guide(tmp_path):
  """Three workers' largest values, by index."""
  said = in_processes(tmp_path, 'slow_network', 'vectors', 3)
  found = [float(x) for x in re.search(r'each index: \[(.*)\]', said)[1].split(',')]
  assert found[:3] == [0, 1, 2] and found[10:13] == [1, 2, 3] and sum(found) == sum(range(3)) * 4 + 3 * 6


@pytest.mark.slow
def test_the_program_in_stages(tmp_path):
  """The pipeline learns, and what crosses is a small part of what would."""
  said = in_processes(tmp_path, 'pipelines', 'stages', 4)
  found = [[float(x.replace(',', '')) for x in m] for m in re.findall(
      r'loss ([\d.]+), ([\d,]+) of ([\d,]+) bytes forward, ([\d,]+) of', said)]
  (first, *_), (last, forward, dense, gradients) = found[0], found[-1]
  assert last < 0.6 * first, said
  assert forward < dense / 7 and gradients < 4 * (64 * 512 + 512) / 20


def test_the_compressor_that_is_added_to_the_library():
  """The example in the guide works as printed, and keeps the first law."""
  import textwrap

  import jax.numpy as jnp

  from dct_jax.compressors import stream
  from dct_jax.contract import Compressor
  block = re.search(r'^ +```python\n(.*?)```', (GUIDES / 'add_a_compressor.md').read_text(), re.S | re.M).group(1)
  names = {'stream': stream, 'jnp': jnp, 'Compressor': Compressor}
  exec(textwrap.dedent('     ' + block.lstrip()), names)
  compressor = names['positive_part'](dense_below=0)
  layers, zero = (jnp.array([1.0, -2.0, 3.0, 0.0]),), (jnp.zeros(4),)
  packed = compressor.compress(layers, zero, compressor.init(layers), dct_jax.whole_room(compressor, layers))
  sent = compressor.decompress(packed.message[None], layers, None).layers[0]
  assert sent.tolist() == [1.0, 0.0, 3.0, 0.0]
  assert (sent + packed.residual[0]).tolist() == layers[0].tolist()


def test_readme_program():
  """The first Python block of the README is a whole program."""
  block = re.search(r'```python\n(.*?)```', (ROOT / 'README.md').read_text(), re.S).group(1)
  done = subprocess.run([sys.executable, '-c', block], capture_output=True, text=True, timeout=300)
  assert done.returncode == 0, done.stderr
  assert losses(done.stdout)[-1] < 0.2 * losses(done.stdout)[0], done.stdout


@pytest.mark.slow
def test_the_program_for_slow_networks(tmp_path):
  said = in_processes(tmp_path, 'slow_network', 'slow_network', 2, seconds=('seconds=20', 'seconds=2'),
                      file=("'costs.json'", repr(str(tmp_path / 'costs.json'))))
  assert falls(said, {}), said


def test_the_guide_to_plans(tmp_path, monkeypatch, capsys):
  """The Python blocks of docs/partition.md are one program, and its commands make a plan."""
  from dct_jax.partition import __main__ as command
  text = (ROOT / 'docs/partition.md').read_text()
  monkeypatch.chdir(tmp_path)
  names = {}
  for block in re.findall(r'```python\n(.*?)```', text, re.S):
    exec(block, names)
  assert 'is the bottleneck' in capsys.readouterr().out
  assert names['get_net']().batch[0].shape == (128, 256)
  commands = re.findall(r'^python -m dct_jax.partition (.*)$', text, re.M)
  assert len(commands) >= 4
  for line in commands:
    assert command.main(line.split()) == 0, line


def test_the_page_on_codecs(capsys):
  """Its program learns, and one node keeps what a gradient loses."""
  block, = re.findall(r'```python\n(.*?)```', (ROOT / 'docs/codecs_on_edges.md').read_text(), re.S)
  names = {}
  exec(block, names)
  value, kept = re.search(r'loss ([\d.]+) (.*)', capsys.readouterr().out).groups()
  assert 0 < float(value) < 0.3 and kept == "{'group1': 1}"


def test_rows_of_the_document_on_sums_are_trained(tmp_path):
  program = tmp_path / 'rows.py'
  program.write_text(re.search(r'```python\n(.*?)```', (ROOT / 'docs/s2.md').read_text(), re.S).group(1))
  done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False, timeout=300,
                        env=os.environ | {'PYTHONPATH': str(ROOT)})
  found = losses(done.stdout)
  assert len(found) == 50 and np.mean(found[-5:]) < 0.8 * found[0], done.stdout + done.stderr


def test_the_guide_to_averaging(capsys):
  """The Python blocks of docs/averaging.md are one program, and it learns."""
  text = (ROOT / 'docs/averaging.md').read_text()
  names = {}
  for block in re.findall(r'```python\n(.*?)```', text, re.S):
    exec(block.replace("jax.config.update('jax_num_cpu_devices', 8)\n", ''), names)  # tests have them
  assert float(re.search(r'loss ([\d.]+)', capsys.readouterr().out)[1]) < 0.05
  assert names['model']['w'].shape == (64, 16) and names['replica']['w'][0] == np.float32(0.7)


def test_the_guide_to_clusters(capsys):
  """The Python blocks of docs/cluster.md are one program; what needs Ray is a function there."""
  text = (ROOT / 'docs/cluster.md').read_text()
  names = {}
  for block in re.findall(r'```python\n(.*?)```', text, re.S):
    exec(block, names)
  assert float(re.search(r'(\d+) batches a second', capsys.readouterr().out)[1]) > 0
  assert callable(names['on_many_machines']) and names['model']['wide']['w'].shape == (32, 256)
  assert names['notes']['batches'] == 600
