"""Encrypted connections: the same exchanges, certificates on both sides, nothing that can be read between."""

import socket
import ssl
import threading
import time

import certificates
import numpy as np
import pytest
import workers

from dct_jax import native, transport
from dct_jax.transport import door
from dct_jax.transport.tls import Relay, Tls

TOKEN = b'token of the run'


@pytest.fixture(scope='module')
def ours(tmp_path_factory):
  return certificates.make_authority(tmp_path_factory.mktemp('ours'))


@pytest.fixture(scope='module')
def theirs(ours, tmp_path_factory):
  return certificates.make_authority(tmp_path_factory.mktemp('theirs'))


def let_in(entrance, into, seconds=10.0):
  def wait():
    try:
      into['caller'] = entrance.next(time.monotonic() + seconds)
    except OSError as error:
      into['error'] = error

  thread = threading.Thread(target=wait)
  thread.start()
  return thread


def encrypted_pair(tls):
  """Both ends of a proved, encrypted connection."""
  with door.Door(('127.0.0.1', 0), TOKEN, context=tls.context(server=True)) as entrance:
    found = {}
    thread = let_in(entrance, found)
    call = door.enter(entrance.address, TOKEN, 1, until=time.monotonic() + 10, context=tls.context(server=False))
    thread.join(10)
  return found['caller'].call, call


@pytest.fixture
def channels(ours):
  """Two channels over an encrypted connection."""
  relays = [Relay([end]) for end in encrypted_pair(ours)]
  ends = [r.ends[0].detach() for r in relays]
  opened = [native.module().open_channel(i, [-1, end] if i == 0 else [end, -1], ['a', 'b'], 10.0, 20.0, True)
            for i, end in enumerate(ends)]
  yield opened
  for channel in opened:
    native.module().close_channel(channel)
  for relay in relays:
    relay.finish()
    assert not relay._thread.is_alive()


@pytest.mark.parametrize('algorithm', ['all_gather', 'dsar'])
def test_exchanges_are_the_same(channels, algorithm):
  """Short frames, and frames that are longer than what is under way."""
  for size in (50, 700_000):
    results = workers.in_threads(
        lambda c, size=size: np.asarray(workers.reducer(c, size=size, algorithm=algorithm)()[1]), channels)
    workers.assert_replicas(results)
    assert results[0][[1, 5, 20]].tolist() == [2, 2, 2] and results[0].sum() == 6


def test_a_dense_exchange_of_megabytes(channels):
  import jax

  from dct_jax.wire.exchanges import Settings
  size = 3_000_001
  call = lambda c: jax.jit(lambda x: transport.reduce_stream(
      np.zeros(0, np.uint32), x, size, size, c, Settings(), algorithm=4)[1])
  results = workers.in_threads(lambda c: np.asarray(call(c)(np.ones(size, np.float32))), channels)
  workers.assert_replicas(results)
  assert (results[0] == 2).all()


def test_one_that_goes_away_is_noticed(channels):
  native.module().close_channel(channels[1])
  text, seconds = workers.error_of(workers.reducer(channels[0]))
  assert 'worker 1 (b) has closed its connection' in text or 'cannot be reached' in text
  assert seconds < 3


@pytest.mark.parametrize('how', ['close', 'finish'])
def test_what_was_written_arrives_although_nobody_has_read_it_yet(ours, how):
  """Most of it is still with the relay when its channel is closed, or the process is about to end."""
  pair = encrypted_pair(ours)
  for end in pair:
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
      end.setsockopt(socket.SOL_SOCKET, option, 8192)
  relay, call = Relay(pair[:1]), pair[1]
  data = np.random.default_rng(0).bytes(300_000)
  relay.ends[0].sendall(data)
  if how == 'close':
    relay.ends[0].close()
  else:
    ending = threading.Thread(target=relay.finish)
    ending.start()
  time.sleep(0.3)
  call.setblocking(True)
  call.settimeout(5)
  got = b''
  while len(got) < len(data) and (more := call.recv(1 << 16)):
    got += more
  assert got == data
  call.close()
  if how == 'finish':
    ending.join(10)
    relay.ends[0].close()
  relay.finish()
  assert not relay._thread.is_alive()


def test_nothing_can_be_read_between(ours):
  """What crosses the network holds neither the greeting nor the data."""
  seen = bytearray()
  with door.Door(('127.0.0.1', 0), TOKEN, context=ours.context(server=True)) as entrance:
    proxy = socket.create_server(('127.0.0.1', 0))

    def carry(here, there):
      while more := here.recv(1 << 16):
        seen.extend(more)
        there.sendall(more)

    def listen_in():
      call, _ = proxy.accept()
      with call, socket.create_connection(entrance.address) as onward:
        back = threading.Thread(target=carry, args=(onward, call), daemon=True)
        back.start()
        carry(call, onward)
        onward.shutdown(socket.SHUT_WR)
        back.join(5)

    thread = threading.Thread(target=listen_in)
    thread.start()
    found = {}
    waiting = let_in(entrance, found)
    call = door.enter(proxy.getsockname(), TOKEN, 1, until=time.monotonic() + 10, context=ours.context(server=False))
    waiting.join(10)
    call.setblocking(True)
    call.sendall(b'a gradient of somebody' * 10)
    found['caller'].call.setblocking(True)
    assert found['caller'].call.recv(1000).startswith(b'a gradient')
    call.close()
    found['caller'].call.close()
    thread.join(10)
    proxy.close()
  assert len(seen) > 1000
  assert door.MAGIC not in seen and b'gradient' not in seen


@pytest.mark.parametrize('who', ['another authority', 'no certificate', 'no encryption'])
def test_one_without_our_certificate_stays_outside(ours, theirs, who):
  context = None
  if who == 'another authority':
    context = theirs.context(server=False)
    context.load_verify_locations(ours.authority)  # it believes us
  elif who == 'no certificate':
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
  with door.Door(('127.0.0.1', 0), TOKEN, context=ours.context(server=True)) as entrance:
    found = {}
    thread = let_in(entrance, found, 1.0)
    with pytest.raises(ConnectionError):
      door.enter(entrance.address, TOKEN, 1, until=time.monotonic() + 0.7, context=context)
    thread.join(5)
  assert isinstance(found['error'], TimeoutError)


def test_a_worker_believes_our_authority_only(ours, theirs):
  with door.Door(('127.0.0.1', 0), TOKEN, context=theirs.context(server=True)) as entrance:
    found = {}
    thread = let_in(entrance, found, 1.0)
    with pytest.raises(ConnectionError, match='certificate verify failed'):
      door.enter(entrance.address, TOKEN, 1, until=time.monotonic() + 0.7, context=ours.context(server=False))
    thread.join(5)


def test_files_that_are_not_there_are_an_error(tmp_path):
  with pytest.raises(OSError):
    Tls.of(tmp_path).context(server=True)
