"""A lab of several hosts on one machine, as a context manager."""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TextIO

from dct_jax.netlab import check, namespaces
from dct_jax.netlab.check import Check
from dct_jax.netlab.namespaces import Counters, Link
from dct_jax.train.launch import Elastic, launch


class Run(NamedTuple):
  """What a program in the lab came to."""

  code: int  # as `launch` returns it
  counters: tuple[Counters, ...] | None  # by host, of this run alone; None on loopback


class Lab:
  """Hosts joined by a bridge, every link shaped both ways with tc.

  Without root or tc it says what is missing and runs the same programs on the loopback interface.

  Args:
    hosts: how many.
    rate: of every link in each direction, in tc's words ('100mbit'); None does not shape.
    delay: one way ('1ms').
    loss: share of lost packets ('0.1%').
    burst: bytes that may pass at once after a rest, beside one piece; 50 microseconds' worth unless given.
    pin: give every host cores of its own, as real hosts have; with more hosts than cores, several hosts share
      one core. Otherwise the scheduler moves them about, and steps in lock-step wait for the unluckiest.
    quiet: do not say what is missing.
    check: measure what links deliver when the lab is built, and whenever they are reshaped; say so if it is less
      than 90% of the rate. It takes 8 seconds.

  Examples:
    with Lab(4, rate='100mbit', delay='1ms') as lab:
      run = lab.run(['python', 'train.py'])
      print(run.counters[0].sent_bytes)
  """

  def __init__(self, hosts: int, *, rate: str | None = None, delay: str | None = None,
               loss: str | None = None, burst: str | None = None, pin: bool = True, quiet: bool = False,
               check: bool = False):
    if hosts < 1 or hosts > 250:
      raise ValueError(f'hosts must be between 1 and 250, got {hosts=}')
    if rate is not None:
      namespaces.bits_per_second(rate)
    self.hosts = hosts
    self.link = Link(rate, delay, loss, burst)
    self.pin = pin and shutil.which('taskset') is not None
    self._checks = check
    self._ports = itertools.count(7777)  # each run has another: the last one's connections may linger
    self._missing = namespaces.missing()
    if self._missing and not quiet:
      print(f'no network lab here: {self._missing} is missing; the loopback interface is used instead, '
            'which is not shaped', file=sys.stderr)

  @property
  def shaped(self) -> bool:
    """Whether this is a lab; if not, programs run on the loopback interface."""
    return self._missing is None

  def __enter__(self) -> Lab:
    if self.shaped:
      atexit.register(namespaces.remove)
      try:
        namespaces.build(self.hosts, self.link)
        self._check_if_asked()
      except BaseException:
        self.close()
        raise
    return self

  def __exit__(self, *unused) -> None:
    self.close()

  def close(self) -> None:
    """Removes everything; again does nothing."""
    if self.shaped:
      namespaces.remove()
      atexit.unregister(namespaces.remove)

  def reshape(self, **changes: str | None) -> None:
    """Changes rate, delay, loss or burst of all links of a lab in use."""
    self.link = self.link._replace(**changes)
    if self.shaped:
      namespaces.reshape(self.hosts, self.link)
      self._check_if_asked()

  def check(self, seconds: float = 2.0) -> Check | None:
    """Measures what links deliver; None without a rate, without a second host, or on loopback.

    Args:
      seconds: for which all hosts send, and before that one alone.

    Raises:
      RuntimeError: if it cannot be measured.
    """
    if not self.shaped or self.link.rate is None or self.hosts < 2:
      return None
    return check.check(self.run, [namespaces.address(i) for i in range(self.hosts)],
                       namespaces.bits_per_second(self.link.rate), seconds)

  def _check_if_asked(self):
    found = self.check() if self._checks else None
    wrong = check.warning(found) if found else None
    if wrong:
      print(f'warning: {wrong}', file=sys.stderr)

  def counters(self) -> tuple[Counters, ...] | None:
    """What every host's interface has counted so far."""
    return tuple(namespaces.counters(i) for i in range(self.hosts)) if self.shaped else None

  def run(self, argv: Sequence[str], *, timeout: float | None = None,
          environment: Mapping[str, str] | None = None, output: TextIO | None = None,
          failures: Elastic | None = None, started: Callable[[dict[int, int]], None] = lambda pids: None) -> Run:
    """Runs a program on every host; they find each other through `dct_jax.train.start`. Arguments are `launch`'s."""
    more: dict[str, Any] = {'timeout': timeout, 'environment': environment, 'output': output, 'failures': failures,
                            'started': started}
    if not self.shaped:
      return Run(launch(argv, self.hosts, prefix=self._pinned, **more), None)
    before = self.counters()
    code = launch(
        argv, self.hosts, **more, coordinator=lambda i: f'{namespaces.address(i)}:{next(self._ports)}',
        prefix=lambda i: ('ip', 'netns', 'exec', namespaces.host_name(i), *self._pinned(i)))
    after = self.counters()
    assert before is not None and after is not None
    return Run(code, tuple(Counters(*(a - b for a, b in zip(x, y, strict=True)))
                           for x, y in zip(after, before, strict=True)))

  def _pinned(self, host):
    if not self.pin:
      return ()
    cores = ','.join(map(str, cores_of(host, self.hosts, sorted(os.sched_getaffinity(0)))))
    return ('taskset', '-c', cores)


def cores_of(host: int, hosts: int, cores: Sequence[int]) -> Sequence[int]:
  """A host's share of the machine: equal numbers of cores, or one core that several hosts share."""
  share = len(cores) // hosts
  return cores[host * share:(host + 1) * share] if share else [cores[host % len(cores)]]


def end_on_sigterm() -> None:
  """Turns SIGTERM into an exception, so that a lab is torn down on the way out."""
  signal.signal(signal.SIGTERM, signal.default_int_handler)
