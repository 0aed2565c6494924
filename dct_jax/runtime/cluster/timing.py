"""Costs for the clock of virtual time, from a real run of one net: the clock can then tell of other fleets."""

from __future__ import annotations

from collections.abc import Mapping

from dct_jax.partition import Plan
from dct_jax.partition.tasks import tasks_of
from dct_jax.runtime import virtual
from dct_jax.runtime.clock import Hardware
from dct_jax.runtime.cluster.driver import ClusterRun
from dct_jax.runtime.fleet import Fleet

BATCHES = 10
STEPS = 40


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
  least, most = 0.0, batch
  for _ in range(STEPS):
    middle = (least + most) / 2
    if one_net(plan, with_messages(plan, run.spent, middle), hardware) < batch:
      least = middle
    else:
      most = middle
  return with_messages(plan, run.spent, least)


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
