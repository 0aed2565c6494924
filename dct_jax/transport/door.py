"""Who may come in: both ends of a new connection prove that they know the run's token, before anything else.

A door lets callers in that do, and turns all others away, whatever they send, and however slowly. The proof is written
down in docs/security.md.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import hmac
import secrets
import select
import selectors
import socket
import ssl
import struct
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from absl import logging

HELLO = struct.Struct('<8sII32s')  # who calls whom, and a number that was never used before
MAGIC = b'dct_jax\1'  # the last byte is the version of what follows
NONCE, PROOF, WELCOME = 32, hashlib.sha256().digest_size, b'\1'
PATIENCE = 10.0  # seconds in which one connection must have proved itself
VISITORS = 128  # that may be about to; beyond, the oldest goes
Steps = Generator[int, None, Any]  # what a conversation waits for, and in the end its result


class Stranger(ConnectionError):
  """A connection to one that does not belong to the run."""


class Caller(NamedTuple):
  """One that was let in."""

  number: int
  call: socket.socket


class Door:
  """Listens at an address, and lets in whoever knows the token.

  Args:
    address: host and port; port 0 is any that is free.
    token: of the run.
    number: of this worker; callers must mean it.
    context: for TLS; None for connections that are not encrypted.
    allow: a caller's number -> why it must not come in, or nothing.

  Attributes:
    address: where it listens.
    turned_away: connections that did not prove themselves.
  """

  def __init__(self, address: tuple[str, int], token: bytes, number: int = 0, *, context: ssl.SSLContext | None = None,
               allow: Callable[[int], str] = lambda number: ''):
    family = socket.AF_INET6 if ':' in address[0] else socket.AF_INET
    self._listener = socket.create_server(address, family=family, backlog=1024)
    self._listener.setblocking(False)
    self.address: tuple[str, int] = self._listener.getsockname()[:2]
    self.token, self._number, self._context, self._allow = token, number, context, allow
    self.turned_away, self._last = 0, ''
    self._visitors: dict[int, _Visitor] = {}  # by descriptor, the oldest first
    self._proved: collections.deque[Caller] = collections.deque()
    self._stopped = False
    self._selector = selectors.DefaultSelector()
    self._selector.register(self._listener, selectors.EVENT_READ)

  def next(self, until: float = float('inf')) -> Caller:
    """The next one that has proved itself.

    Raises:
      TimeoutError: if nobody has until then, by the clock of `time.monotonic`.
      ConnectionError: after `stop`.
    """
    while not self._proved:
      now = time.monotonic()
      if now >= until:
        raise TimeoutError(self.strangers())
      for visitor in [v for v in self._visitors.values() if now > v.since + PATIENCE]:
        self._turn_away(visitor, 'it was too slow')
      for key, _ in self._selector.select(min(until - now, 1.0)):
        if key.fileobj is self._listener:
          self._open()
        elif key.fd in self._visitors:
          self._go_on(self._visitors[key.fd])
      if self._stopped:
        raise ConnectionError('the door is closed')
    return self._proved.popleft()

  def strangers(self) -> str:
    """A sentence about those that were turned away; nothing if nobody was."""
    return f'; {self.turned_away} strangers were turned away, the last {self._last}' if self.turned_away else ''

  def _open(self) -> None:
    try:
      call, address = self._listener.accept()
    except BlockingIOError:
      return
    except OSError as error:  # no descriptor is left, for instance
      if self._visitors:
        self._turn_away(next(iter(self._visitors.values())), str(error))
      time.sleep(0.01)
      return
    call.setblocking(False)
    visitor = _Visitor(call.fileno(), str(address[0]), time.monotonic(), self._hear(call), call)
    self._visitors[visitor.number] = visitor
    self._selector.register(visitor.number, selectors.EVENT_READ)
    if len(self._visitors) > VISITORS:
      self._turn_away(next(iter(self._visitors.values())), 'too many came at once')
    self._go_on(visitor)

  def _go_on(self, visitor: _Visitor) -> None:
    if visitor.number not in self._visitors:
      return
    try:
      self._selector.modify(visitor.number, next(visitor.steps))
    except StopIteration as end:
      self._forget(visitor)
      self._proved.append(end.value)
    except (OSError, ValueError) as error:
      self._turn_away(visitor, str(error) or type(error).__name__)

  def _hear(self, call: socket.socket) -> Steps:
    """A caller's proof, and ours."""
    try:
      if self._context is not None:
        call = yield from _encrypt(call, self._context, server_side=True)
      hello = yield from _take(call, HELLO.size)
      magic, caller, called, _ = HELLO.unpack(hello)
      if magic != MAGIC:
        raise Stranger('it speaks another protocol, or another version of ours')
      if called != self._number:
        raise Stranger(f'it called worker {called}')
      said = hello + secrets.token_bytes(NONCE)
      yield from _give(call, said[HELLO.size:] + _proof(self.token, b'called', said))
      if not hmac.compare_digest((yield from _take(call, PROOF)), _proof(self.token, b'caller', said)):
        raise Stranger('it does not know the token')
      if why := self._allow(caller):
        raise Stranger(why)
      yield from _give(call, WELCOME)
      return Caller(caller, call)
    except BaseException:
      call.close()  # perhaps not the one that was accepted, whose descriptor TLS takes over
      raise

  def _turn_away(self, visitor: _Visitor, why: str) -> None:
    self._forget(visitor)
    visitor.steps.close()
    visitor.call.close()
    self.turned_away, self._last = self.turned_away + 1, f'({visitor.name}) because {why}'
    if self.turned_away == 1:
      logging.warning('A connection from %s was turned away: %s.', visitor.name, why)

  def _forget(self, visitor: _Visitor) -> None:
    self._selector.unregister(visitor.number)
    del self._visitors[visitor.number]

  def stop(self) -> None:
    """Makes `next` on another thread end."""
    self._stopped = True
    with contextlib.suppress(OSError):
      self._listener.shutdown(socket.SHUT_RDWR)

  def close(self) -> None:
    """Closes the door; those who are in stay."""
    for visitor in list(self._visitors.values()):
      visitor.steps.close()
      visitor.call.close()
    for caller in self._proved:
      caller.call.close()
    self._visitors.clear()
    self._proved.clear()
    self._selector.close()
    self._listener.close()

  def __enter__(self) -> Door:
    return self

  def __exit__(self, *unused: object) -> None:
    self.close()


class _Visitor(NamedTuple):
  number: int  # descriptor
  name: str
  since: float
  steps: Steps
  call: socket.socket


def enter(address: tuple[str, int], token: bytes, number: int = 0, called: int = 0, *, until: float,
          context: ssl.SSLContext | None = None, again: bool = True) -> socket.socket:
  """A connection to the door at an address, proved both ways.

  Args:
    address: host and port.
    token: of the run.
    number: of this worker.
    called: of the worker that is meant.
    until: by the clock of `time.monotonic`.
    context: for TLS.
    again: whether to try again until then, when it goes wrong.

  Raises:
    ConnectionError: if there is no such door until then.
  """
  pause = 0.02
  while True:
    try:
      return _enter_once(address, token, number, called, min(until, time.monotonic() + PATIENCE), context)
    except (OSError, ValueError) as error:
      if not again or time.monotonic() + pause >= until:
        raise ConnectionError(f'cannot be reached: {error or type(error).__name__}') from error
      time.sleep(pause)
      pause = min(2 * pause, 1.0)


def _enter_once(address, token, number, called, until, context):
  call = socket.create_connection(address, max(0.01, until - time.monotonic()))
  call.setblocking(False)
  steps = _say(call, token, number, called, context)
  try:
    while True:
      wanted = next(steps)
      if not wait_for(call, wanted, until - time.monotonic()):
        raise TimeoutError('it was silent when it should have proved itself')
  except StopIteration as end:
    return end.value
  except BaseException:
    call.close()
    raise


def _say(call, token, number, called, context) -> Steps:
  """The other end of `Door._hear`."""
  plain = call
  if context is not None:
    # What the descriptor belongs to is another object then; whoever waits for it looks at a copy.
    call = yield from _encrypt(socket.socket(fileno=socket.dup(plain.fileno())), context, server_side=False)
  try:
    hello = HELLO.pack(MAGIC, number, called, secrets.token_bytes(NONCE))
    yield from _give(call, hello)
    nonce = yield from _take(call, NONCE)
    said = hello + nonce
    if not hmac.compare_digest((yield from _take(call, PROOF)), _proof(token, b'called', said)):
      raise Stranger('whoever answers there does not know the token')
    yield from _give(call, _proof(token, b'caller', said))
    if (yield from _take(call, 1)) != WELCOME:
      raise Stranger('whoever answers there does not let us in')
  except BaseException:
    call.close()
    raise
  if call is not plain:
    plain.close()
  return call


def _proof(token, role, said):
  """Each end proves for its own role, so that nobody can send our own proof back to us."""
  return hmac.digest(token, role + said, 'sha256')


def _encrypt(call, context, server_side) -> Steps:
  wrapped = context.wrap_socket(call, server_side=server_side, do_handshake_on_connect=False)
  try:
    while True:
      try:
        wrapped.do_handshake()
        return wrapped
      except ssl.SSLWantReadError:
        yield selectors.EVENT_READ
      except ssl.SSLWantWriteError:
        yield selectors.EVENT_WRITE
  except BaseException:
    wrapped.close()
    raise


def _take(call, count) -> Steps:
  data = b''
  while len(data) < count:
    try:
      more = call.recv(count - len(data))
    except (BlockingIOError, ssl.SSLWantReadError):
      yield selectors.EVENT_READ
      continue
    if not more:
      raise Stranger('it hung up')
    data += more
  return data


def _give(call, data) -> Steps:
  while data:
    try:
      data = data[call.send(data):]
    except (BlockingIOError, ssl.SSLWantWriteError):
      yield selectors.EVENT_WRITE


def wait_for(call: socket.socket, event: int, seconds: float) -> bool:
  """Whether a socket can be read (or written) within so many seconds."""
  poll = select.poll()
  poll.register(call, select.POLLIN if event == selectors.EVENT_READ else select.POLLOUT)
  return bool(poll.poll(max(0, int(1000 * seconds) + 1)))
