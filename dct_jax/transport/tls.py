"""TLS for channels: connections are encrypted outside of the process, and a thread carries bytes between them and us.

Channels and their C++ code see a plain local socket, and know nothing of it.
"""

from __future__ import annotations

import atexit
import os
import pathlib
import selectors
import socket
import ssl
import threading
import weakref
from collections.abc import Sequence
from typing import NamedTuple

STRETCH = 1 << 18  # bytes under way in each direction


class Tls(NamedTuple):
  """Files in PEM format. All workers show certificates of the same authority.

  Attributes:
    certificate: of this worker.
    key: of the certificate, not encrypted.
    authority: certificate of the authority.
  """

  certificate: str
  key: str
  authority: str

  @classmethod
  def of(cls, directory: str | os.PathLike) -> Tls:
    """Files certificate.pem, key.pem and authority.pem of a directory."""
    return cls(*(str(pathlib.Path(directory) / f'{name}.pem') for name in cls._fields))

  def context(self, server: bool) -> ssl.SSLContext:
    """For either end of a connection: TLS 1.3, and both ends show a certificate.

    Raises:
      OSError: if a file is not there, or is not what it should be.
    """
    # Names in certificates are not compared: workers are known by addresses that a scheduler gave them. Who has a
    # certificate of the authority is one of us, and the token says for which run and rank.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(self.certificate, self.key)
    context.load_verify_locations(self.authority)
    return context


class Relay:
  """Carries bytes between encrypted connections and local sockets, on a thread of its own.

  Args:
    calls: connections; the relay owns them from now on.

  Attributes:
    ends: a local socket for each; what is written there leaves encrypted, what comes is read there.
  """

  def __init__(self, calls: Sequence[ssl.SSLSocket]):
    pairs = [socket.socketpair() for _ in calls]
    self.ends = [ours for ours, _ in pairs]
    self._ending = False
    self._flows = [_Flow(call, inner) for call, (_, inner) in zip(calls, pairs, strict=True)]
    self._thread = threading.Thread(target=self._serve, name='tls', daemon=True)
    self._thread.start()
    _relays.add(self)

  def _serve(self) -> None:
    with selectors.DefaultSelector() as selector:
      for flow in self._flows:
        flow.register(selector)
      while self._flows:
        ready = {id(key.data): key.data for key, _ in selector.select(0.1 if self._ending else 1.0)}
        for flow in list(ready.values() if ready else self._flows if self._ending else ()):
          flow.move()
          if flow.over or (self._ending and flow.empty):
            self._flows.remove(flow)
            flow.close(selector)
          else:
            flow.register(selector)

  def finish(self, seconds: float = 5.0) -> None:
    """Sends what was written, and ends; the process may end then."""
    self._ending = True
    self._thread.join(seconds)


_relays: weakref.WeakSet[Relay] = weakref.WeakSet()


@atexit.register
def _finish_all() -> None:
  for relay in list(_relays):
    relay.finish()


class _Flow:
  """One connection: what is on its way out, and in."""

  def __init__(self, call: ssl.SSLSocket, inner: socket.socket):
    self._call, self._inner = call, inner
    self._out, self._in = memoryview(b''), memoryview(b'')
    self.over = False  # one end has closed; it is asked again only when all that it had said is on its way
    self._events: list[int | None] = [None, None]
    for end in (call, inner):
      end.setblocking(False)

  @property
  def empty(self) -> bool:
    return not self._out and not self._in

  def move(self) -> None:
    """All that can be done now without waiting."""
    try:
      while self._turn():
        pass
    except OSError:
      self.over = True

  def _turn(self) -> bool:
    before = len(self._out), len(self._in), self.over
    moved = 0
    if not self._out and not self.over:
      self._out = self._read(self._inner)
    if not self._in and not self.over:
      self._in = self._read(self._call)
    if self._out:
      sent = self._write(self._call, self._out)
      self._out, moved = self._out[sent:], moved + sent
    if self._in:
      sent = self._write(self._inner, self._in)
      self._in, moved = self._in[sent:], moved + sent
    return bool(moved) or before != (len(self._out), len(self._in), self.over)

  def _read(self, end) -> memoryview:
    try:
      data = end.recv(STRETCH)
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
      return memoryview(b'')
    self.over |= not data
    return memoryview(data)

  def _write(self, end, data) -> int:
    try:
      return end.send(data)
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
      return 0

  def register(self, selector: selectors.BaseSelector) -> None:
    """Waits for what can happen next."""
    read, write = selectors.EVENT_READ, selectors.EVENT_WRITE
    wanted = [(0 if self._in or self.over else read) | (write if self._out else 0),
              (0 if self._out or self.over else read) | (write if self._in else 0)]
    for i, end in enumerate((self._call, self._inner)):
      if wanted[i] == (self._events[i] or 0):
        continue
      if not self._events[i]:
        selector.register(end, wanted[i], self)
      elif wanted[i]:
        selector.modify(end, wanted[i], self)
      else:
        selector.unregister(end)
      self._events[i] = wanted[i]

  def close(self, selector: selectors.BaseSelector) -> None:
    for events, end in zip(self._events, (self._call, self._inner), strict=True):
      if events:
        selector.unregister(end)
      end.close()
