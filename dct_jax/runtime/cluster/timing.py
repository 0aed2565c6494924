"""Costs for the clock of virtual time, from a real run of one net: the clock can then tell of other fleets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from dct_jax.partition import Plan
from dct_jax.partition.tasks import tasks_of
from dct_jax.runtime import virtual
from dct_jax.runtime.clock import Hardware
from dct_jax.runtime.cluster.driver import ClusterRun
from dct_jax.runtime.fleet import Fleet

BATCHES = 10
STEPS = 20


def seconds_of(plan: Plan, run: ClusterRun, hardware: Hardware) -> dict[tuple[str, int], float]:
  """Seconds of every task, messages included.

  Nodes tell how long rounds take them. What a batch of a single net takes beyond these is spent on messages: writing,
  waking, reading. It is dealt out evenly, half of a message to either end.

  Args:
    plan: of the program.
    run: of one trainer with one net.
    hardware: that it ran on, for the clock.
  """
  batch = 1 / run.batches_per_second()
  message = _least(lambda m: one_net(plan, with_messages(plan, run.spent, m), hardware) >= batch, 0.0, batch)
  return with_messages(plan, run.spent, message)


def crowded(plan: Plan, run: ClusterRun, fleet: Fleet, hardware: Hardware,
            seconds: Mapping[tuple[str, int], float]) -> Hardware:
  """The hardware with what it costs that cores are busy at the same time, from a run of several nets on one host.

  Args:
    plan: of the program.
    run: of the fleet.
    fleet: with nets enough for all cores.
    hardware: that it ran on, for the clock.
    seconds: of tasks, from `seconds_of`.
  """
  with_factor = lambda f: dataclasses.replace(hardware, crowded=f)
  tick = lambda f: virtual.tick(plan, fleet, with_factor(f), 10 * BATCHES, seconds=seconds)
  slow_enough = lambda f: 10 * BATCHES / tick(f).seconds <= run.batches_per_second()
  return with_factor(_least(slow_enough, 1.0, float(hardware.cores)))


def _least(enough: Callable[[float], bool], least: float, most: float) -> float:
  """The smallest number that is enough, between two."""
  for _ in range(STEPS):
    middle = (least + most) / 2
    least, most = (least, middle) if enough(middle) else (middle, most)
  return least


def with_messages(plan: Plan, spent: Mapping[tuple[str, int], float], message: float) -> dict[tuple[str, int], float]:
  """Seconds of tasks, if either end of a message takes so long. A net's next batch is a message, too."""
  found = {}
  for i, task in enumerate(tasks_of(plan, plan.transform(apart=True))):
    count = len(task.sends) + len(task.step.receives) + (2 if i == 0 else 0)
    found[task.node, task.step.round] = spent[task.node, task.step.round] + count * message
  return found


def one_net(plan: Plan, seconds: Mapping[tuple[str, int], float], hardware: Hardware) -> float:
  """Seconds of a batch, by the clock."""
  return virtual.tick(plan, Fleet(), hardware, BATCHES, seconds=seconds).seconds / BATCHES
