"""A lab that says what it delivers."""

import json
import sys

import pytest

from dct_jax import netlab
from dct_jax.netlab import __main__ as command
from dct_jax.netlab import check, namespaces

needs_lab = pytest.mark.skipif(netlab.missing() is not None, reason=f'no lab here: {netlab.missing()}')

GOOD = check.Check(rate=1e8, ring=(94e6, 93e6, 95e6), flow=95e6, one_way=0.0013, there_and_back=0.0014, gather=0.003,
                   busy=0.5)
SLOW = GOOD._replace(ring=(94e6, 62e6, 95e6))


@needs_lab
def test_a_ring_gets_its_rate_and_no_message_outruns_the_line():
  with netlab.Lab(3, rate='100mbit') as lab:
    for _ in range(3):  # other programs may run just now
      found = lab.check(seconds=0.6)
      if found.delivered > 0.9:
        break
  assert len(found.ring) == 3
  assert 0.9 < found.delivered <= 0.96  # headers are the rest
  assert 0.9 < found.flow / found.rate <= 0.96
  for seconds, messages in [(found.one_way, 1), (found.there_and_back, 1), (found.gather, 2)]:
    assert seconds > 0.8 * messages * found.line


@needs_lab
def test_it_warns_when_it_is_built_and_reshaped(monkeypatch, capsys):
  asked = []
  monkeypatch.setattr(check, 'check', lambda run, addresses, rate, seconds: asked.append(rate) or SLOW)
  with netlab.Lab(2, rate='10mbit', check=True) as lab:
    lab.reshape(rate='100mbit')
    lab.reshape(rate=None)  # nothing to check
  assert asked == [1e7, 1e8]
  assert capsys.readouterr().err.count('warning: this lab delivers 62% of the rate') == 2
  with netlab.Lab(2, rate='10mbit') as lab:
    assert lab.check(seconds=3) is SLOW
  assert not capsys.readouterr().err


def test_a_warning_says_what_is_to_blame():
  assert check.warning(GOOD) is None
  assert '62.0 of 100.0 Mbit/s' in check.warning(SLOW)
  assert 'the shaping' in check.warning(SLOW)
  assert 'processors were 99% busy' in check.warning(SLOW._replace(busy=0.99))


def test_shares():
  assert GOOD.line == pytest.approx(0.001371, rel=1e-3)
  found = check.summary(GOOD)
  assert found['ring_min'] == 0.93 and found['ring_mean'] == 0.94 and found['flow'] == 0.95
  assert found['one_way_over_line'] == pytest.approx(0.0013 / GOOD.line, abs=1e-4)
  assert found['gather_over_line'] == pytest.approx(0.003 / GOOD.line / 2, abs=1e-4)


@pytest.mark.parametrize('found, arguments, code', [(GOOD, ['--strict'], 0), (SLOW, [], 0), (SLOW, ['--strict'], 1)])
def test_the_command(monkeypatch, capsys, found, arguments, code):
  monkeypatch.setattr(namespaces, 'missing', lambda: 'everything')
  monkeypatch.setattr(netlab.Lab, 'check', lambda self, seconds: found)
  assert command.main(['check', '--hosts', '3', '--rate', '100mbit', *arguments]) == code
  out = capsys.readouterr().out
  assert ('warning: this lab delivers 62%' in out) == (found is SLOW)
  assert 'ring, 0 to 1' in out
  assert json.loads(out.splitlines()[-1])['hosts'] == 3


def test_the_command_without_a_lab(monkeypatch, capsys):
  monkeypatch.setattr(namespaces, 'missing', lambda: 'everything')
  assert command.main(['check', '--rate', '100mbit']) == 1
  assert 'nothing to check' in capsys.readouterr().err


def test_a_program_knows_what_a_user_typed(monkeypatch, capfd):
  monkeypatch.setattr(namespaces, 'missing', lambda: 'everything')
  monkeypatch.setattr('sys.argv', ['netlab', 'run', '--hosts', '1', '--', sys.executable, '-c',
                                   'from dct_jax.train import results; print(results.running())'])
  assert command.main(sys.argv[1:]) == 0
  assert 'python -m dct_jax.netlab run --hosts 1 -- ' in capfd.readouterr().out


def test_a_failure_says_why():
  def run(argv, *, timeout, output):
    output.write('[1] no route to host\n')
    return netlab.Run(3, None)

  with pytest.raises(RuntimeError, match='no route to host'):
    check.check(run, ['10.0.0.1', '10.0.0.2'], 1e6, 1.0)


@pytest.mark.parametrize('rate, packets', [
    ('1mbit', 1), ('10mbit', 1), ('100mbit', 2), ('300mbit', 5), ('1gbit', 65_535), (None, 65_535)])
def test_pieces_grow_with_the_rate(rate, packets):
  assert namespaces._piece(rate) == packets
