"""Questions and answers between nodes, over TCP. Both ends prove that they know the run's token before anything else.

Ray's calls would do, too; `benchmarks/hierarchical.py` measures why tensors do not go that way.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from multiprocessing import connection

from dct_jax.runtime.cluster import messages
from dct_jax.runtime.cluster.messages import ERROR, Head
from dct_jax.transport import door

PATIENCE = 120.0  # seconds of silence after which a node that was asked counts as lost
ATTEMPT = 10.0  # likewise for one that shall prove that it belongs to the run; whoever asked finds out anew where it is
Address = tuple[str, int]


class Desk:
  """Answers questions of other nodes, each connection on a thread of its own.

  Args:
    answer: (head, body) -> a whole message. What it raises is told to whoever asked.
    token: that all nodes of a run share.
    host: address to listen at.

  Attributes:
    address: where others ask.
  """

  def __init__(self, answer: Callable[[Head, memoryview], bytes], token: bytes, host: str = '127.0.0.1'):
    self._answer = answer
    self._door = door.Door((host, 0), token)
    self.address: Address = self._door.address
    self._open: set[socket.socket] = set()
    self._closed = False
    threading.Thread(target=self._accept, name='desk', daemon=True).start()

  def _accept(self) -> None:
    with self._door:
      while not self._closed:
        try:
          wire = self._door.next().call
        except OSError:
          return  # the desk was closed
        try:
          threading.Thread(target=self._serve, args=(wire,), daemon=True).start()
        except RuntimeError:  # no room for one more: whoever asked tries again
          wire.close()

  def _serve(self, wire: socket.socket) -> None:
    self._open.add(wire)
    try:
      wire.setblocking(True)
      _wait_at_most(wire, 0)
      with connection.Connection(os.dup(wire.fileno())) as call:
        while not self._closed:
          call.send_bytes(self._reply(call.recv_bytes(messages.MOST)))
    except (OSError, EOFError):
      pass  # whoever it was is gone
    finally:
      self._open.discard(wire)
      wire.close()

  def _reply(self, message: bytes) -> bytes:
    head, body = messages.part(message)
    try:
      return self._answer(head, body)
    except ConnectionError:
      raise  # hangs up, so that whoever asked begins anew
    except Exception as error:  # all of it is for the one who asked
      return messages.join(Head(ERROR), f'{type(error).__name__}: {error}'.encode())

  def close(self) -> None:
    """Hangs up. Threads that read learn of it, and end."""
    self._closed = True
    self._door.stop()
    for wire in list(self._open):
      with contextlib.suppress(OSError):
        wire.shutdown(socket.SHUT_RDWR)


class Line:
  """A connection to another node's desk, made anew when it is lost.

  Args:
    find: where the desk is now; asked again after a loss, as a node that comes back has another address.
    token: of the run.
    name: of the other node, for errors.
  """

  def __init__(self, find: Callable[[], Address], token: bytes, name: str):
    self._find, self._token, self.name = find, token, name
    self._call: connection.Connection | None = None
    self._asked = False

  def ask(self, message: bytes) -> None:
    """Sends a question; its answer is to be taken before the next one."""
    if self._asked:
      raise RuntimeError(f'{self.name} has been asked and its answer was not taken')
    try:
      if self._call is None:
        self._call = _dial(self._find(), self._token)
      self._call.send_bytes(message)
      self._asked = True
    except (OSError, EOFError) as error:
      self._lost(error)

  def answer(self) -> tuple[Head, memoryview]:
    """Head and body of the answer.

    Raises:
      ConnectionError: if the node is gone, or says nothing for long.
      RuntimeError: if it could not do what was asked.
    """
    try:
      if self._call is None:
        raise ConnectionError('it was not asked')
      head, body = messages.part(self._call.recv_bytes(messages.MOST))
    except (OSError, EOFError) as error:
      self._lost(error)
    self._asked = False
    if head.kind == ERROR:
      raise RuntimeError(f'{self.name} says: {bytes(body).decode(errors="replace")}')
    return head, body

  @property
  def waits(self) -> bool:
    """Whether an answer is still to come."""
    return self._asked

  def _lost(self, error: BaseException) -> None:
    self.close()
    said = f'it said nothing for {PATIENCE:.0f} s' if isinstance(error, BlockingIOError) else error
    raise ConnectionError(f'{self.name} is gone: {said or type(error).__name__}') from error

  def close(self) -> None:
    """Hangs up."""
    if self._call is not None:
      self._call.close()
    self._call, self._asked = None, False


def _dial(address: Address, token: bytes) -> connection.Connection:
  wire = door.enter(address, token, until=time.monotonic() + ATTEMPT, again=False)
  wire.setblocking(True)
  _wait_at_most(wire, PATIENCE)
  return connection.Connection(wire.detach())


def _wait_at_most(wire: socket.socket, seconds: float) -> None:
  """Makes reading an error after so many seconds of silence; 0 for never. Small messages go out at once."""
  wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', int(seconds), int(seconds % 1 * 1e6)))
  wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
