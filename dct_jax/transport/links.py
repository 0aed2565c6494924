"""Messages from one worker to another, from Python: bytes of any length, in order, sent in the background."""

from __future__ import annotations

import collections
import contextlib
import queue
import selectors
import socket
import struct
import threading
import time
from collections.abc import Sequence

from jax.sharding import Mesh

from dct_jax import native
from dct_jax.transport.connect import DEADLINE, TIMEOUT, Patience, Transport, connect
from dct_jax.transport.door import wait_for
from dct_jax.transport.tls import Tls
from dct_jax.wire.exchanges import FRAME_BYTES, FRAME_HEAD, FRAME_MAGIC, FRAME_TAIL

KIND = 0x114E5  # of frames between two workers
MOST = 1 << 31  # bytes of a message of which nothing is known
STRETCH = 1 << 24  # bytes for which memory is taken before they have come
START, CHECK = struct.Struct('<IIQI'), struct.Struct('<I')


class Links:
  """One worker's ways to the other workers of a mesh axis.

  Attributes:
    rank: number of this worker on the axis.
    size: number of workers.
    sent_bytes: so far, frames included.
  """

  def __init__(self, rank: int, size: int):
    self.rank, self.size, self.sent_bytes = rank, size, 0

  def send(self, peer: int, message: bytes) -> None:
    """Returns at once; the message must not change any more."""
    self.sent_bytes += FRAME_BYTES + len(message)
    self._put(peer, message)

  def receive(self, peer: int, most: int = MOST) -> bytes:
    """The oldest message of a worker that was not received yet; waits for it.

    Args:
      peer: the worker.
      most: bytes that the message may have.

    Raises:
      ConnectionError: if the worker is gone, silent or slow, or has sent what cannot be believed.
    """
    raise NotImplementedError

  def name(self, peer: int) -> str:
    """Of a worker, for errors."""
    return f'worker {peer}'

  def waiting(self, peer: int) -> bool:
    """Whether `receive` would not have to wait."""
    raise NotImplementedError

  def tell(self, message: bytes) -> None:
    """Sends a message to all others."""
    for peer in range(self.size):
      if peer != self.rank:
        self.send(peer, message)

  def hear(self, message: bytes, most: int = MOST) -> list[bytes]:
    """Every worker's message of at most so many bytes, by its number, when all have told theirs; `message` is ours."""
    return [message if peer == self.rank else self.receive(peer, most) for peer in range(self.size)]

  def close(self) -> None:
    """Ends it; others that wait for us learn of it."""

  def _put(self, peer, message):
    raise NotImplementedError


class SocketLinks(Links):
  """Between processes, over TCP, in frames as channels have them.

  A message goes out on a thread of its worker's own: two workers that have much to tell each other would both
  wait for the other to listen otherwise.
  """

  def __init__(self, rank: int, sockets: Sequence[socket.socket | None], names: Sequence[str], patience: Patience):
    super().__init__(rank, len(sockets))
    self._sockets, self._names, self._patience = list(sockets), list(names), patience.check()
    self._failed: str | None = None
    self._queues: list[queue.SimpleQueue] = [queue.SimpleQueue() for _ in sockets]
    self._received: collections.Counter[int] = collections.Counter()  # messages, by worker
    self._threads = []
    for peer, call in enumerate(sockets):
      if call is not None:
        call.setblocking(False)
        if call.family != socket.AF_UNIX:
          call.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._threads.append(threading.Thread(target=self._serve, args=(peer,), daemon=True))
        self._threads[-1].start()

  def name(self, peer):
    return f'worker {peer} ({self._names[peer]})'

  def _put(self, peer, message):
    if self._failed:
      raise ConnectionError(self._failed)
    self._queues[peer].put(message)

  def _serve(self, peer):
    sequence = 0
    while (message := self._queues[peer].get()) is not None:
      try:
        until = time.monotonic() + self._patience.deadline
        for part in _frame(message, sequence):
          self._send(peer, memoryview(part), until)
      except OSError as error:
        self._failed = f'{self.name(peer)} does not take messages any more: {error} (message {sequence + 1} to it)'
        return
      sequence = (sequence + 1) % 2**32

  def _send(self, peer, data, until):
    while len(data):
      try:
        data = data[self._sockets[peer].send(data[:STRETCH]):]
      except BlockingIOError:
        self._wait(peer, selectors.EVENT_WRITE, until)

  def _wait(self, peer, event, until):
    """Until the worker goes on; a TimeoutError says for how long it has not."""
    left = until - time.monotonic()
    if wait_for(self._sockets[peer], event, min(self._patience.timeout, left)):
      return
    if left < self._patience.timeout:
      raise TimeoutError(f'it was not done after {self._patience.deadline:g} s, the deadline')
    raise TimeoutError(f'timed out after {self._patience.timeout:g} s of silence: it is gone or stuck')

  def receive(self, peer, most=MOST):
    until = time.monotonic() + self._patience.deadline
    head = self._exactly(peer, FRAME_HEAD, until)
    length, total = self._check_head(peer, head, most)
    message = self._exactly(peer, length, until)
    total = native.module().crc32c(message, total)
    if CHECK.unpack(self._exactly(peer, FRAME_TAIL, until)) != (total,):
      self._fail(peer, 'sent a frame that was damaged on its way: its checksum is wrong')
    self._received[peer] += 1
    return bytes(message)

  def waiting(self, peer):
    return True  # the only worker of its process may as well wait

  def _check_head(self, peer, head, most):
    """Length of the body, and the checksum of the head, as the body's begins with it."""
    magic, kind, length, sequence = START.unpack_from(head)
    if CHECK.unpack_from(head, START.size)[0] != native.module().crc32c(head[:START.size]):
      self._fail(peer, 'sent a frame that was damaged on its way: the checksum of its head is wrong')
    if magic != FRAME_MAGIC:
      self._fail(peer, "sends frames of another version than this worker's")
    if (kind, sequence) != (KIND, self._received[peer] % 2**32):
      self._fail(peer, 'is in another exchange than this worker; all must run the same program')
    if length > most:
      self._fail(peer, f'sends a frame of {length} bytes where at most {most} make sense')
    return length, native.module().crc32c(head)

  def _fail(self, peer, what):
    self._failed = f'{self.name(peer)} {what} (message {self._received[peer] + 1} from it)'
    for call in self._sockets:  # the others must not wait for us
      if call is not None:
        with contextlib.suppress(OSError):
          call.shutdown(socket.SHUT_RDWR)
    raise ConnectionError(self._failed)

  def _exactly(self, peer, count, until):
    data = bytearray()
    while len(data) < count:  # a peer must send what it says before we take more memory for it
      data += self._stretch(peer, min(STRETCH, count - len(data)), until)
    return data

  def _stretch(self, peer, count, until):
    data = bytearray(count)
    view, done = memoryview(data), 0
    while done < count:
      try:
        more = self._sockets[peer].recv_into(view[done:])
      except BlockingIOError:
        try:
          self._wait(peer, selectors.EVENT_READ, until)
        except TimeoutError as error:
          raise ConnectionError(f'nothing came from {self.name(peer)}: {error} '
                                f'(message {self._received[peer] + 1} from it)') from error
        continue
      except OSError as error:
        raise ConnectionError(f'nothing came from {self.name(peer)}: {error or type(error).__name__}') from error
      if not more:
        raise ConnectionError(f'{self.name(peer)} is gone: it has closed its connection')
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


def _frame(message, sequence):
  """Head, message and tail."""
  start = START.pack(FRAME_MAGIC, KIND, len(message), sequence)
  head = start + CHECK.pack(native.module().crc32c(start))
  return head, message, CHECK.pack(native.module().crc32c(message, native.module().crc32c(head)))


class LocalLinks(Links):
  """Between workers of one process, which take turns."""

  def __init__(self, rank: int, mail: dict):
    super().__init__(rank, max(to for _, to in mail) + 1 if mail else 1)
    self._mail = mail

  def _put(self, peer, message):
    self._mail[self.rank, peer].append(message)

  def receive(self, peer, most=MOST):
    if not self.waiting(peer):
      raise RuntimeError(f'workers of one process take turns, and worker {peer} has sent nothing yet')
    message = self._mail[peer, self.rank].pop(0)
    if len(message) > most:
      raise ConnectionError(f'{self.name(peer)} sends {len(message)} bytes where at most {most} make sense')
    return message

  def waiting(self, peer):
    return bool(self._mail[peer, self.rank])


def local_links(size: int) -> list[Links]:
  """Links of all workers of an axis, in one process."""
  mail: dict[tuple[int, int], list[bytes]] = {(i, j): [] for i in range(size) for j in range(size)}
  return [LocalLinks(i, mail) for i in range(size)]


def open_links(mesh: Mesh, axis_name: str, *, timeout: float = TIMEOUT, deadline: float = DEADLINE,
               host: str | None = None, tls: Tls | None = None) -> Links:
  """This process's links along an axis of a mesh with one device a process; every process must call it.

  Args and what it raises are those of `connect`, and ConnectionError if a worker does not come.
  """
  transport: Transport = connect(mesh, axis_name, timeout=timeout, deadline=deadline, host=host, tls=tls)
  numbers, names = transport.dial()
  sockets = [None if n < 0 else socket.socket(fileno=n) for n in numbers]
  return SocketLinks(transport.rank, sockets, names, Patience(timeout, deadline))
