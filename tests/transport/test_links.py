"""Messages between workers: in order, of any length, in both directions at once; and when one is gone."""

import socket
import threading
import time

import numpy as np
import pytest

from dct_jax.transport.connect import Patience
from dct_jax.transport.links import SocketLinks, local_links


@pytest.fixture
def pair():
  a, b = socket.socketpair()
  both = [SocketLinks(0, [None, a], ['me', 'there'], Patience(2.0, 3.0)),
          SocketLinks(1, [b, None], ['here', 'me'], Patience(2.0, 3.0))]
  yield both
  for links in both:
    links.close()


def test_long_messages_both_ways_at_once_arrive_in_order(pair):
  rng = np.random.default_rng(0)
  messages = [rng.bytes(n) for n in (3_000_000, 0, 5, 700_000)]
  for message in messages:
    for links in pair:
      links.send(1 - links.rank, message)
  for links in pair:
    assert [links.receive(1 - links.rank) for _ in messages] == messages
    assert links.sent_bytes == sum(map(len, messages)) + 28 * len(messages)


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


def test_one_that_sends_a_byte_now_and_then_is_named_at_the_deadline():
  """It is never silent for as long as the timeout."""
  a, b = socket.socketpair()
  links = SocketLinks(0, [None, a], ['me', 'there'], Patience(0.6, 1.0))
  sender = threading.Thread(target=lambda: [(b.send(b'x'), time.sleep(0.1)) for _ in range(20)])
  sender.start()
  begin = time.monotonic()
  with pytest.raises(ConnectionError, match=r'nothing came from worker 1 \(there\): it was not done after 1 s, the dead'
                                            r'line \(message 1 from it\)'):
    links.receive(1)
  assert 0.9 < time.monotonic() - begin < 2
  sender.join()
  links.close()
  b.close()


def test_one_that_takes_nothing_is_named():
  a, b = socket.socketpair()
  links = SocketLinks(0, [None, a], ['me', 'there'], Patience(0.3, 1.0))
  with pytest.raises(ConnectionError, match=r'worker 1 \(there\) does not take .*0.3 s of silence'):
    for _ in range(50):
      links.send(1, bytes(1_000_000))
      time.sleep(0.05)
  links.close()
  b.close()


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
