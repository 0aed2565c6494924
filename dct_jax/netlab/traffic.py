"""Traffic that shows what a lab's links carry: `check` runs this file on every host and reads what it prints.

It imports the standard library alone, so that many hosts on few cores start at once. Bulk data is never copied:
it is sent from a file in memory and thrown away unread, because links are to be measured and not processors.

    python traffic.py '{"addresses": ["10.77.0.1", ...], "seconds": 2, "message": 16384}'
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
import time

PORT = 5077
CHUNK = 1 << 20
WARM_UP = 0.7  # seconds in which TCP finds the rate of a link
TIMES = 12  # that a message is sent; the fastest counts, as busy processors only add to it
PAUSE = 0.02  # seconds before a message, in which links rest


class Host:
  """This host's place among the others, and its connections to the neighbours."""

  def __init__(self, rank: int, addresses: list[str]):
    self.rank, self.count, self._addresses = rank, len(addresses), addresses
    self._server = socket.create_server((addresses[rank], PORT), backlog=2 * self.count)
    self._waiting: dict[tuple[int, int], socket.socket] = {}
    self.next, self.previous = (rank + 1) % self.count, (rank - 1) % self.count
    self._right, self._left = self.call(self.next, 0), self.answer(self.previous, 0)

  def call(self, peer: int, purpose: int) -> socket.socket:
    """Connects to another host, which answers with the same purpose."""
    while True:
      try:
        connection = _prepared(socket.create_connection((self._addresses[peer], PORT)))
        break
      except ConnectionRefusedError:
        time.sleep(0.02)  # it has not started yet
    connection.sendall(bytes([self.rank, purpose]))
    return connection

  def answer(self, peer: int, purpose: int) -> socket.socket:
    """Takes the connection that another host makes for a purpose."""
    while (peer, purpose) not in self._waiting:
      connection = _prepared(self._server.accept()[0])
      rank, what = _exactly(connection, 2)
      self._waiting[rank, what] = connection
    return self._waiting.pop((peer, purpose))

  def meet(self) -> float:
    """Waits for all hosts. They go on together, at the time that is returned, when links have had a rest."""
    if self.rank:
      self._right.sendall(_exactly(self._left, 8))  # all are there
      start = _exactly(self._left, 8)
      self._right.sendall(start)
    else:
      arrived = time.monotonic()
      self._right.sendall(bytes(8))
      _exactly(self._left, 8)
      now = time.monotonic()
      start = struct.pack('d', now + PAUSE + 2 * (now - arrived))  # everybody knows it by then
      self._right.sendall(start)
      _exactly(self._left, 8)
    begin: float = struct.unpack('d', start)[0]
    time.sleep(max(0.0, begin - time.monotonic()))
    return begin


def _prepared(connection):
  connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
  return connection


def _exactly(connection, count):
  parts = bytearray()
  while len(parts) < count:
    part = connection.recv(count - len(parts))
    if not part:
      raise ConnectionError('another host has ended')
    parts += part
  return bytes(parts)


def messages(host: Host, size: int) -> dict[str, float]:
  """Seconds that a message takes from host 0 to 1, and half of those there and back; links rest in between."""
  host.meet()
  if host.rank > 1:
    return {}
  peer = host.call(1, 1) if host.rank == 0 else host.answer(0, 1)
  body = bytes(size - 8)
  one_way: list[float] = []
  both_ways: list[float] = []
  for _ in range(TIMES):
    if host.rank == 0:
      time.sleep(PAUSE)
      start = time.monotonic()  # hosts of a lab have one clock
      peer.sendall(struct.pack('d', start) + body)
      one_way += struct.unpack('d', _exactly(peer, 8))
      time.sleep(PAUSE)
      start = time.monotonic()
      peer.sendall(struct.pack('d', start) + body)
      _exactly(peer, size)
      both_ways.append((time.monotonic() - start) / 2)
    else:
      sent = struct.unpack('d', _exactly(peer, size)[:8])[0]
      peer.sendall(struct.pack('d', time.monotonic() - sent))
      peer.sendall(_exactly(peer, size))
  peer.close()
  return {'one_way': min(one_way), 'there_and_back': min(both_ways)} if one_way else {}


def gather(host: Host, size: int) -> dict[str, float]:
  """Seconds until host 0 has a message of every other one, all sent at once."""
  host.meet()
  if host.rank:
    peers = [host.call(0, 2)]
  else:
    peers = [host.answer(i, 2) for i in range(1, host.count)]
  times = []
  for _ in range(TIMES):
    start = host.meet()
    if host.rank:
      peers[0].sendall(bytes(size))
    else:
      for peer in peers:
        _exactly(peer, size)
      times.append(time.monotonic() - start)
  for peer in peers:
    peer.close()
  return {'gather': min(times)} if times else {}


def bulk(host: Host, purpose: int, sends: bool, receives: bool, seconds: float) -> float | None:
  """Bits a second that arrive from the previous host while this one sends to the next, or None."""
  host.meet()
  to = host.call(host.next, purpose) if sends else None
  source = host.answer(host.previous, purpose) if receives else None
  host.meet()
  sender = threading.Thread(target=_pour, args=(to,)) if to else None
  if sender:
    sender.start()
  rate = _drain(source, seconds) if source else None
  if sender:
    sender.join()
  return rate


def _pour(connection):
  """Sends until the receiver has had enough, and hangs up."""
  memory = os.memfd_create('traffic')
  os.truncate(memory, CHUNK)
  try:
    while os.sendfile(connection.fileno(), memory, 0, CHUNK):
      pass
  except ConnectionError:
    pass
  finally:
    os.close(memory)
    connection.close()


def _drain(connection, seconds):
  """Bits a second after the warm-up; from arrival to arrival, so that their size does not matter."""
  buffer = bytearray(CHUNK)
  now = time.monotonic()
  begin, end = now + WARM_UP, now + WARM_UP + seconds
  first, count = 0.0, 0
  while now < end:
    size = connection.recv_into(buffer, CHUNK, socket.MSG_TRUNC)
    if not size:
      raise ConnectionError('another host has ended')
    now = time.monotonic()
    if first:
      count += size
    elif now >= begin:
      first = now
  # What is still on its way is thrown away, so that the next measurement does not meet it.
  connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
  connection.close()
  return 8 * count / (now - first)


def _ticks():
  """(all, idle) of all processors."""
  with open('/proc/stat') as file:
    ticks = [int(x) for x in file.readline().split()[1:9]]
  return sum(ticks), ticks[3] + ticks[4]


def main() -> None:
  settings = json.loads(sys.argv[1])
  seconds, size = settings['seconds'], settings['message']
  host = Host(int(os.environ['DCT_JAX_PROCESS_ID']), settings['addresses'])
  found: dict[str, float | None] = {**messages(host, size), **gather(host, size)}
  found['flow'] = bulk(host, 3, host.rank == 0, host.rank == 1, seconds)
  before = _ticks()
  found['ring'] = bulk(host, 4, True, True, seconds)
  after = _ticks()
  found['busy'] = 1 - (after[1] - before[1]) / max(1, after[0] - before[0])
  host.meet()
  print('TRAFFIC ' + json.dumps(found), flush=True)


if __name__ == '__main__':
  main()
