"""Training steps of several configurations in turns, on every host of a lab, with what they move and use."""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Mapping

import jax
import numpy as np
from jax.experimental import multihost_utils
from timing import interface_sent, result_in_lab

from dct_jax import netlab


class Contender:
  """A configuration that takes steps, and what was seen of them.

  Args:
    advance: takes one step, and returns its metrics.
    unmeasured: called before the clock starts, for what is no part of a step (the next batch).
    period: steps after which they repeat themselves, as when only every second one exchanges anything. Their
      mean is what a step takes; a block's counted steps are to be a multiple of it.
  """

  def __init__(self, advance: Callable[..., Mapping], unmeasured: Callable = lambda: (), period: int = 1):
    self._advance, self._unmeasured, self._period = advance, unmeasured, period
    self.times, self.metrics, self.network, self.busy = [], [], [], []

  def step(self, timed: bool) -> None:
    given = self._unmeasured()
    before, used, start = interface_sent(), sum(os.times()[:2]), time.perf_counter()
    metrics = {k: float(v) for k, v in self._advance(*given).items()}  # waits
    if timed:
      self.times.append(time.perf_counter() - start)
      self.busy.append(sum(os.times()[:2]) - used)
      self.metrics.append(metrics)
      self.network.append(interface_sent() - before)

  def mean(self, name: str) -> float:
    return statistics.mean(m.get(name, 0.0) for m in self.metrics)

  def summary(self) -> dict[str, float]:
    """Means over processes, of what each has seen: seconds are medians over steps, or over periods of them."""
    seconds = sum(self.times)
    each = np.reshape(self.times, (-1, self._period)).mean(axis=1)
    seen = np.array([statistics.median(each), sum(self.busy) / seconds, *np.mean(self.network, axis=0),
                     np.sum(self.network, axis=0)[0] / seconds])
    means = np.mean(multihost_utils.process_allgather(seen).reshape(-1, 5), axis=0)
    names = ('seconds', 'busy', 'interface_bytes', 'payload_bytes', 'rate')
    return dict(zip(names, map(float, means), strict=True))


def take_turns(group: Mapping[str, Contender], rounds: int, block: int, warm_up: Callable[[str], int]) -> None:
  """All of them in turns, `block` steps at a time; the first of a block does not count."""
  for name, contender in group.items():
    for _ in range(warm_up(name)):
      contender.step(timed=False)
  for _ in range(rounds):
    for contender in group.values():
      for i in range(block):
        contender.step(timed=i > 0)
      time.sleep(0.2)  # what is still on its way must not meet the next one


def tell(found: Mapping) -> None:
  """Hands the results over to the process that started the lab."""
  if jax.process_index() == 0:
    print('RESULT ' + json.dumps(found), flush=True)


def in_the_lab(script: str, argv: list[str], hosts: int, rates: list[str], show: Callable) -> dict:
  """Runs `script --worker` on all hosts, at one rate after the other; show(rate, results) -> what to keep."""
  command = [sys.executable, str(pathlib.Path(script).resolve()), '--worker', *argv]
  out = {}
  netlab.end_on_sigterm()
  with netlab.Lab(hosts) as lab:
    for rate in rates:
      lab.reshape(rate=rate)
      result = result_in_lab(lab, command)
      stolen = result.pop('stolen')
      out |= show(rate, result) | {f'stolen_{rate}': stolen}
      print(f'  others had {stolen:.0%} of the machine', flush=True)
  return out


def bits(rate: str) -> float:
  """Bits a second of '100mbit', '1gbit'."""
  number = rate.rstrip('abcdefghijklmnopqrstuvwxyz')
  return float(number) * {'kbit': 1e3, 'mbit': 1e6, 'gbit': 1e9}[rate[len(number):]]
