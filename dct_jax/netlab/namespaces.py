"""Network namespaces joined by a bridge, every link shaped both ways. Linux, root, iproute2.

Nothing outside the lab is touched: the bridge lives in a namespace of its own, and no host of the lab has a
way out.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import socket
import subprocess
from typing import NamedTuple

from dct_jax.wire.units import bits_per_second

PREFIX = 'dctlab'
ETC = pathlib.Path('/etc/netns')  # `ip netns exec` mounts what it finds here over /etc
NETWORK = '10.77.0'
FRAME, PAYLOAD = 1514, 1448  # bytes of a full packet on the line, and what TCP carries in it
BUCKET = 50e-6  # seconds of line time that a link may make up for when a timer is late
PIECE = 200e-6  # seconds of line time that a host may hand to a link in one piece
FAST = 500e6  # bits a second from which on pieces are whole (64 KB), as two cores have no time for smaller ones
WHOLE = 65_535  # packets


class Link(NamedTuple):
  """How every link behaves, in each direction; in the words of tc."""

  rate: str | None = None  # '100mbit'; None does not shape
  delay: str | None = None  # '1ms', one way
  loss: str | None = None  # '0.1%'
  burst: str | None = None  # bytes that may go at once after a rest; small, or small messages look too fast


def missing() -> str | None:
  """What keeps this machine from having a lab, or None."""
  for tool in ('ip', 'tc'):
    if shutil.which(tool) is None:
      return f"the command '{tool}' (Debian's package iproute2)"
  if os.geteuid() != 0:
    return 'the rights of root'
  try:
    _run('ip', 'netns', 'add', f'{PREFIX}-{os.getpid()}-probe')
    _run('ip', 'netns', 'delete', f'{PREFIX}-{os.getpid()}-probe')
  except RuntimeError as error:
    return f'the right to make network namespaces ({error})'
  return None


def _run(*command: str) -> str:
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  if done.returncode:
    raise RuntimeError(f'{" ".join(command)}: {done.stderr.strip() or done.returncode}')
  return done.stdout


def host_name(index: int) -> str:
  return f'{PREFIX}-{os.getpid()}-{index}'


def address(index: int) -> str:
  return f'{NETWORK}.{index + 1}'


def _switch_name() -> str:
  return f'{PREFIX}-{os.getpid()}-switch'


def build(hosts: int, link: Link) -> None:
  """Makes the namespaces, the bridge and the links."""
  remove_abandoned()
  switch = _switch_name()
  _run('ip', 'netns', 'add', switch)
  _run('ip', '-n', switch, 'link', 'add', 'bridge', 'type', 'bridge')
  _run('ip', '-n', switch, 'link', 'set', 'bridge', 'up')
  for i in range(hosts):
    name, port = host_name(i), f'port{i}'
    _run('ip', 'netns', 'add', name)
    _write_hosts_file(name, i)
    _run('ip', '-n', name, 'link', 'add', 'eth0', 'type', 'veth', 'peer', 'name', port, 'netns', switch)
    _run('ip', '-n', switch, 'link', 'set', port, 'master', 'bridge', 'up')
    _run('ip', '-n', name, 'address', 'add', f'{address(i)}/24', 'dev', 'eth0')
    for device in ('lo', 'eth0'):
      _run('ip', '-n', name, 'link', 'set', device, 'up')
    _use_cubic(name, i)
  reshape(hosts, link)


def reshape(hosts: int, link: Link) -> None:
  """Gives all links another rate, delay or loss."""
  for i in range(hosts):
    reshape_one(i, link)


def reshape_one(host: int, link: Link) -> None:
  """Gives one host's link another rate, delay or loss."""
  _shape(host_name(host), 'eth0', link)  # what the host sends
  _shape(_switch_name(), f'port{host}', link)  # what it receives


def plug(host: int, there: bool) -> None:
  """Cuts a host's link, or mends it."""
  _run('ip', '-n', _switch_name(), 'link', 'set', f'port{host}', 'up' if there else 'down')


def _shape(namespace, device, link):
  """Shapes what leaves a device.

  A link must carry its rate although the kernel's timers are late and every packet passes two shapers, and yet
  no small message may run ahead of the line. HTB serves both best (docs/lab.md has what else was tried). It
  lets a piece go when its bucket is not empty and charges it afterwards, so that the bucket may be much smaller
  than a piece. A token bucket filter must hold the largest piece (64 KB), which is then a free start after every
  rest; or it cuts pieces into packets, which costs more than two cores have at 1 Gbit. After a rest a link
  forwards the bucket and one piece at once; what follows takes its time.
  """
  tc = ('tc', '-n', namespace)
  subprocess.run((*tc, 'qdisc', 'delete', 'dev', device, 'root'), capture_output=True, check=False)
  _run('ip', '-n', namespace, 'link', 'set', 'dev', device, 'gso_max_segs', str(_piece(link.rate)))
  parent: tuple[str, ...] = ('root',)
  if link.rate:
    bucket = link.burst or str(max(1, int(BUCKET * bits_per_second(link.rate) / 8)))
    _run(*tc, 'qdisc', 'add', 'dev', device, 'root', 'handle', '1:', 'htb', 'default', '1')
    _run(*tc, 'class', 'add', 'dev', device, 'parent', '1:', 'classid', '1:1', 'htb', 'rate', link.rate,
         'burst', bucket, 'cburst', bucket, 'quantum', str(FRAME))
    parent = ('parent', '1:1')
  if link.delay or link.loss:
    options = [*(('delay', link.delay) if link.delay else ()), *(('loss', link.loss) if link.loss else ())]
    try:
      _run(*tc, 'qdisc', 'add', 'dev', device, *parent, 'handle', '10:', 'netem', *options, 'limit', '100000')
    except RuntimeError as error:
      if 'unknown' not in str(error):
        raise
      raise RuntimeError('this kernel cannot delay or lose packets (module sch_netem is missing); '
                         f'leave out delay={link.delay!r} and loss={link.loss!r}') from error
  elif link.rate:
    # The queue holds a second of traffic: the lab shows a slow network, not a lossy one.
    queue = min(max(int(bits_per_second(link.rate) / 8), 64_000), 2**31)  # tc has 32 bits for it
    _run(*tc, 'qdisc', 'add', 'dev', device, *parent, 'handle', '10:', 'bfifo', 'limit', str(queue))


def _piece(rate):
  """Packets that TCP may hand over as one: few on slow links, which is exact, many on fast ones, which is cheap."""
  if rate is None or bits_per_second(rate) >= FAST:
    return WHOLE
  return max(1, round(PIECE * bits_per_second(rate) / 8 / PAYLOAD))


def _write_hosts_file(name, index):
  """Transports bind to what the machine's own name resolves to, so that must be the lab's address."""
  (ETC / name).mkdir(parents=True, exist_ok=True)
  (ETC / name / 'hosts').write_text(f'127.0.0.1 localhost\n{address(index)} {socket.gethostname()}\n')


def _use_cubic(name, index):
  """Gives all programs of the lab Linux's usual congestion control; where there is none, the machine's own.

  BBR, some machines' default, paces a connection by what it got lately, and its users would be measured against
  programs that ask for another one. The namespace may not choose its default, but a route may.
  """
  try:
    _run('ip', '-n', name, 'route', 'change', f'{NETWORK}.0/24', 'dev', 'eth0', 'proto', 'kernel', 'scope', 'link',
         'src', address(index), 'congctl', 'cubic')
  except RuntimeError:
    pass


class Counters(NamedTuple):
  """What the operating system counted on a host's interface since it was made.

  It takes the packets that TCP hands over as one piece for one packet, with one head.
  """

  sent_bytes: int
  received_bytes: int
  sent_packets: int


def counters(index: int) -> Counters:
  (device,) = json.loads(_run('ip', '-n', host_name(index), '-j', '-s', 'link', 'show', 'eth0'))
  sent, received = device['stats64']['tx'], device['stats64']['rx']
  return Counters(sent['bytes'], received['bytes'], sent['packets'])


def remove(owner: int | None = None) -> None:
  """Removes all that a process's labs left; this process's unless another is named."""
  mine = f'{PREFIX}-{owner or os.getpid()}-'
  for name in _existing():
    if name.startswith(mine):
      for pid in _run('ip', 'netns', 'pids', name).split():
        try:
          os.kill(int(pid), 9)
        except ProcessLookupError:
          continue
      subprocess.run(('ip', 'netns', 'delete', name), capture_output=True, check=False)
      shutil.rmtree(ETC / name, ignore_errors=True)


def remove_abandoned() -> None:
  """Removes labs whose process is gone: even a killed one leaves nothing for long."""
  for owner in {name.split('-')[1] for name in _existing()}:
    if owner.isdigit() and not pathlib.Path('/proc', owner).exists():
      remove(int(owner))


def _existing():
  lines = _run('ip', 'netns', 'list').splitlines()
  return [line.split()[0] for line in lines if line.startswith(f'{PREFIX}-')]
