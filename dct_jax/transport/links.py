"""Messages from one worker to another, from Python: bytes of any length, in order, sent in the background."""

from __future__ import annotations

import queue
import socket
import struct
import threading
from collections.abc import Sequence

from jax.sharding import Mesh

from dct_jax.transport.connect import Transport, connect

HEAD = struct.Struct('<Q')  # length


class Links:
  """One worker's ways to the other workers of a mesh axis.

  Attributes:
    rank: number of this worker on the axis.
    size: number of workers.
    sent_bytes: so far, heads included.
  """

  def __init__(self, rank: int, size: int):
    self.rank, self.size, self.sent_bytes = rank, size, 0

  def send(self, peer: int, message: bytes) -> None:
    """Returns at once; the message must not change any more."""
    self.sent_bytes += HEAD.size + len(message)
    self._put(peer, message)

  def receive(self, peer: int) -> bytes:
    """The oldest message of a worker that was not received yet; waits for it."""
    raise NotImplementedError

  def waiting(self, peer: int) -> bool:
    """Whether `receive` would not have to wait."""
    raise NotImplementedError

  def tell(self, message: bytes) -> None:
    """Sends a message to all others."""
    for peer in range(self.size):
      if peer != self.rank:
        self.send(peer, message)

  def hear(self, message: bytes) -> list[bytes]:
    """Every worker's message, by its number, when all have told theirs; `message` is our own."""
    return [message if peer == self.rank else self.receive(peer) for peer in range(self.size)]

  def close(self) -> None:
    """Ends it; others that wait for us learn of it."""

  def _put(self, peer, message):
    raise NotImplementedError


class SocketLinks(Links):
  """Between processes, over TCP.

  A message goes out on a thread of its worker's own: two workers that have much to tell each other would both
  wait for the other to listen otherwise.
  """

  def __init__(self, rank: int, sockets: Sequence[socket.socket | None], names: Sequence[str], timeout: float):
    super().__init__(rank, len(sockets))
    self._sockets, self._names = list(sockets), list(names)
    self._failed: str | None = None
    self._queues: list[queue.SimpleQueue] = [queue.SimpleQueue() for _ in sockets]
    self._threads = []
    for peer, call in enumerate(sockets):
      if call is not None:
        call.settimeout(timeout)
        call.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._threads.append(threading.Thread(target=self._serve, args=(peer,), daemon=True))
        self._threads[-1].start()

  def _put(self, peer, message):
    if self._failed:
      raise ConnectionError(self._failed)
    self._queues[peer].put(message)

  def _serve(self, peer):
    while (message := self._queues[peer].get()) is not None:
      try:
        self._sockets[peer].sendall(HEAD.pack(len(message)) + message)
      except OSError as error:
        self._failed = f'worker {peer} ({self._names[peer]}) does not take messages any more: {error}'
        return

  def receive(self, peer):
    (length,) = HEAD.unpack(self._exactly(peer, HEAD.size))
    return bytes(self._exactly(peer, length))

  def waiting(self, peer):
    return True  # the only worker of its process may as well wait

  def _exactly(self, peer, count):
    data = bytearray(count)
    view, done = memoryview(data), 0
    who = f'worker {peer} ({self._names[peer]})'
    while done < count:
      try:
        more = self._sockets[peer].recv_into(view[done:])
      except OSError as error:
        raise ConnectionError(f'nothing came from {who}: {error or type(error).__name__}') from error
      if not more:
        raise ConnectionError(f'{who} is gone: it has closed its connection')
      done += more
    return data

  def close(self):
    for messages in self._queues:
      messages.put(None)
    for thread in self._threads:
      thread.join(timeout=5)
    for call in self._sockets:
      if call is not None:
        call.close()


class LocalLinks(Links):
  """Between workers of one process, which take turns."""

  def __init__(self, rank: int, mail: dict):
    super().__init__(rank, max(to for _, to in mail) + 1 if mail else 1)
    self._mail = mail

  def _put(self, peer, message):
    self._mail[self.rank, peer].append(message)

  def receive(self, peer):
    if not self.waiting(peer):
      raise RuntimeError(f'workers of one process take turns, and worker {peer} has sent nothing yet')
    return self._mail[peer, self.rank].pop(0)

  def waiting(self, peer):
    return bool(self._mail[peer, self.rank])


def local_links(size: int) -> list[Links]:
  """Links of all workers of an axis, in one process."""
  mail: dict[tuple[int, int], list[bytes]] = {(i, j): [] for i in range(size) for j in range(size)}
  return [LocalLinks(i, mail) for i in range(size)]


def open_links(mesh: Mesh, axis_name: str, *, timeout: float = 60.0, host: str | None = None) -> Links:
  """This process's links along an axis of a mesh with one device a process; every process must call it."""
  transport: Transport = connect(mesh, axis_name, timeout=timeout, host=host)
  numbers, names = transport.dial()
  sockets = [None if n < 0 else socket.socket(fileno=n) for n in numbers]
  return SocketLinks(transport.rank, sockets, names, timeout)
