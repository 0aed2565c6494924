"""At which address others reach this process."""

from __future__ import annotations

import os
import socket
import struct
from typing import NamedTuple


class Place(NamedTuple):
  """What this process was told when it started; None where nothing was said.

  Attributes:
    coordinator: host:port of process 0.
    interface: name of a network interface, or an address of this host.
    tls: directory with the certificate, its key and the authority (`Tls.of`).
  """

  coordinator: str | None = None
  interface: str | None = None
  tls: str | None = None


_told = Place()


def settle(place: Place) -> None:
  """What the flags say; the environment is asked for the rest."""
  global _told
  _told = place


def told(name: str) -> str | None:
  """One of the attributes of `Place`, from the flags or from DCT_JAX_COORDINATOR and its like."""
  return getattr(_told, name) or os.environ.get(f'DCT_JAX_{name.upper()}') or None


def own_address() -> str:
  """That of the interface that was asked for; otherwise the one from which this host reaches the coordinator.

  Raises:
    ValueError: if there is no such interface.
  """
  if interface := told('interface'):
    return of_interface(interface)
  coordinator = (told('coordinator') or '').rpartition(':')[0].strip('[]')
  try:
    family, _, _, _, to = socket.getaddrinfo(coordinator or socket.gethostname(), 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
      probe.connect(to)  # sends nothing; it only asks the routing table
      return probe.getsockname()[0]
  except OSError:
    return '127.0.0.1'


def of_interface(name: str) -> str:
  """The address of an interface, IPv4 first; an address of this host stands for itself.

  Raises:
    ValueError: if this host has no such interface or address.
  """
  names = [n for _, n in socket.if_nameindex()]
  if name in names:
    if found := _ipv4(name) or _ipv6(name):
      return found
    raise ValueError(f'the interface has no address, got interface={name!r}')
  if is_here(name):
    return name
  raise ValueError(f'interface must be one of {", ".join(names)}, or an address of this host, got interface={name!r}')


def is_here(host: str) -> bool:
  """Whether a host name or address is of this host, so that one can listen there."""
  try:
    family, _, _, _, to = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as probe:
      probe.bind(to)
      return True
  except OSError:
    return False


def listens_for_all(host: str) -> bool:
  """Whether others, too, reach this host by an address that `host` stands for here.

  Some hosts know their own name as 127.0.1.1: who listens there hears nobody else.
  """
  try:
    found = {entry[4][0] for entry in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)}
  except OSError:
    return False
  meant = host == 'localhost' or host in found
  return is_here(host) and (meant or not any(str(a).startswith('127.') or a == '::1' for a in found))


def _ipv4(interface: str) -> str | None:
  import fcntl  # not on every system
  question = struct.pack('256s', interface.encode()[:15])
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
    try:
      return socket.inet_ntoa(fcntl.ioctl(asked, 0x8915, question)[20:24])  # SIOCGIFADDR
    except OSError:
      return None


def _ipv6(interface: str) -> str | None:
  try:
    with open('/proc/net/if_inet6') as file:
      rows = [line.split() for line in file]
  except OSError:
    return None
  for digits, _, _, scope, _, name in rows:
    if name == interface and scope == '00':  # global
      return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
  return None
