"""Starting JAX: what is refused, and what a second call does."""

import pytest
from absl import flags

from dct_jax.train import distributed
from dct_jax.transport import addresses


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
  """Nothing is started, nothing is in the environment, and nothing really happens."""
  calls = []
  monkeypatch.setattr(distributed, '_started', None)
  for name in distributed.Cluster._fields:
    monkeypatch.delenv('DCT_JAX_' + name.upper(), raising=False)
  monkeypatch.delenv('JAX_COORDINATOR_BIND_ADDRESS', raising=False)
  monkeypatch.setattr(addresses, '_told', addresses.Place())
  monkeypatch.setattr(distributed.jax.distributed, 'initialize', lambda *a, **k: calls.append((*a, *k.values())))
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


@pytest.mark.parametrize('host', ['127.0.0.1', 'localhost'])
def test_the_coordinator_listens_where_it_was_told_to(fresh, host):
  distributed.start(f'{host}:1234', 2, 0)
  assert fresh == [(f'{host}:1234', 2, 0, f'{host}:1234')]


@pytest.mark.parametrize('host', ['192.0.2.7', 'no.such.host.invalid'])
def test_an_address_that_others_know_this_host_by_is_not_listened_at(fresh, host):
  distributed.start(f'{host}:1234', 2, 0)
  assert fresh == [(f'{host}:1234', 2, 0)]


def test_a_name_that_means_the_loopback_here_is_not_listened_at(fresh, monkeypatch):
  """Debian's hosts know their own name as 127.0.1.1; others do not."""
  monkeypatch.setattr(addresses.socket, 'getaddrinfo',
                      lambda *a, **k: [(2, 1, 6, '', ('127.0.1.1', 0))])
  distributed.start('myhost:1234', 2, 0)
  assert fresh == [('myhost:1234', 2, 0)]


def test_transports_learn_what_flags_and_environment_say(monkeypatch):
  monkeypatch.setenv('DCT_JAX_INTERFACE', 'lo')
  monkeypatch.setenv('DCT_JAX_TLS', 'somewhere')
  assert addresses.own_address() == '127.0.0.1'
  distributed.start('192.0.2.7:1', 2, 1, interface='127.0.0.5')
  assert addresses.own_address() == '127.0.0.5'
  assert addresses.told('coordinator') == '192.0.2.7:1'
  assert addresses.told('tls') == 'somewhere'


def test_the_way_to_the_coordinator_of_the_flags_decides(monkeypatch):
  """Not what the host's own name stands for."""
  asked, real = [], addresses.socket.getaddrinfo
  monkeypatch.setattr(addresses.socket, 'getaddrinfo', lambda host, *a, **k: asked.append(host) or real(host, *a, **k))
  distributed.start('127.0.0.7:1', 2, 1)
  assert addresses.own_address() == '127.0.0.1'
  assert asked == ['127.0.0.7']
  monkeypatch.setenv('DCT_JAX_COORDINATOR', '192.0.2.9:1')  # the flags win
  assert addresses.told('coordinator') == '127.0.0.7:1'


@pytest.mark.parametrize('interface', ['nothing0', '192.0.2.7'])
def test_an_interface_that_is_not_there_is_refused(interface, monkeypatch):
  monkeypatch.setenv('DCT_JAX_INTERFACE', interface)
  with pytest.raises(ValueError, match=rf"interface must be one of .*lo.*got interface='{interface}'"):
    addresses.own_address()


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
      'coordinator': 'a:1', 'num_processes': 2, 'process_id': 1, 'local_devices': None,
      'interface': None, 'tls': None}
  with pytest.raises(flags.IllegalFlagValueError):
    values(['program', '--num_processes=0'])
