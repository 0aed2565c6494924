"""A worker that is gone, silent or elsewhere: the others say so, soon, and stay with it."""

import contextlib
import gc
import os
import re
import socket
import threading
import time

import jax
import numpy as np
import pytest
import workers

from dct_jax import native, transport
from dct_jax.collectives.algorithms import ALGORITHMS
from dct_jax.collectives.streams import Exchange
from dct_jax.wire.exchanges import Settings

BROKEN = 'has closed its connection|cannot be reached|is in another exchange'


def run_against(third, number=3, timeout=10.0, again=False, **kwargs):
  """Errors of all but the last worker, which does `third(transport, its reduction)` instead of reducing."""
  ready = threading.Barrier(number)

  def body(t):
    call = workers.reducer(t.open(), **kwargs)
    ready.wait(30)
    if t.rank == number - 1:
      return third(t, call)
    first = workers.error_of(call)
    return (first, workers.error_of(call)) if again else first

  return workers.run_workers(number, body, timeout)[:-1]


@pytest.mark.parametrize('algorithm', ALGORITHMS)
def test_a_worker_that_closes_is_named_within_a_second(algorithm):
  errors = run_against(lambda t, call: t.close(), algorithm=algorithm)
  for text, seconds in errors:
    assert seconds < 1
    assert re.search(rf'dct_jax: worker \d \(thread \d\) ({BROKEN})', text)
  assert any('worker 2 (thread 2)' in text for text, _ in errors)


@pytest.mark.parametrize('algorithm', ['all_gather', 'recursive_double', 'dsar'])
def test_a_silent_worker_is_named_after_the_timeout(algorithm):
  done = threading.Event()
  errors = run_against(lambda t, call: done.wait(3), timeout=1.0, algorithm=algorithm)
  assert any('worker 2 (thread 2) has not answered for 1 s' in text for text, _ in errors)
  assert all(0.9 < seconds < 2.5 for _, seconds in errors)


def test_a_stuck_worker_is_named_by_those_that_wait_for_it():
  """Alive, connected, and lost in something else: with four workers, whichever it is."""
  done = threading.Event()
  for text, _ in run_against(lambda t, call: done.wait(3), number=4, timeout=1.0, algorithm='split_all_gather'):
    assert re.search(r'worker 3 \(thread 3\) has not answered for 1 s: it is gone or stuck, or waits for one that is '
                     r'\(exchange 1: split_all_gather of 50 coordinates\)', text)


class Trickle:
  """Worker 1 of two, which takes all and sends zeros, one byte at a time."""

  def __init__(self, pause, **patience):
    mine, self._socket = socket.socketpair()
    self._ended = threading.Event()
    self._thread = threading.Thread(target=self._drip, args=(pause,))
    self.channel = native.module().open_channel(
        0, [-1, mine.detach()], ['me', 'trickle'], patience['timeout'], patience['deadline'], True)

  def _drip(self, pause):
    with contextlib.suppress(OSError):
      head = self._socket.recv(1 << 16)[:24]
      for byte in head:
        if self._ended.wait(pause):
          return
        self._socket.sendall(bytes([byte]))

  def __enter__(self):
    self._thread.start()
    return self.channel

  def __exit__(self, *unused):
    self._ended.set()
    native.module().close_channel(self.channel)
    self._thread.join(10)
    self._socket.close()


def test_a_byte_now_and_then_does_not_hold_an_exchange_for_ever():
  """It is never silent for as long as the timeout; the deadline is for that."""
  with Trickle(0.15, timeout=0.6, deadline=1.2) as channel:
    text, seconds = workers.error_of(workers.reducer(channel))
  assert re.search(r'worker 1 \(trickle\) was not done when the exchange had taken 1 s, its deadline: it is too slow, '
                   r'or waits for one that is \(exchange 1: ', text)
  assert 1.1 < seconds < 2.5


def test_the_deadline_begins_anew_with_every_exchange():
  def body(t):
    call = workers.reducer(t.open())
    for _ in range(4):
      time.sleep(0.3 * t.rank)
      out = np.asarray(call()[1])
    return out

  for out in workers.run_workers(2, body, timeout=5.0, deadline=0.8):
    assert out.sum() == 6


@pytest.mark.parametrize('name', ['timeout', 'deadline'])
@pytest.mark.parametrize('seconds', [0, -1.0, float('nan')])
def test_times_that_are_not_positive_are_refused(name, seconds):
  with pytest.raises(ValueError, match=f'{name} must be positive'):
    transport.local_group(2, **{name: seconds})


def descriptors():
  return len(os.listdir('/proc/self/fd'))


def test_a_transport_that_is_dropped_closes_its_descriptors():
  gc.collect()
  before = descriptors()
  group = transport.local_group(3)
  for t in group:
    t.open()
  assert descriptors() == before + 6
  del group, t
  gc.collect()
  assert descriptors() == before


def test_what_was_made_with_a_transport_keeps_it():
  """Whoever has the collective can go on."""
  group = transport.local_group(2)
  exchanges = [Exchange(50, 'data', transport=t, algorithm='all_gather') for t in group]
  numbers = [t._channels[0] for t in group]
  del group
  gc.collect()
  for number in numbers:
    assert native.module().traffic(number)[0] == 0  # it is open
  del exchanges
  gc.collect()
  with pytest.raises(RuntimeError, match='is not open'):
    native.module().traffic(numbers[0])


def test_a_short_timeout_is_kept_too():
  done = threading.Event()
  (_, seconds), = run_against(lambda t, call: done.wait(1), number=2, timeout=0.2)
  assert 0.15 < seconds < 0.8


def test_a_slow_worker_is_waited_for():
  def body(t):
    call = workers.reducer(t.open())
    time.sleep(0.6 * t.rank)
    return np.asarray(call()[1])

  for out in workers.run_workers(3, body, timeout=1.5):
    assert out.sum() == 9


def test_after_a_failure_the_channel_refuses_with_the_same_cause():
  for first, second in run_against(lambda t, call: t.close(), again=True):
    cause = re.search(r'dct_jax: (worker \d .*)', first[0])[1]
    assert f'the channel is closed: {cause}' in second[0]
    assert second[1] < 0.5


def test_a_failure_in_the_background_comes_with_wait():
  message = np.zeros(6, np.uint32)
  message[:3] = 0xDC720000, 6, 6
  layers = (np.zeros(10, np.float32),)

  def body(t):
    channel = t.open()
    start = jax.jit(lambda m: transport.start_messages(m, layers, channel, Settings(), algorithm=0))
    wait = jax.jit(lambda h: transport.wait_messages(h, message, layers, channel, Settings(), algorithm=0))
    if t.rank == 1:
      return t.close()
    handle = start(message)
    return workers.error_of(lambda: jax.block_until_ready(wait(handle)))[0], workers.error_of(
        lambda: jax.block_until_ready(wait(start(message))))[0]

  first, second = workers.run_workers(2, body)[0]
  assert re.search(rf'worker 1 \(thread 1\) ({BROKEN})', first)
  assert 'the channel is closed: worker 1 (thread 1)' in second


@pytest.mark.parametrize('other', [
    {'algorithm': 'all_gather'}, {'algorithm': 'recursive_double'}, {'algorithm': 'dsar'}, {'op': 'max'},
    {'size': 51}, {'dtype': np.uint32}, {'settings': Settings(bits=4)}],
    ids=['all_gather', 'recursive_double', 'dsar', 'op', 'size', 'dtype', 'bits'])
def test_workers_in_different_exchanges_are_told(other):
  """Frames of one exchange must not pass for those of another."""

  def body(t):
    return workers.error_of(workers.reducer(t.open(), **(other if t.rank == 0 else {})))

  errors = workers.run_workers(2, body, timeout=10)
  assert all(re.search(BROKEN, text) and seconds < 5 for text, seconds in errors)
  assert any('is in another exchange than this worker; all must run the same program' in text
             for text, _ in errors)


@pytest.mark.parametrize('delta', [0.1, 1.0])
def test_what_need_not_be_equal_may_differ(delta):
  """A codec and a delta concern the sender alone."""

  def body(t):
    return np.asarray(workers.reducer(t.open(), settings=Settings('rice', delta) if t.rank else Settings())()[1])

  for out in workers.run_workers(3, body):
    assert out.sum() == 9


@pytest.mark.parametrize(('index', 'count', 'message'), [
    ([1, 1, 2], 3, 'not strictly increasing'), ([3, 2, 1], 3, 'not strictly increasing'),
    ([1, 2, 50], 3, 'below its size'), ([1, 2, 3], 4, 'fewer entries than it says')])
def test_streams_that_break_their_word_touch_no_memory(index, count, message):
  def body(t):
    channel = t.open()
    mine = ([1, 2, 3], 3) if t.rank else (index, count)
    call = jax.jit(lambda i, v: transport.reduce_stream(i, v, mine[1], 50, channel, Settings(), algorithm=2))
    return workers.error_of(lambda: jax.block_until_ready(call(np.array(mine[0], np.uint32), np.ones(3, np.float32))))

  errors = workers.run_workers(2, body, timeout=10)
  assert message in errors[0][0]
  assert re.search(BROKEN, errors[1][0])
  assert errors[1][1] < 5


def test_a_closed_transport_is_not_open():
  t = transport.local_group(1)[0]
  with t:
    call = workers.reducer(t.open())
    call()
  t.close()  # again does nothing
  assert t.traffic() == (0, 0, 0, 0.0)
  assert re.search(r'channel \d+ is not open', workers.error_of(call)[0])
