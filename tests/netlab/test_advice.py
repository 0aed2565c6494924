"""Calibration and advice."""

import json

import numpy as np
import pytest

from dct_jax.collectives.algorithms import ALGORITHMS
from dct_jax.collectives.costs import Costs, Instance, features, predict
from dct_jax.netlab import __main__ as command
from dct_jax.netlab import advise, calibrate


def made_up(workers=4):
  rng = np.random.default_rng(0)
  return Costs(tuple(tuple(x) for x in rng.uniform(0.5, 2, (len(ALGORITHMS), 4)) * (2e-3, 8e-8, 2e-8, 1e-9)), workers)


def samples_of(costs, noise):
  rng = np.random.default_rng(1)
  for size in (2**12, 2**16, 2**20, 2**22):
    for density in (1e-3, 1e-2, 1e-1):
      instance = Instance(costs.workers, size, size * density, size * (1 - (1 - density) ** costs.workers))
      for name, seconds in zip(ALGORITHMS, predict(costs, instance), strict=True):
        yield name, instance, float(seconds * np.exp(noise * rng.standard_normal()))


def test_a_fit_predicts_other_instances():
  # One cost of a byte for all: that is what the fit leans on.
  table = [(*row[:1], 9e-8, *row[2:]) for row in made_up().table]
  costs = Costs(tuple(table), 4)
  found = calibrate.fit(list(samples_of(costs, 0.02)), 4)
  for size, density in [(2**24, 1e-4), (2**24, 0.05), (300_000, 0.01)]:
    other = Instance(4, size, size * density, size * (1 - (1 - density) ** 4))
    np.testing.assert_allclose(predict(found, other), predict(costs, other), rtol=0.2)


def test_costs_are_kept_in_a_file(tmp_path):
  calibrate.save(made_up(), tmp_path / 'costs.json')
  assert calibrate.load(tmp_path / 'costs.json') == made_up()
  (tmp_path / 'other.json').write_text('{}')
  with pytest.raises(ValueError, match='not a file of calibrated costs'):
    calibrate.load(tmp_path / 'other.json')


def test_costs_from_before_an_algorithm_are_measured_anew(tmp_path):
  path = tmp_path / 'costs.json'
  calibrate.save(made_up(), path)
  data = json.loads(path.read_text())
  del data[calibrate.COLUMNS]['union']
  path.write_text(json.dumps(data))
  with pytest.raises(calibrate.Incomplete, match=r"no costs of \['union'\]"):
    calibrate.load(path)
  assert calibrate._known(path) is None


def test_advice_follows_the_network():
  slow = advise.advise(Costs.of_network(4, 1e6), parameters=10**6, sparsity=0.99, compute=0.01)
  assert slow.best == 'all_gather'
  assert slow.speedup > 10
  fast = advise.advise(Costs.of_network(4, 1e12, latency=0.0), parameters=10**4, sparsity=0.0, compute=1.0)
  assert fast.speedup < 1.05
  assert 'will not pay off' in advise.explain(fast, 1.0)
  alike = advise.advise(Costs.of_network(16, 1e6), parameters=10**6, sparsity=0.99, overlap=1.0)
  assert alike.best == 'split_all_gather'


@pytest.mark.parametrize('wrong', [{'parameters': 0}, {'sparsity': 1.5}, {'overlap': -1}])
def test_advice_refuses_nonsense(wrong):
  with pytest.raises(ValueError, match=next(iter(wrong))):
    advise.advise(made_up(), **({'parameters': 10, 'sparsity': 0.5} | wrong))


def test_the_command_advises(capsys):
  assert command.main(['advise', '--parameters', '500000', '--rate', '100mbit', '--compute', '17']) == 0
  said = capsys.readouterr().out
  assert 'Compression pays off' in said
  assert 'SSAR_Split_AllGather' in said
  assert 'union, then a plain sum' in said


def test_features_count_what_the_paper_counts():
  identical = features(Instance(8, 10**6, 1000, 1000))
  doubling, split = ALGORITHMS.index('recursive_double'), ALGORITHMS.index('split_all_gather')
  assert identical[doubling, 0] == 3
  np.testing.assert_allclose(identical[doubling, 1] / identical[split, 1], 3 / (2 * 7 / 8), rtol=0.02)


@pytest.mark.parametrize(('arguments', 'words'), [
    (('--workers=1',), '2 workers or more'), (('--workers=0',), 'workers=0'), (('--rate=fast',), 'rate must look'),
    (('--rate=0mbit',), 'rate=0'), (('--latency=-1',), 'latency'), (('--sparsity=1.5',), 'sparsity'),
    (('--compute=-3',), 'compute'), (('--value-bits=0',), 'value_bits=0'), (('--parameters=0',), '--parameters'),
    (('--parameters=inf',), '--parameters'), (('--parameters=nan',), '--parameters'),
    (('--costs=/nowhere/costs.json',), '/nowhere/costs.json'), (('--costs={text}',), 'not a file of calibrated costs')])
def test_what_cannot_be_advised_on_is_one_line(arguments, words, tmp_path, capsys):
  (tmp_path / 'text').write_text('nothing of JSON')
  given = [a.format(text=tmp_path / 'text') for a in arguments]
  assert command.main(['advise', '--parameters=1e6', *given]) == 2
  said = capsys.readouterr()
  assert words in said.err and said.err.count('\n') == 1 and not said.out


@pytest.mark.parametrize('arguments', [[], ['advise'], ['advise', '--parameters=many'], ['run'], ['check', '--rate'],
                                       ['advise', '--parameters=1', '--colour=red']])
def test_arguments_that_there_are_not_are_one_line(arguments, capsys):
  with pytest.raises(SystemExit) as end:
    command.main(arguments)
  said = capsys.readouterr().err
  assert end.value.code == 2 and said.count('\n') == 1 and 'error: ' in said


def test_a_lab_of_no_hosts_is_one_line(capsys, monkeypatch):
  monkeypatch.setattr(command, 'end_on_sigterm', lambda: None)  # it would stay for other tests
  assert command.main(['run', '--hosts=0', '--', 'true']) == 2
  assert 'hosts must be between 1 and 250' in capsys.readouterr().err
