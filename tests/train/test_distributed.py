"""Starting JAX: what is refused, and what a second call does."""

import pytest
from absl import flags

from dct_jax.train import distributed


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
  """Nothing is started, nothing is in the environment, and nothing really happens."""
  calls = []
  monkeypatch.setattr(distributed, '_started', None)
  for name in distributed.Cluster._fields:
    monkeypatch.delenv('DCT_JAX_' + name.upper(), raising=False)
  monkeypatch.setattr(distributed.jax.distributed, 'initialize', lambda *a: calls.append(a))
  monkeypatch.setattr(distributed, '_set_devices', lambda n: calls.append(n))
  return calls


@pytest.mark.parametrize(('arguments', 'message'), [
    ({'coordinator': 'a:1'}, 'go together'),
    ({'num_processes': 2, 'process_id': 0}, 'go together'),
    ({'coordinator': 'a', 'num_processes': 2, 'process_id': 0}, 'host:port'),
    ({'coordinator': 'a:b', 'num_processes': 2, 'process_id': 0}, 'host:port'),
    ({'coordinator': 'a:1', 'num_processes': 2, 'process_id': 2}, 'less than num_processes'),
    ({'coordinator': 'a:1', 'num_processes': 2, 'process_id': -1}, 'at least 0'),
    ({'local_devices': 0}, 'local_devices')])
def test_values_that_do_not_fit_are_refused(arguments, message, fresh):
  with pytest.raises(ValueError, match=message):
    distributed.start(**arguments)
  assert not fresh


def test_environment_is_read_and_arguments_win(monkeypatch, fresh):
  monkeypatch.setenv('DCT_JAX_COORDINATOR', 'a:1')
  monkeypatch.setenv('DCT_JAX_NUM_PROCESSES', '4')
  monkeypatch.setenv('DCT_JAX_PROCESS_ID', '3')
  monkeypatch.setenv('DCT_JAX_LOCAL_DEVICES', '2')
  distributed.start(process_id=1)
  assert fresh == [2, ('a:1', 4, 1)]


def test_words_in_the_environment_are_refused(monkeypatch):
  monkeypatch.setenv('DCT_JAX_PROCESS_ID', 'first')
  with pytest.raises(ValueError, match="DCT_JAX_PROCESS_ID must be .* got text='first'"):
    distributed.start()


def test_starting_twice(fresh):
  distributed.start(local_devices=2)
  distributed.start(local_devices=2)
  assert fresh == [2, ()]
  with pytest.raises(RuntimeError, match='was started with'):
    distributed.start(local_devices=3)


def test_alone_when_jax_finds_no_cluster(monkeypatch):
  def fail(message):
    def initialize():
      raise ValueError(message)
    monkeypatch.setattr(distributed.jax.distributed, 'initialize', initialize)

  fail('coordinator_address should be defined.')
  distributed.start()
  monkeypatch.setattr(distributed, '_started', None)
  fail('something else')
  with pytest.raises(ValueError, match='something else'):
    distributed.start()


def test_flags():
  values = flags.FlagValues()
  distributed.define_flags(values)
  values(['program', '--coordinator=a:1', '--num_processes=2', '--process_id=1'])
  assert distributed.flag_values(values) == {
      'coordinator': 'a:1', 'num_processes': 2, 'process_id': 1, 'local_devices': None}
  with pytest.raises(flags.IllegalFlagValueError):
    values(['program', '--num_processes=0'])
