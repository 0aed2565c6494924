"""The lab itself: rates, counters, teardown, and what happens without root."""

import io
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from dct_jax import netlab
from dct_jax.netlab import namespaces
from dct_jax.netlab.lab import cores_of

needs_lab = pytest.mark.skipif(netlab.missing() is not None, reason=f'no lab here: {netlab.missing()}')

SEND = '''
import os, socket, sys, time
me, count = int(os.environ['DCT_JAX_PROCESS_ID']), int(sys.argv[1])
if me == 0:
  server = socket.create_server(('10.77.0.1', 5001))
  peer, _ = server.accept()
  got = 0
  while got < count:
    got += len(peer.recv(1 << 16))
  peer.sendall(b'x')
else:
  for _ in range(100):
    try:
      s = socket.create_connection(('10.77.0.1', 5001))
      break
    except OSError:
      time.sleep(0.05)
  start = time.time()
  s.sendall(bytes(count))
  s.recv(1)
  print(f'took {time.time() - start:.7f}')
'''


CONTROL = '''
import os, socket, time
if os.environ['DCT_JAX_PROCESS_ID'] == '0':
  peer, _ = socket.create_server(('10.77.0.1', 5001)).accept()
else:
  while True:
    try:
      peer = socket.create_connection(('10.77.0.1', 5001))
      break
    except OSError:
      time.sleep(0.05)
print('control', peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).split(b'\\0')[0].decode())
'''


def leftovers():
  return [n for n in namespaces._existing() if f'-{os.getpid()}-' in n]


@needs_lab
def test_links_are_as_slow_as_they_say_and_bytes_are_counted():
  count = 1_250_000  # a second at 10 Mbit
  out = io.StringIO()
  with netlab.Lab(2, rate='10mbit') as lab:
    run = lab.run([sys.executable, '-c', SEND, str(count)], output=out, timeout=60)
    assert run.code == 0, out.getvalue()
    seconds = float(out.getvalue().split('took ')[1].split()[0])
    assert 0.95 < seconds < 1.5
    assert count < run.counters[1].sent_bytes < 1.1 * count
    assert run.counters[0].received_bytes == pytest.approx(run.counters[1].sent_bytes, rel=0.01)
    lab.reshape(rate='100mbit')
    out = io.StringIO()
    lab.run([sys.executable, '-c', SEND, str(count)], output=out, timeout=60)
    assert float(out.getvalue().split('took ')[1].split()[0]) < 0.4
  assert not leftovers()


@needs_lab
def test_all_programs_have_the_same_congestion_control():
  available = pathlib.Path('/proc/sys/net/ipv4/tcp_available_congestion_control').read_text().split()
  if 'cubic' not in available:
    pytest.skip('this kernel has no CUBIC')
  out = io.StringIO()
  with netlab.Lab(2) as lab:
    assert lab.run([sys.executable, '-c', CONTROL], output=out, timeout=60).code == 0, out.getvalue()
  assert out.getvalue().count('control cubic') == 2


@needs_lab
@pytest.mark.parametrize('rate', ['100kbit', '2.5mbit', '40gbit'])
def test_rates_far_from_the_usual_ones(rate):
  out = io.StringIO()
  with netlab.Lab(2, rate=rate) as lab:
    assert lab.run([sys.executable, '-c', SEND, '5000'], output=out, timeout=60).code == 0, out.getvalue()
  seconds = float(out.getvalue().split('took ')[1].split()[0])
  assert seconds > 0.6 * 5000 * 8 / netlab.bits_per_second(rate)


@needs_lab
def test_nothing_is_left_after_an_exception():
  with pytest.raises(ZeroDivisionError), netlab.Lab(3):
    assert len(leftovers()) == 4
    raise ZeroDivisionError
  assert not leftovers()


@needs_lab
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_after_a_signal(number):
  command = [sys.executable, '-m', 'dct_jax.netlab', 'run', '--hosts', '2', '--', 'sleep', '100']
  child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
  mine = f'{namespaces.PREFIX}-{child.pid}-'
  while not any(n.startswith(f'{mine}1') for n in namespaces._existing()):
    time.sleep(0.1)
    assert child.poll() is None
  time.sleep(0.5)
  child.send_signal(number)
  child.wait(60)
  assert not [n for n in namespaces._existing() if n.startswith(mine)]


@needs_lab
def test_a_killed_lab_is_removed_by_the_next_one():
  code = 'import os; from dct_jax import netlab; netlab.Lab(2).__enter__(); os._exit(9)'
  child = subprocess.run([sys.executable, '-c', code], check=False)
  assert child.returncode == 9
  with netlab.Lab(1):
    owners = {n.split('-')[1] for n in namespaces._existing()}
    assert str(os.getpid()) in owners
    assert all(os.path.exists(f'/proc/{o}') for o in owners)


def test_without_the_means_it_says_so_and_uses_loopback(monkeypatch, capsys):
  monkeypatch.setattr(namespaces, 'missing', lambda: "the command 'tc'")
  out = io.StringIO()
  with netlab.Lab(2, rate='1mbit') as lab:
    assert not lab.shaped
    run = lab.run([sys.executable, '-c', 'print("here")'], output=out)
  assert run == netlab.Run(0, None)
  assert out.getvalue().count('here') == 2
  assert "the command 'tc' is missing" in capsys.readouterr().err


@pytest.mark.parametrize(('arguments', 'words'), [
    ({'hosts': 0}, 'hosts=0'), ({'hosts': 2, 'rate': 'fast'}, "rate='fast'")])
def test_bad_arguments(arguments, words):
  with pytest.raises(ValueError, match=words):
    netlab.Lab(**arguments)


@pytest.mark.parametrize('hosts, cores, shares', [
    (2, [0, 1], [[0], [1]]), (4, [0, 1], [[0], [1], [0], [1]]), (2, [3, 4, 5, 6, 7], [[3, 4], [5, 6]]),
    (1, [0, 1], [[0, 1]])])
def test_hosts_have_cores_of_their_own_or_share_one(hosts, cores, shares):
  assert [list(cores_of(i, hosts, cores)) for i in range(hosts)] == shares


@pytest.mark.parametrize('pin', [True, False])
def test_a_host_runs_where_it_is_pinned(pin):
  out = io.StringIO()
  every = os.sched_getaffinity(0)
  lab = netlab.Lab(2, pin=pin, quiet=True)
  with lab:
    code = lab.run([sys.executable, '-c', 'import os; print(*os.sched_getaffinity(0))'], output=out).code
  assert code == 0
  found = [set(map(int, line.split()[1:])) for line in sorted(out.getvalue().splitlines())]
  assert found == ([set(cores_of(i, 2, sorted(every))) for i in range(2)] if lab.pin else [every] * 2)
