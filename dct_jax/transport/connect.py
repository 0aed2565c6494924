"""Who is connected to whom: a TCP connection between any two workers of a mesh axis."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from dct_jax import native

ADDRESS = 64  # bytes that an address may take


class Traffic(NamedTuple):
  """What this worker's channels have moved so far."""

  exchanges: int
  sent_bytes: int
  received_bytes: int
  seconds: float  # in exchanges, waiting for others included


class Transport:
  """This process's way to the other workers of one mesh axis; made by `connect`.

  Every collective that uses it opens a channel of its own, a set of connections, so that exchanges that
  run at the same time do not mix. All processes open theirs in the same order, as they run the same
  program. An exchange fails when a worker is gone at once, and after `timeout` seconds of silence
  otherwise; the program ends with an error that names the worker.

  Attributes:
    rank: number of this worker on the axis.
    size: number of workers.
  """

  def __init__(self, rank: int, size: int, dial: Callable[[], tuple[list[int], list[str]]], timeout: float):
    if not timeout > 0:  # NaN included
      raise ValueError(f'timeout must be positive, got {timeout=}')
    self.rank, self.size, self._timeout = rank, size, timeout
    self._dial, self._channels = dial, []  # type: ignore[var-annotated]

  def dial(self) -> tuple[list[int], list[str]]:
    """New connections, and who is at their other ends, by worker; -1 for this one. All must do so together."""
    return self._dial()

  def open(self) -> int:
    """Opens a channel; all workers must do so together. Returns its number in this process."""
    sockets, names = self.dial()
    self._channels.append(native.module().open_channel(self.rank, sockets, names, float(self._timeout)))
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
    for channel in self._channels:
      native.module().close_channel(channel)
    self._channels = []

  def __enter__(self) -> Transport:
    return self

  def __exit__(self, *unused) -> None:
    self.close()


def connect(mesh: Mesh, axis_name: str = 'data', *, timeout: float = 60.0,
            host: str | None = None) -> Transport:
  """Prepares connections between the workers of a mesh axis; every process must call it.

  Args:
    mesh: from `make_mesh`, one device a process.
    axis_name: axis of the workers.
    timeout: seconds of silence after which a worker counts as gone.
    host: address at which others reach this process; unless given, the one from which it reaches the
      coordinator.

  Returns:
    A `Transport` for `all_gather`, `sparse_all_reduce` and the others.

  Raises:
    ValueError: for an unknown axis, or a mesh with several devices a process.
    RuntimeError: without the native kernels.
  """
  native.module()
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
  own_host = host or _own_address()
  return Transport(rank, len(members), lambda: _dial(rank, members, own_host, timeout), timeout)


def local_group(size: int, timeout: float = 60.0) -> list[Transport]:
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

  return [Transport(i, size, lambda i=i: dial(i), timeout) for i in range(size)]  # type: ignore[misc]


def _own_address() -> str:
  coordinator = os.environ.get('DCT_JAX_COORDINATOR', '').rpartition(':')[0].strip('[]')
  try:
    family, _, _, _, to = socket.getaddrinfo(coordinator or socket.gethostname(), 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
      probe.connect(to)  # sends nothing; it only asks the routing table
      return probe.getsockname()[0]
  except OSError:
    return '127.0.0.1'


def _dial(rank, members, host, timeout):
  """One connection to every member: we call those before us, those after us call."""
  family = socket.AF_INET6 if ':' in host else socket.AF_INET
  with socket.socket(family, socket.SOCK_STREAM) as listener:
    listener.bind((host, 0))
    listener.listen(len(members))
    listener.settimeout(timeout)
    addresses = _share(f'{host} {listener.getsockname()[1]}')
    names = [addresses[m].replace(' ', ':') for m in members]
    sockets = [-1] * len(members)
    for other in range(rank):
      to, port = addresses[members[other]].split()
      call = socket.create_connection((to, int(port)), timeout)
      call.sendall(rank.to_bytes(4, 'little'))
      sockets[other] = call.detach()
    for _ in range(rank + 1, len(members)):
      call, _ = listener.accept()
      call.settimeout(timeout)
      caller = int.from_bytes(_exactly(call, 4), 'little')
      sockets[caller] = call.detach()
  return sockets, names


def _exactly(call, count):
  data = b''
  while len(data) < count:
    more = call.recv(count - len(data))
    if not more:
      raise ConnectionError('a worker closed its connection while it was made')
    data += more
  return data


def _share(text):
  """Every process's text, by its number."""
  mine = np.frombuffer(text.encode().ljust(ADDRESS), np.uint8)
  if mine.size != ADDRESS:
    raise ValueError(f'an address must have at most {ADDRESS} characters, got {text=}')
  rows = np.asarray(multihost_utils.process_allgather(mine)).reshape(-1, ADDRESS)
  return [row.tobytes().decode().strip() for row in rows]
