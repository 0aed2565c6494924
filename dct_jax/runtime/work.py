"""A batch on its way through the tasks of a plan, in this process: segment by segment, or fused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from dct_jax.partition import Plan
from dct_jax.partition.feedback import EdgeBuffer, EdgeFeedback
from dct_jax.partition.graph import BATCH, LOSS, UPDATE
from dct_jax.partition.placement import TRAINER
from dct_jax.partition.programs import Program, RoundStep
from dct_jax.partition.segments import Segment
from dct_jax.partition.simulate import Node
from dct_jax.partition.tasks import Task

Slots = dict[int, jax.Array]
Buffers = dict[str, dict[int, EdgeBuffer]]


class Work:
  """A batch under way.

  Attributes:
    snapshots: node -> slots as they were when the batch read them.
    feedback: node -> what it shares between its batches of what their gradients have lost.
  """

  def __init__(self, batch: Slots, feedback: Mapping[str, EdgeFeedback]):
    self.batch, self.feedback = batch, feedback
    self.snapshots: dict[str, Slots] = {}

  def run(self, i: int, store: Slots) -> None:
    """Executes a task; what it updates is changed in the node's store."""
    raise NotImplementedError

  def loss(self) -> jax.Array:
    """The batch's loss, when all tasks are done."""
    raise NotImplementedError


class Plain:
  """Makes work that runs segment by segment, with the bits of `plan.simulate`."""

  def __init__(self, plan: Plan, programs: Mapping[str, Program], tasks: Sequence[Task]):
    self.plan, self.programs, self.tasks = plan, programs, tasks
    self.loss = _loss(plan, programs)

  def __call__(self, batch: Slots, feedback: Mapping[str, EdgeFeedback]) -> Work:
    return _PlainWork(self, batch, feedback)


class _PlainWork(Work):
  def __init__(self, shared: Plain, batch: Slots, feedback: Mapping[str, EdgeFeedback]):
    super().__init__(batch, feedback)
    self.shared = shared
    self.nodes: dict[str, Node] = {}
    self.mail: dict[tuple[str, str, int], Any] = {}

  def run(self, i: int, store: Slots) -> None:
    plan, task = self.shared.plan, self.shared.tasks[i]
    name, step, program = task.node, task.step, self.shared.programs[task.node]
    if name not in self.nodes:
      slots = {**self.snapshots.get(name, store), **self.batch}
      self.nodes[name] = Node(plan.graph, program, {k: slots[k] for k in program.slots}, self.feedback.get(name))
    node = self.nodes[name]
    for peer in step.receives:
      node.receive(step, peer, self.mail.pop((peer, name, step.round)))
    run_segments(plan, program, node, step, lambda: store, lambda _, new: store.update(new))
    for peer in step.sends:
      self.mail[name, peer, step.round + 1] = node.send(step, peer)

  def loss(self) -> jax.Array:
    return self.nodes[TRAINER].known[self.shared.loss]


class Fused:
  """Makes work that is one compiled function up to its updates, and one for each task that updates.

  It equals the other one to rounding, and takes a fraction of its time. But buffers of error feedback are read and
  written when the function is called, at a batch's first update, and not at the time of each message.

  Raises:
    ValueError: if an update needs what another node has updated, as clipping by a global norm does.
  """

  def __init__(self, plan: Plan, programs: Mapping[str, Program], tasks: Sequence[Task]):
    self.plan, self.programs, self.tasks = plan, programs, tasks
    self.told = _loss(plan, programs)
    late = {v for p in programs.values() for t in p.steps for s in t.runs if s.phase == UPDATE for v in s.outputs}
    if any(t.value in late for p in programs.values() for s in p.steps for ts in s.sends.values() for t in ts):
      raise ValueError('updates of one node need those of another, as in clipping by a global norm: use fused=False')
    self.updates = {i: _update(plan, programs[t.node], t) for i, t in enumerate(tasks) if t.writes}
    self.wanted = {(self.tasks[i].node, v) for i, (_, given, _) in self.updates.items() for v in given}
    self.order = [*sorted(self.wanted), (TRAINER, self.told)]
    self.gradients = jax.jit(self._gradients)

  def __call__(self, batch: Slots, feedback: Mapping[str, EdgeFeedback]) -> Work:
    return _FusedWork(self, batch, feedback)

  def _gradients(self, held: dict[str, Slots], batch: Slots, buffers: Buffers) -> tuple[list[jax.Array], Buffers]:
    """Everything that updates read, and the loss; and buffers of feedback after it."""
    period = self.plan.estimate.codec.feedback or 0
    feedback = {name: EdgeFeedback(period, dict(found)) for name, found in buffers.items()}
    slots = lambda name, p: {k: x for k, x in {**held.get(name, {}), **batch}.items() if k in p.slots}
    nodes = {name: Node(self.plan.graph, p, slots(name, p), feedback.get(name)) for name, p in self.programs.items()}
    mail: dict[tuple[str, str, int], Any] = {}
    for name, step in ((t.node, t.step) for t in self.tasks):
      for peer in step.receives:
        nodes[name].receive(step, peer, mail.pop((peer, name, step.round)))
      for segment in (s for s in step.runs if s.phase != UPDATE):
        nodes[name].run_segment(segment)
      for peer in step.sends:
        mail[name, peer, step.round + 1] = nodes[name].send(step, peer)
    return [nodes[name].known[v] for name, v in self.order], {name: f.buffers for name, f in feedback.items()}


class _FusedWork(Work):
  def __init__(self, shared: Fused, batch: Slots, feedback: Mapping[str, EdgeFeedback]):
    super().__init__(batch, feedback)
    self.shared = shared
    self.known: dict[tuple[str, int], jax.Array] = {}

  def run(self, i: int, store: Slots) -> None:
    if i not in self.shared.updates:
      return
    if not self.known:
      old = {name: f.buffers for name, f in self.feedback.items()}
      made, new = self.shared.gradients(self.snapshots, self.batch, old)
      for name, buffers in new.items():
        self.feedback[name].buffers = buffers
      self.known.update(zip(self.shared.order, made, strict=True))
    slots, given, (written, function) = self.shared.updates[i]
    node = self.shared.tasks[i].node
    new = function([store[k] for k in slots], [self.known[node, v] for v in given])
    store.update(zip(written, new, strict=True))

  def loss(self) -> jax.Array:
    return self.known[TRAINER, self.shared.told]


def run_segments(plan: Plan, program: Program, node: Node, step: RoundStep, read: Callable[[], Slots],
                 write: Callable[[Slots, Slots], None]) -> None:
  """Runs the segments of a round where nets share parameters.

  Args:
    plan: of the program.
    program: of the node.
    node: what the batch knows there.
    step: of the program.
    read: the slots as they are now; an update is of these, not of those that the batch read.
    write: takes the slots that were read for an update, and those that it changes.
  """
  for segment in step.runs:
    held = read() if segment.phase == UPDATE else {}
    node.known.update((plan.graph.slots[k].value, x) for k, x in held.items())
    node.run_segment(segment)
    new = {k: node.known[v] for k, v in _written(plan, program, segment)}
    if new:
      write(held, new)


def _loss(plan: Plan, programs: Mapping[str, Program]) -> int:
  """The value of the loss, on the trainer."""
  return next(v for n, v in programs[TRAINER].results if plan.graph.outputs[n].kind == LOSS)


def _written(plan: Plan, program: Program, segment: Segment) -> Iterator[tuple[int, int]]:
  """(slot, value) of what a segment makes for slots."""
  made = set(segment.outputs)
  for number, value in program.results:
    slot = plan.graph.outputs[number].slot
    if slot is not None and value in made:
      yield slot, value


def _update(plan: Plan, program: Program, task: Task):
  """(slots that it reads, values that it reads, (slots that it writes, compiled function))."""
  graph = plan.graph
  runs = [s for s in task.step.runs if s.phase == UPDATE]
  own = {v for s in runs for v in s.outputs}
  reads = list(dict.fromkeys(v for s in runs for v in s.inputs if v not in own and v not in graph.constants))
  slots = [graph.slot_of[v] for v in reads if v in graph.slot_of and graph.slots[graph.slot_of[v]].kind != BATCH]
  given = [v for v in reads if v not in graph.slot_of]
  written = dict(pair for s in runs for pair in _written(plan, program, s))

  def function(held, values):
    node = Node(graph, program, dict(zip(slots, held, strict=True)))
    node.known.update(zip(given, values, strict=True))
    for segment in runs:
      node.run_segment(segment)
    return [node.known[v] for v in written.values()]

  return slots, given, (list(written), jax.jit(function))
