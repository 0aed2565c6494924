"""What a clock's events do: programs are really executed, on real data, in the order in which they happen.

A snapshot is a reference, as arrays do not change. Fused, all that a batch computes before its updates is one compiled
function, called when its first update is due: what it reads was read at the times that the clock says.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from dct_jax.partition import Plan
from dct_jax.partition.feedback import EdgeFeedback
from dct_jax.partition.graph import BATCH, PARAMETER
from dct_jax.partition.placement import SPARSE, TRAINER
from dct_jax.partition.tasks import Task
from dct_jax.runtime import clock, work
from dct_jax.runtime.fleet import Fleet
from dct_jax.runtime.work import Slots


class Replay:
  """Parameters of all groups, and batches under way.

  Args:
    plan: of a group's program.
    tasks: of the clock.
    centers: (node, dense server) -> slots that the server keeps a copy of.
    fleet: how groups are synchronized.
    arguments: parameters and optimizer state of the planned function; all groups begin with them.
    batch_of: number -> the rest of its arguments.
    fused: whether a batch is one compiled function. Otherwise segments run one by one, with the bits of
      `plan.simulate`.

  Attributes:
    losses: of all batches that are done, by number.
  """

  def __init__(self, plan: Plan, tasks: Sequence[Task], centers: dict[tuple[str, int], list[int]], fleet: Fleet,
               arguments: tuple[Any, Any], batch_of: Callable[[int], tuple], *, fused: bool = True):
    self.plan, self.tasks, self.fleet, self.batch_of, self.centers = plan, tasks, fleet, batch_of, centers
    self.programs = plan.transform(apart=True)
    leaves = jax.tree.leaves(arguments)
    self.kept = [k for k, s in enumerate(plan.graph.slots) if s.kind != BATCH]
    if len(leaves) != len(self.kept):
      raise ValueError(f'this plan has {len(self.kept)} parameters and parts of optimizer state, got {len(leaves)}')
    self.stores: dict[tuple[int, str], Slots] = {}
    for node, program in self.programs.items():
      for group in ([-1] if node.startswith(SPARSE) else range(fleet.groups)):
        self.stores[group, node] = {k: leaves[k] for k in program.slots if k in self.kept}
    self.first = dict(zip(self.kept, leaves, strict=True))
    self.method = fleet.averaging
    self.middle = {key: self.method.init([leaves[k] for k in slots]) for key, slots in centers.items()}
    self.losses: dict[int, Any] = {}
    self.under_way: dict[int, work.Work] = {}
    self.sent: dict[tuple[int, str, int], list[jax.Array]] = {}  # (group, node, dense server): snapshots
    self.gathered: dict[tuple[str, int], dict[int, list[jax.Array]]] = {}  # those that the server has
    self.answers: dict[tuple[int, str, int], Any] = {}
    self.saved = {key: dict(store) for key, store in self.stores.items()}
    self.exchange, self.apply = jax.jit(self.method.exchange), jax.jit(self.method.apply)
    make = work.Fused if fused else work.Plain
    self.make = make(plan, self.programs, tasks)
    self.feedback = _feedback(plan, fleet)

  def handle(self, event: clock.Event) -> None:
    """Does what an event says."""
    getattr(self, f'_{event.kind}')(event)

  def _begin(self, event):
    leaves = jax.tree.leaves(self.batch_of(event.batch))
    slots = dict(enumerate(leaves, len(self.kept)))
    self.under_way[event.batch] = self.make(slots, self.feedback[event.group, event.task])

  def _read(self, event):
    self.under_way[event.batch].snapshots[event.node] = dict(self.stores[event.group, event.node])

  def _run(self, event):
    self.under_way[event.batch].run(event.task, self.stores.get((event.group, event.node), {}))

  def _again(self, event):
    store = dict(self.stores[event.group, event.node])  # a copy: it was written before
    self.under_way[event.batch].run(event.task, store)

  def _done(self, event):
    self.losses[event.batch] = self.under_way.pop(event.batch).loss()

  def _lost(self, event):
    self.under_way.pop(event.batch, None)

  def _snapshot(self, event):
    slots = self.centers[event.node, event.batch]
    self.sent[event.group, event.node, event.batch] = [self.stores[event.group, event.node][k] for k in slots]

  def _center(self, event):
    """A dense server has a group's snapshot; when it has all that it waits for, it moves the center and answers."""
    where = event.node, event.batch
    waiting = self.gathered.setdefault(where, {})
    waiting[event.group] = self.sent.pop((event.group, *where))
    if len(waiting) == event.task:
      self.middle[where], answers = self.exchange(self.middle[where], list(waiting.values()))
      self.answers.update(((group, *where), a) for group, a in zip(waiting, answers, strict=True))
      del self.gathered[where]

  def _apply(self, event):
    slots, store = self.centers[event.node, event.batch], self.stores[event.group, event.node]
    answer = self.answers.pop((event.group, event.node, event.batch))
    store.update(zip(slots, self.apply([store[k] for k in slots], answer), strict=True))

  def _checkpoint(self, event):
    if (event.group, event.node) in self.stores:
      self.saved[event.group, event.node] = dict(self.stores[event.group, event.node])

  def _restore(self, event):
    if (event.group, event.node) in self.stores:
      self.stores[event.group, event.node] = dict(self.saved[event.group, event.node])
    for (group, _), nodes in self.feedback.items():
      if group == event.group and event.node in nodes:  # it has lost what it had kept of gradients, too
        nodes[event.node].clear()

  def model(self) -> Any:
    """Parameters that would be served: the center's, or the mean of groups where there is none; tables as they are.

    As the user's function has them, if layers are split.
    """
    graph, found = self.plan.graph, dict(self.first)
    for (group, node), store in self.stores.items():
      if group == 0:
        others = [self.stores[g, node] for g in range(self.fleet.groups)]
        found.update((k, _mean([o[k] for o in others])) for k in store if graph.slots[k].kind == PARAMETER)
      elif group < 0:
        found.update(store)
    for where, slots in self.centers.items():
      found.update(zip(slots, self.middle[where].center, strict=False))
    leaves = [found[k] for k, s in enumerate(graph.slots) if s.kind == PARAMETER]
    return self.plan.join(jax.tree.unflatten(graph.in_tree.children()[0], leaves))


def _feedback(plan: Plan, fleet: Fleet) -> dict[tuple[int, int], dict[str, EdgeFeedback]]:
  """(group, trainer) -> buffers of the nodes that its batches go through, which share those of one node."""
  found: dict[tuple[int, int], dict[str, EdgeFeedback]] = {}
  for group, trainer in itertools.product(range(fleet.groups), range(fleet.trainers)):
    own = plan.feedback(jax.random.fold_in(jax.random.key(group), trainer))
    servers, tables = found.get((group, 0), own), found.get((0, 0), own)
    found[group, trainer] = {node: (own if node == TRAINER else tables if node.startswith(SPARSE) else servers)[node]
                             for node in own}
  return found


@jax.jit
def _mean(xs):
  return sum(xs[1:], xs[0]) / len(xs) if len(xs) > 1 else xs[0]
