"""Connections of those who do not belong to the run: they are turned away, and the run goes on."""

import contextlib
import os
import pathlib
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent import futures

import certificates
import pytest

from dct_jax.train import launch
from dct_jax.transport import door

ROOT = pathlib.Path(__file__).parents[2]
TOKEN = b'token of the run'
HELLO = door.HELLO


def hello(caller=1, called=0, magic=door.MAGIC):
  return HELLO.pack(magic, caller, called, bytes(range(32)))


OPENED = []


@pytest.fixture(autouse=True)
def _close_all():
  yield
  while OPENED:
    OPENED.pop().close()


def connect(address):
  call = socket.create_connection(address, 2)
  call.settimeout(2)
  OPENED.append(call)
  return call


def exactly(call, count):
  data = b''
  while len(data) < count and (more := call.recv(count - len(data))):
    data += more
  return data


# Each stranger gets an address, and returns the connections that shall stay open.


def garbage(address):
  call = connect(address)
  call.sendall(os.urandom(300))
  return [call]


def silence(address):
  return [connect(address) for _ in range(3)]


def half_a_hello(address):
  call = connect(address)
  call.sendall(hello()[:20])
  return [call]


def half_a_handshake(address):
  call = connect(address)
  call.sendall(hello())
  assert len(exactly(call, door.NONCE + door.PROOF)) == door.NONCE + door.PROOF
  return [call]


def hangs_up(address):
  connect(address).close()
  return []


def second_worker(address):
  """Says that it is worker 1, and does not know the token."""
  call = connect(address)
  call.sendall(hello(1))
  said = hello(1) + exactly(call, door.NONCE)
  exactly(call, door.PROOF)
  call.sendall(door._proof(b'a guess', b'caller', said))
  assert call.recv(1) == b''
  return [call]


def reflection(address):
  """Sends the other end's proof back."""
  call = connect(address)
  call.sendall(hello(1))
  exactly(call, door.NONCE)
  call.sendall(exactly(call, door.PROOF))
  assert call.recv(1) == b''
  return [call]


def slow(address):
  """A byte every 50 ms, for as long as it is listened to."""
  call = connect(address)

  def drip():
    with contextlib.suppress(OSError):
      for byte in hello():
        call.sendall(bytes([byte]))
        time.sleep(0.05)

  threading.Thread(target=drip, daemon=True).start()
  return [call]


def huge_length(address):
  call = connect(address)
  call.sendall(struct.pack('<IIQ', 0xDC7F0002, 1, 2**62) * 4)
  return [call]


def wrong_version(address):
  call = connect(address)
  call.sendall(hello(magic=b'dct_jax\0'))
  assert call.recv(1) == b''
  return [call]


def old_greeting(address):
  """What version 1 sent: four bytes with a rank, here one that nobody has."""
  call = connect(address)
  call.sendall((2**31).to_bytes(4, 'little'))
  return [call]


def flood(address):
  return [connect(address) for _ in range(1000)]


STRANGERS = [garbage, silence, half_a_hello, half_a_handshake, hangs_up, second_worker, reflection, slow, huge_length,
             wrong_version, old_greeting, flood]


class Honest:
  """A door, and a worker 1 that comes when the strangers have been there."""

  def __init__(self, **options):
    self.door = door.Door(('127.0.0.1', 0), TOKEN, **options)
    self.found, self.error = None, None

  def let_in(self, seconds=20.0):
    try:
      self.found = self.door.next(time.monotonic() + seconds)
    except OSError as error:
      self.error = error


@pytest.fixture
def honest():
  one = Honest()
  yield one
  one.door.close()


@pytest.mark.parametrize('stranger', STRANGERS)
def test_a_worker_comes_in_whatever_strangers_do(honest, stranger):
  listener = threading.Thread(target=honest.let_in)
  listener.start()
  held = stranger(honest.door.address)
  call = door.enter(honest.door.address, TOKEN, 1, until=time.monotonic() + 15)
  listener.join(20)
  assert honest.found.number == 1
  call.setblocking(True)
  honest.found.call.setblocking(True)
  call.sendall(b'hello')
  assert exactly(honest.found.call, 5) == b'hello'
  for one in (*held, call, honest.found.call):
    one.close()


def test_a_replayed_proof_is_none(honest):
  """Everything that an honest worker sent, once more."""
  said = []
  proxy = socket.create_server(('127.0.0.1', 0))

  def listen_in():
    call, _ = proxy.accept()
    with call, connect(honest.door.address) as onward:
      for there, here, count in ((onward, call, HELLO.size), (call, onward, door.NONCE + door.PROOF),
                                 (onward, call, door.PROOF), (call, onward, 1)):
        data = exactly(here, count)
        said.extend([data] if there is onward else [])
        there.sendall(data)

  eavesdropper, listener = threading.Thread(target=listen_in), threading.Thread(target=honest.let_in)
  eavesdropper.start()
  listener.start()
  door.enter(proxy.getsockname(), TOKEN, 1, until=time.monotonic() + 10).close()
  listener.join(10)
  eavesdropper.join(10)
  assert honest.found.number == 1 and len(said) == 2
  honest.found.call.close()
  listener = threading.Thread(target=honest.let_in, args=(0.5,))
  listener.start()
  with connect(honest.door.address) as again:
    for part in said:
      again.sendall(part)
    exactly(again, door.NONCE + door.PROOF)
    assert again.recv(1) == b''
  listener.join(5)
  assert isinstance(honest.error, TimeoutError)
  assert 'it does not know the token' in str(honest.error)
  proxy.close()


@pytest.mark.parametrize(('caller', 'called'), [(0, 0), (7, 0), (2**32 - 1, 0), (1, 3)])
def test_one_with_the_token_must_be_expected(caller, called):
  """A number out of range, one that is there already, one that is looking for another worker."""
  one = Honest(allow=lambda number: '' if number == 1 else f'no worker {number} has to call')
  listener = threading.Thread(target=one.let_in, args=(0.7,))
  listener.start()
  with pytest.raises(ConnectionError, match='cannot be reached'):
    door.enter(one.door.address, TOKEN, caller, called, until=time.monotonic() + 0.5)
  listener.join(5)
  assert isinstance(one.error, TimeoutError)
  one.door.close()


def test_a_worker_does_not_talk_to_an_impostor():
  """Who answers must know the token, too."""
  impostor = Honest()
  impostor.door.token = b'another'
  listener = threading.Thread(target=impostor.let_in, args=(1.0,))
  listener.start()
  with pytest.raises(ConnectionError, match='whoever answers there does not know the token'):
    door.enter(impostor.door.address, TOKEN, 1, until=time.monotonic() + 0.5)
  listener.join(5)
  impostor.door.close()


def test_a_worker_that_is_late_is_waited_for():
  """Its port is not there yet, or somebody else's connection was dropped: it is tried again until then."""
  with socket.create_server(('127.0.0.1', 0)) as probe:
    address = probe.getsockname()
  late = {}

  def open_late():
    time.sleep(0.5)
    late['door'] = door.Door(address, TOKEN)
    late['found'] = late['door'].next(time.monotonic() + 10)

  thread = threading.Thread(target=open_late)
  thread.start()
  door.enter(address, TOKEN, 1, until=time.monotonic() + 10).close()
  thread.join(10)
  assert late['found'].number == 1
  late['found'].call.close()
  late['door'].close()


def test_descriptors_of_strangers_are_closed(honest):
  before = len(os.listdir('/proc/self/fd'))
  listener = threading.Thread(target=honest.let_in)
  listener.start()
  held = [garbage(honest.door.address) for _ in range(50)]
  call = door.enter(honest.door.address, TOKEN, 1, until=time.monotonic() + 10)
  listener.join(10)
  for one in (*(c for some in held for c in some), call, honest.found.call):
    one.close()
  for _ in range(100):
    if len(os.listdir('/proc/self/fd')) <= before + 1:
      break
    time.sleep(0.05)
    with contextlib.suppress(TimeoutError):
      honest.door.next(time.monotonic() + 0.05)
  assert len(os.listdir('/proc/self/fd')) <= before + 1


@pytest.mark.slow
@pytest.mark.parametrize('encrypted', [False, True])
def test_a_run_goes_on_among_strangers(tmp_path, encrypted):
  """Two processes that train, and strangers at all of their ports from the first moment to the last."""
  program = str(ROOT / 'tests/transport/process.py')
  place = os.environ | launch._place(None, range(2), 1) | {'PYTHONPATH': str(ROOT)}
  if encrypted:
    certificates.make_authority(tmp_path)
    place['DCT_JAX_TLS'] = str(tmp_path)
  children = [subprocess.Popen(
      [sys.executable, program, 'among_strangers', str(tmp_path)], env=place | {'DCT_JAX_PROCESS_ID': str(i)},
      text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for i in range(2)]
  ports, begun = tmp_path / 'ports', time.monotonic()
  attacked, met = set(), []

  def attack(port, stranger):
    with contextlib.suppress(OSError, AssertionError):
      stranger(('127.0.0.1', port))
      met.append(stranger)

  try:
    with futures.ThreadPoolExecutor(32) as pool:
      while any(c.poll() is None for c in children) and time.monotonic() < begun + 120:
        found = set(map(int, ports.read_text().split())) if ports.exists() else set()
        for port in found - attacked:
          for stranger in STRANGERS:
            pool.submit(attack, port, stranger)
        attacked |= found
        for port in attacked:  # during training nobody listens there
          with contextlib.suppress(OSError):
            connect(('127.0.0.1', port)).close()
        time.sleep(0.05)
    outputs = [c.communicate(timeout=30)[0] for c in children]
  finally:
    for child in children:
      child.kill()
      child.wait()
  assert [c.returncode for c in children] == [0, 0], '\n'.join(outputs)
  assert all('trained 6 steps' in text for text in outputs)
  assert len(attacked) >= 4 and len(set(met)) > 5
