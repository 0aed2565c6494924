"""Faults at random times: what they are, and what is said of them."""

import io
import os
import pathlib
import random

import pytest

from dct_jax import netlab
from dct_jax.netlab import __main__ as command
from dct_jax.netlab import chaos
from dct_jax.train.metrics import MetricsWriter

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = str(ROOT / 'tests/train/program.py')


def test_faults_have_numbers():
  assert chaos.parse('kill:2,stop,flip:1') == ['kill', 'kill', 'stop', 'flip']
  for bad in ('kil', 'kill:x', 'kill:-1', '', 'kill:0'):
    with pytest.raises(ValueError, match='fault'):
      chaos.parse(bad)


def test_exactly_one_bit_is_turned(tmp_path):
  sizes = {'a': 1, 'sub/b': 5000, 'empty': 0}
  for name, size in sizes.items():
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(bytes(size))
  said = chaos.turn_a_bit(tmp_path, random.Random(3))
  ones = {name: sum(byte.bit_count() for byte in (tmp_path / name).read_bytes()) for name in sizes}
  assert sum(ones.values()) == 1 and said.endswith(next(name for name, n in ones.items() if n))
  assert [len((tmp_path / name).read_bytes()) for name in sizes] == list(sizes.values())


def test_losses_are_compared_to_the_bit_and_missing_ones_are_different(tmp_path):
  for name, losses in (('a', [1.0, 0.5, 0.25]), ('b', [1.0, 0.5 + 2**-53])):
    with MetricsWriter(tmp_path / name / 'inner') as writer:
      for step, loss in enumerate(losses):
        writer.write(step, {'loss': loss})
  assert chaos.compare(tmp_path / 'a', tmp_path / 'a') == (3, 0)
  assert chaos.compare(tmp_path / 'a', tmp_path / 'b') == (1, 2)
  assert chaos.compare(tmp_path / 'a', tmp_path / 'nowhere') == (0, 3)


def test_what_is_said_of_faults():
  tried = [chaos.Tried('kill', 0, '', 1.0, False), chaos.Tried('kill', 1, '', 3.0, False),
           chaos.Tried('stop', 1, '3.0 s', None, False), chaos.Tried('flip', 0, 'bit 1', 2.0, True)]
  verdict = chaos.Verdict(tried, [0], 10, 0, [])
  assert verdict.good and chaos.values(verdict)['faults'] == 4
  rows = chaos.table(verdict)['rows']
  assert [[row[0], *row[2:]] for row in rows] == [
      ['kill', '2', '2', '0', '', '2.00', '3.00'], ['stop', '1', '0', '1', '', '', ''],
      ['flip', '1', '1', '0', '1', '2.00', '2.00']]
  for worse in ({'codes': [0, 1]}, {'different': 1}, {'left': ['kill']}):
    assert not verdict._replace(**worse).good


def test_what_cannot_be_tried_is_refused(capsys, monkeypatch):
  assert command.main(['chaos', '--faults=kil', '--', 'true', '{workdir}']) == 2
  assert capsys.readouterr().err.splitlines()[-1].startswith('dct_jax.netlab chaos: error: faults are kill, stop')
  monkeypatch.setattr(netlab.namespaces, 'missing', lambda: 'something')
  lab = netlab.Lab(2, quiet=True)
  for words, faults, said in ((['true'], ['kill'], 'needs {workdir}'), (['true', '{workdir}'], ['cut'], 'no lab')):
    with pytest.raises(ValueError, match=said):
      chaos.chaos(lab, words, faults, pathlib.Path('nowhere'))


@pytest.mark.slow
def test_a_run_with_faults_ends_as_if_there_had_been_none(tmp_path, monkeypatch):
  monkeypatch.setenv('PYTHONPATH', str(ROOT))
  output = io.StringIO()
  faults = ['kill', 'stop', 'disk', 'flip'] + (['cut', 'slow'] if netlab.missing() is None else [])
  with netlab.Lab(2, quiet=True, pin=False) as lab:
    verdict = chaos.chaos(lab, ['python', PROGRAM, 'elastic', '{workdir}', '150'], faults, tmp_path, seed=1, every=1.0,
                          hold=2.0, timeout=300, output=output)
  assert verdict.good, (verdict, output.getvalue()[-3000:])
  assert {one.kind for one in verdict.tried} == set(faults) and verdict.compared >= 150
  assert all(one.noticed is not None for one in verdict.tried if one.kind in ('kill', 'flip'))
  assert os.path.isdir(tmp_path / 'undisturbed')
