"""Messages between workers: in order, of any length, in both directions at once; and when one is gone."""

import socket
import time

import numpy as np
import pytest

from dct_jax.transport.links import SocketLinks, local_links


@pytest.fixture
def pair():
  a, b = socket.socketpair()
  both = [SocketLinks(0, [None, Tcp(a)], ['me', 'there'], 2.0),
          SocketLinks(1, [Tcp(b), None], ['here', 'me'], 2.0)]
  yield both
  for links in both:
    links.close()


class Tcp:
  """A socket that takes options of TCP, which a pair of one machine does not have."""

  def __init__(self, real):
    self._real = real

  def setsockopt(self, *unused):
    pass

  def __getattr__(self, name):
    return getattr(self._real, name)


def test_long_messages_both_ways_at_once_arrive_in_order(pair):
  rng = np.random.default_rng(0)
  messages = [rng.bytes(n) for n in (3_000_000, 0, 5, 700_000)]
  for message in messages:
    for links in pair:
      links.send(1 - links.rank, message)
  for links in pair:
    assert [links.receive(1 - links.rank) for _ in messages] == messages
    assert links.sent_bytes == sum(map(len, messages)) + 8 * len(messages)


def test_one_that_is_gone_is_named(pair):
  pair[1].close()
  with pytest.raises(ConnectionError, match=r'worker 1 \(there\) is gone'):
    pair[0].receive(1)
  with pytest.raises(ConnectionError, match=r'worker 1 \(there\) does not take'):
    for _ in range(100):
      pair[0].send(1, bytes(100_000))
      time.sleep(0.01)


def test_one_that_is_silent_is_named(pair):
  with pytest.raises(ConnectionError, match=r'nothing came from worker 1 \(there\): timed out'):
    pair[0].receive(1)


def test_workers_of_one_process_take_turns():
  first, second, third = local_links(3)
  first.tell(b'a')
  third.tell(b'c')
  assert second.waiting(0) and not first.waiting(1)
  second.tell(b'b')
  for links, own in [(first, b'a'), (second, b'b'), (third, b'c')]:
    assert links.hear(own) == [b'a', b'b', b'c']
  with pytest.raises(RuntimeError, match='take turns'):
    first.receive(2)
