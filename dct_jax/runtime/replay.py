"""What a clock's events do: programs are really executed, on real data, in the order in which they happen.

A snapshot is a reference, as arrays do not change. Fused, all that a batch computes before its updates is one compiled
function, called when its first update is due: what it reads was read at the times that the clock says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from dct_jax.partition import Plan
from dct_jax.partition.graph import BATCH, PARAMETER
from dct_jax.partition.placement import SPARSE
from dct_jax.partition.tasks import Task
from dct_jax.runtime import clock, work
from dct_jax.runtime.cluster import Cluster
from dct_jax.runtime.work import Slots


class Replay:
  """Parameters of all groups, and batches under way.

  Args:
    plan: of a group's program.
    tasks: of the clock.
    centers: (node, dense server) -> slots that the server keeps a copy of.
    cluster: how groups are synchronized.
    arguments: parameters and optimizer state of the planned function; all groups begin with them.
    batch_of: number -> the rest of its arguments.
    fused: whether a batch is one compiled function. Otherwise segments run one by one, with the bits of
      `plan.simulate`.

  Attributes:
    losses: of all batches that are done, by number.
  """

  def __init__(self, plan: Plan, tasks: Sequence[Task], centers: dict[tuple[str, int], list[int]], cluster: Cluster,
               arguments: tuple[Any, Any], batch_of: Callable[[int], tuple], *, fused: bool = True):
    self.plan, self.tasks, self.cluster, self.batch_of, self.centers = plan, tasks, cluster, batch_of, centers
    self.programs = plan.transform(apart=True)
    leaves = jax.tree.leaves(arguments)
    self.kept = [k for k, s in enumerate(plan.graph.slots) if s.kind != BATCH]
    if len(leaves) != len(self.kept):
      raise ValueError(f'this plan has {len(self.kept)} parameters and parts of optimizer state, got {len(leaves)}')
    self.stores: dict[tuple[int, str], Slots] = {}
    for node, program in self.programs.items():
      for group in ([-1] if node.startswith(SPARSE) else range(cluster.groups)):
        self.stores[group, node] = {k: leaves[k] for k in program.slots if k in self.kept}
    self.first = dict(zip(self.kept, leaves, strict=True))
    self.middle: Slots = {k: leaves[k] for slots in centers.values() for k in slots}
    self.velocity: Slots = {}
    self.losses: dict[int, Any] = {}
    self.under_way: dict[int, work.Work] = {}
    self.sent: dict[tuple[int, str, int], Any] = {}
    self.saved = {key: dict(store) for key, store in self.stores.items()}
    make = work.Fused if fused else work.Plain
    self.make = make(plan, self.programs, tasks)

  def handle(self, event: clock.Event) -> None:
    """Does what an event says."""
    getattr(self, f'_{event.kind}')(event)

  def _read(self, event):
    self._of(event).snapshots[event.node] = dict(self.stores[event.group, event.node])

  def _of(self, event) -> work.Work:
    if event.batch not in self.under_way:
      leaves = jax.tree.leaves(self.batch_of(event.batch))
      self.under_way[event.batch] = self.make(dict(enumerate(leaves, len(self.kept))))
    return self.under_way[event.batch]

  def _run(self, event):
    self._of(event).run(event.task, self.stores.get((event.group, event.node), {}))

  def _done(self, event):
    self.losses[event.batch] = self.under_way.pop(event.batch).loss()

  def _lost(self, event):
    self.under_way.pop(event.batch, None)

  def _snapshot(self, event):
    slots = self.centers[event.node, event.batch]
    self.sent[event.group, event.node, event.batch] = [self.stores[event.group, event.node][k] for k in slots]

  def _center(self, event):
    """A dense server has a group's snapshot, and moves the center; or has all groups'."""
    slots, key = self.centers[event.node, event.batch], (event.group, event.node, event.batch)
    middle = [self.middle[k] for k in slots]
    pulls, middle = _elastic(self.sent[key], middle, self.cluster.alpha)
    self.sent[key] = pulls
    self.middle.update(zip(slots, middle, strict=True))

  def _apply(self, event):
    slots, store = self.centers[event.node, event.batch], self.stores[event.group, event.node]
    pulls = self.sent.pop((event.group, event.node, event.batch))
    store.update(zip(slots, _subtract([store[k] for k in slots], pulls), strict=True))

  def _checkpoint(self, event):
    if (event.group, event.node) in self.stores:
      self.saved[event.group, event.node] = dict(self.stores[event.group, event.node])

  def _restore(self, event):
    if (event.group, event.node) in self.stores:
      self.stores[event.group, event.node] = dict(self.saved[event.group, event.node])

  def model(self) -> Any:
    """Parameters that would be served: the center's, tables of sparse servers, and the first group's where it is alone.

    As the user's function has them, if layers are split.
    """
    graph, found = self.plan.graph, dict(self.first)
    for (group, _), store in self.stores.items():
      if group <= 0:
        found.update(store)
    found.update(self.middle)
    leaves = [found[k] for k, s in enumerate(graph.slots) if s.kind == PARAMETER]
    params = jax.tree.unflatten(graph.in_tree.children()[0], leaves)
    return self.plan.join(params)


@jax.jit
def _elastic(xs, middle, alpha):
  pulls = jax.tree.map(lambda x, c: alpha * (x - c), xs, middle)
  return pulls, jax.tree.map(lambda c, d: c + d, middle, pulls)


@jax.jit
def _subtract(xs, pulls):
  return jax.tree.map(lambda x, d: x - d, xs, pulls)
