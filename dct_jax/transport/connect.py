"""Who is connected to whom: a TCP connection between any two workers of a mesh axis."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import secrets
import socket
import ssl
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from dct_jax import native
from dct_jax.transport import addresses, door
from dct_jax.transport.tls import Relay, Tls

ADDRESS, SECRET = 64, 32  # bytes that an address may take, and those of a worker's share of the token
TIMEOUT, DEADLINE = 60.0, 600.0
UNCHECKED = 'DCT_JAX_FRAME_CRC'  # set to 0, channels that are opened then do without checksums: only to measure these


class Traffic(NamedTuple):
  """What this worker's channels have moved so far."""

  exchanges: int
  sent_bytes: int
  received_bytes: int
  seconds: float  # in exchanges, waiting for others included


class Patience(NamedTuple):
  """Seconds after which a worker counts as gone.

  Attributes:
    timeout: in which nothing came, or was taken.
    deadline: since an exchange began, whatever came.
  """

  timeout: float = TIMEOUT
  deadline: float = DEADLINE

  def check(self) -> Patience:
    """Itself, or a ValueError."""
    for name, seconds in self._asdict().items():
      if not seconds > 0:  # NaN included
        raise ValueError(f'{name} must be positive, got {name}={seconds}')
    return self


class Transport:
  """This process's way to the other workers of one mesh axis; made by `connect`.

  Every collective that uses it opens a channel of its own, a set of connections, so that exchanges that
  run at the same time do not mix. All processes open theirs in the same order, as they run the same
  program. An exchange fails when a worker is gone at once, after `timeout` seconds of silence, and when it takes
  longer than `deadline` seconds; the program ends with a jax.errors.JaxRuntimeError (a ValueError where JAX calls
  the program from C++), which names the worker and the exchange. Channels are closed when nobody has the transport,
  or what was made with it, any more.

  Attributes:
    rank: number of this worker on the axis.
    size: number of workers.
  """

  def __init__(self, rank: int, size: int, dial: Callable[[], tuple[list[int], list[str]]], patience: Patience):
    self.rank, self.size, self._patience = rank, size, patience.check()
    self._dial, self._channels = dial, []  # type: ignore[var-annotated]
    weakref.finalize(self, _close_all, self._channels).atexit = False  # type: ignore[misc]

  def dial(self) -> tuple[list[int], list[str]]:
    """New connections, and who is at their other ends, by worker; -1 for this one. All must do so together.

    Raises:
      ConnectionError: if a worker cannot be reached, or does not come, within the timeout.
    """
    return self._dial()

  def open(self) -> int:
    """Opens a channel; all workers must do so together. Returns its number in this process.

    Raises:
      ConnectionError: as `dial`.
    """
    checked = os.environ.get(UNCHECKED) != '0'
    if not checked:
      warnings.warn(f'frames of this channel are not checked, because {UNCHECKED}=0', RuntimeWarning, stacklevel=2)
    sockets, names = self.dial()
    timeout, deadline = map(float, self._patience)
    self._channels.append(native.module().open_channel(self.rank, sockets, names, timeout, deadline, checked))
    return self._channels[-1]

  def traffic(self) -> Traffic:
    """The sum over this transport's channels."""
    each = [native.module().traffic(c) for c in self._channels]
    return Traffic(*(sum(column) for column in zip(*each, strict=True))) if each else Traffic(0, 0, 0, 0.0)

  def timeline(self) -> list[list[tuple[str, float]]]:
    """The latest events of each channel, with their times on the clock of `time.perf_counter`.

    `'s'`: an exchange was started in the background; `'('` and `')'`: a round of one began and ended.
    """
    return [native.module().timeline(c) for c in self._channels]

  def close(self) -> None:
    """Closes all channels; the others notice. Again does nothing."""
    _close_all(self._channels)

  def __enter__(self) -> Transport:
    return self

  def __exit__(self, *unused) -> None:
    self.close()


def _close_all(channels):
  while channels:
    native.module().close_channel(channels.pop())


def connect(mesh: Mesh, axis_name: str = 'data', *, timeout: float = TIMEOUT, deadline: float = DEADLINE,
            host: str | None = None, tls: Tls | None = None) -> Transport:
  """Prepares connections between the workers of a mesh axis; every process must call it.

  Args:
    mesh: from `make_mesh`, one device a process.
    axis_name: axis of the workers.
    timeout: seconds of silence after which a worker counts as gone.
    deadline: seconds after which a worker that has not finished its part of an exchange counts as gone, whatever
      came from it; more than the largest exchange takes on this network.
    host: address at which others reach this process; unless given, that of the interface that `train.start` was
      told (or DCT_JAX_INTERFACE), or the one from which this process reaches the coordinator.
    tls: certificates for connections that are encrypted, as all workers must have them; unless given, those of the
      directory that `train.start` was told (or DCT_JAX_TLS), if there is one.

  Returns:
    A `Transport` for `all_gather`, `sparse_all_reduce` and the others.

  Raises:
    ValueError: for an unknown axis or interface, a mesh with several devices a process, or times that are not positive.
    RuntimeError: without the native kernels.
    OSError: if certificates cannot be read.
  """
  native.module()
  patience = Patience(timeout, deadline).check()
  if axis_name not in mesh.shape:
    raise ValueError(f'the mesh has axes {tuple(mesh.shape)}, got {axis_name=}')
  owners = np.vectorize(lambda d: d.process_index, otypes=[int])(mesh.devices)
  if len(set(owners.flat)) != owners.size:
    raise ValueError('a transport connects processes with one device each, got a mesh with several devices '
                     f'of one process: {owners.tolist()}; without a transport collectives run on XLA')
  here = np.argwhere(owners == jax.process_index())
  if not len(here):
    raise ValueError(f'process {jax.process_index()} has no device in the mesh, got {mesh=}')
  line = list(here[0])
  axis = mesh.axis_names.index(axis_name)
  rank, line[axis] = int(here[0][axis]), slice(None)
  members = [int(p) for p in owners[tuple(line)]]
  directory = addresses.told('tls')
  tls = tls or (Tls.of(directory) if directory else None)
  contexts = None if tls is None else (tls.context(server=True), tls.context(server=False))
  own_host = host or addresses.own_address()
  dial = functools.partial(_dial, rank, members, own_host, timeout, contexts)
  return Transport(rank, len(members), dial, patience)


def local_group(size: int, timeout: float = TIMEOUT, deadline: float = DEADLINE) -> list[Transport]:
  """Connected transports of `size` threads of this process, for trying things out and for tests."""
  opened: list[dict[tuple[int, int], int]] = []
  counts = [0] * size

  def dial(rank):
    turn, counts[rank] = counts[rank], counts[rank] + 1
    if turn == len(opened):
      pairs = {(i, j): socket.socketpair() for i in range(size) for j in range(i)}
      both = [end for (i, j), (a, b) in pairs.items() for end in [((i, j), a), ((j, i), b)]]
      opened.append({key: end.detach() for key, end in both})
    return [opened[turn].get((rank, j), -1) for j in range(size)], [f'thread {j}' for j in range(size)]

  patience = Patience(timeout, deadline)
  return [Transport(i, size, functools.partial(dial, i), patience) for i in range(size)]


def _dial(rank: int, members: Sequence[int], host: str, timeout: float,
          contexts: tuple[ssl.SSLContext, ssl.SSLContext] | None) -> tuple[list[int], list[str]]:
  """One connection to every member: we call those before us, those after us call."""
  serve, call = contexts or (None, None)
  until = time.monotonic() + timeout
  calls: dict[int, socket.socket] = {}

  def allow(number):
    if not rank < number < len(members):
      return f'no worker {number} has to call worker {rank}'
    return f'worker {number} is there already' if number in calls else ''

  try:
    with door.Door((host, 0), b'', rank, context=serve, allow=allow) as entrance:
      found, entrance.token = _share(f'{host} {entrance.address[1]}')
      where = [found[m].split() for m in members]
      names = [':'.join(w) for w in where]
      until = time.monotonic() + timeout  # from here on all are there
      for other in range(rank):
        with _blamed(f'worker {other} ({names[other]})'):
          to = where[other][0], int(where[other][1])
          calls[other] = door.enter(to, entrance.token, rank, other, until=until, context=call)
      while len(calls) < len(members) - 1:
        missing = next(i for i in range(rank + 1, len(members)) if i not in calls)
        with _blamed(f'worker {missing} ({names[missing]}) has not connected within {timeout:g} s'):
          caller = entrance.next(until)
        if caller.number in calls:  # both proved themselves at the same moment
          caller.call.close()
          continue
        calls[caller.number] = caller.call
  except BaseException:
    for one in calls.values():
      one.close()
    raise
  return _descriptors(calls, len(members), contexts is not None), names


def _descriptors(calls, size, encrypted):
  order = sorted(calls)
  ends = Relay([calls[i] for i in order]).ends if encrypted and order else [calls[i] for i in order]
  sockets = [-1] * size
  for i, end in zip(order, ends, strict=True):
    end.setblocking(True)
    sockets[i] = end.detach()
  return sockets


@contextlib.contextmanager
def _blamed(who):
  try:
    yield
  except OSError as error:
    raise ConnectionError(f'{who} {error}'.replace(' ; ', '; ')) from error


def _share(text: str) -> tuple[list[str], bytes]:
  """Every process's text, by its number; and a token that nobody else can know, made of all their random numbers.

  Both go through JAX's own collective, the first exchange between processes that the coordinator has brought together.
  """
  address = text.encode().ljust(ADDRESS)
  if len(address) != ADDRESS:
    raise ValueError(f'an address must have at most {ADDRESS} characters, got {text=}')
  mine = np.frombuffer(address + secrets.token_bytes(SECRET), np.uint8)
  rows = np.asarray(multihost_utils.process_allgather(mine)).reshape(-1, ADDRESS + SECRET)
  token = hashlib.sha256(b'token of a channel' + rows[:, ADDRESS:].tobytes()).digest()
  return [row[:ADDRESS].tobytes().decode(errors='replace').strip() for row in rows], token
