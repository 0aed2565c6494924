"""Training in virtual time: many nodes in one process, with the asynchrony that they would really have."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tqdm

from dct_jax.partition import Plan
from dct_jax.runtime import staleness
from dct_jax.runtime.clock import DONE, Clock, Hardware
from dct_jax.runtime.fleet import Fleet, check
from dct_jax.runtime.replay import Replay


@dataclasses.dataclass(frozen=True)
class VirtualRun:
  """What came out.

  Attributes:
    seconds: of virtual time.
    batches: that were done.
    losses: of batches, by their number; empty if nothing was executed.
    evaluations: (batches done, what `evaluate` said).
    staleness: node of the plan -> {writes of others between a read and its write: how often}.
    utilization: node -> shares of time that processor and lines were busy; see `Clock.utilization`.
    events: that the clock handled.
    wall_seconds: that this took here.
    model: parameters in the end.
  """

  seconds: float
  batches: int
  losses: np.ndarray
  evaluations: list[tuple[int, Any]]
  staleness: dict[str, dict[int, int]]
  utilization: dict[str, dict[str, float]]
  events: int
  wall_seconds: float
  model: Any = None

  def examples_per_second(self, batch_size: int) -> float:
    """Of virtual time."""
    return self.batches * batch_size / self.seconds

  def mean_staleness(self) -> float:
    """Over all writes of all nodes."""
    return staleness.mean(self.staleness.values()) or 0.0


def tick(plan: Plan, fleet: Fleet, hardware: Hardware, batches: int, *, seed: int = 0,
         seconds: Mapping[tuple[str, int], float] | None = None) -> VirtualRun:
  """The clock alone: nothing is executed.

  Args:
    plan: of a group's program.
    fleet: how many there are of everything.
    hardware: what nodes and lines can do.
    batches: in all, for all trainers together.
    seed: of jitter.
    seconds: (node, round) -> seconds of a task, where they were measured; see `cluster.timing`.
  """
  clock, begin = _clock(plan, fleet, hardware, batches, seed, seconds), time.perf_counter()
  for _ in clock.run():
    pass
  return _run(clock, begin, np.zeros(0), [], None)


def train(plan: Plan, fleet: Fleet, hardware: Hardware, arguments: tuple[Any, Any],
          batch_of: Callable[[int], tuple], batches: int, *, seed: int = 0, fused: bool = True,
          evaluate: Callable[[Any], Any] | None = None, evaluations: int = 1, progress: bool = True) -> VirtualRun:
  """Trains: every program is executed on real data, in the order in which its events happen.

  Args:
    plan: of a group's program.
    fleet: how many there are of everything.
    hardware: what nodes and lines can do.
    arguments: parameters and optimizer state to begin with, as the planned function has them (`plan.split`).
    batch_of: number of a batch -> the rest of the function's arguments.
    batches: in all, for all trainers together.
    seed: of jitter.
    fused: whether a batch is one compiled function; see `runtime.work`.
    evaluate: parameters as the user's function has them -> anything.
    evaluations: how often, the end included.
    progress: whether a bar is shown.

  Raises:
    ValueError: if there are fewer batches than nets, or parameters are on trainers that share a group.
  """
  clock, begin = _clock(plan, fleet, hardware, batches, seed), time.perf_counter()
  slots = {key[:2]: found for key, found in clock.centers.items() if key[2] == 'slots'}
  replay = Replay(plan, clock.tasks, slots, fleet, arguments, batch_of, fused=fused)
  due = {round(batches * (i + 1) / evaluations) for i in range(evaluations)}
  said: list[tuple[int, Any]] = []
  with tqdm.tqdm(total=batches, unit='batch', disable=not progress, leave=False) as bar:
    for event in clock.run():
      replay.handle(event)
      if event.kind == DONE:
        bar.update()
        if evaluate is not None and clock.done in due:
          said.append((clock.done, evaluate(replay.model())))
          due.discard(clock.done)
  losses = np.array([replay.losses[i] for i in range(batches)])
  return _run(clock, begin, losses, said, replay.model())


def _clock(plan: Plan, fleet: Fleet, hardware: Hardware, batches: int, seed: int,
           seconds: Mapping[tuple[str, int], float] | None = None) -> Clock:
  check(plan, fleet, batches)
  return Clock(plan, fleet, hardware, batches, seed, seconds)


def _run(clock: Clock, begin: float, losses: np.ndarray, said: list, model: Any) -> VirtualRun:
  return VirtualRun(clock.now, clock.done, losses, said, {k: dict(v) for k, v in clock.staleness.items()},
             clock.utilization(), clock.events, time.perf_counter() - begin, model)
