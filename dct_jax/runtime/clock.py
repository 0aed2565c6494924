"""Virtual time: when every node of a fleet does what, without doing it.

A node is a queue with some cores; a message takes the sender's line, the receiver's, and a latency. Nets of trainers
take batch after batch through the tasks of a plan, and servers are synchronized in the background. What comes out is
every read and write of parameters, in the order in which they happen; `runtime.replay` executes them.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dct_jax.partition import Plan
from dct_jax.partition.graph import nbytes
from dct_jax.partition.placement import DENSE, GROUP, SPARSE, TRAINER
from dct_jax.partition.tasks import Task, tasks_of
from dct_jax.runtime.fleet import Fleet, shares

BEGIN, READ, RUN, AGAIN, DONE, LOST = 'begin', 'read', 'run', 'again', 'done', 'lost'
SNAPSHOT, CENTER, APPLY = 'snapshot', 'center', 'apply'
CHECKPOINT, RESTORE = 'checkpoint', 'restore'
SYNC_PASSES = 3  # over the bytes of parameters, for an update of the center


@dataclasses.dataclass(frozen=True)
class Failure:
  """A node that is lost, and comes back from its last checkpoint.

  Attributes:
    node: 'group0/trainer1', 'group2/group0', 'sparse1' or 'dense0'.
    at: seconds from the beginning.
    down: seconds until it is back.
  """

  node: str
  at: float
  down: float = 1.0


@dataclasses.dataclass(frozen=True)
class Hardware:
  """What nodes and lines can do; a plan's machine says what one core takes for an operator.

  Attributes:
    cores: of a node.
    latency: seconds of a message beside its bytes, whose rate is the plan's.
    jitter: spread of computing times: the standard deviation of their logarithm.
    slow: node -> how many times longer it computes than others (see `Failure` for names).
    sparse: machines that each sparse server of the plan stands for, as tables of a real one are dealt out to many.
    dense: machines that each dense server stands for, likewise.
    one_host: whether all nodes share the cores of one host, and messages do not cross a line.
    crowded: how many times longer a task takes if all other cores of that host are busy when it begins: they share
      caches, memory, and often a processor's arithmetic.
    failures: nodes that are lost.
    checkpoint: seconds between checkpoints of servers; 0 for none but the beginning.
  """

  cores: int = 18
  latency: float = 1e-4
  jitter: float = 0.0
  slow: Mapping[str, float] = dataclasses.field(default_factory=dict)
  sparse: int = 1
  dense: int = 1
  one_host: bool = False
  crowded: float = 1.0
  failures: Sequence[Failure] = ()
  checkpoint: float = 0.0

  def __post_init__(self):
    if min(self.cores, self.sparse, self.dense) < 1 or self.latency < 0 or self.jitter < 0 or self.checkpoint < 0:
      raise ValueError(f'a node has a core or more and is one or more, and no time is below 0, got {self}')
    if not self.crowded >= 1:
      raise ValueError(f'tasks take no less time if other cores are busy, got {self.crowded=}')
    if any(not s > 0 for s in self.slow.values()) or any(f.at < 0 or f.down < 0 for f in self.failures):
      raise ValueError(f'nodes are slower by a factor above 0, and fail at times from 0 on, got {self}')


class Event(NamedTuple):
  """Something that reads or writes parameters, or ends a batch.

  Attributes:
    time: seconds.
    kind: of batches BEGIN (a trainer takes it), READ, RUN (a task has ended), AGAIN (likewise, but its write is there
      already), DONE and LOST; of synchronization SNAPSHOT, CENTER and APPLY; of a server CHECKPOINT and RESTORE.
    group: whose parameters; -1 for those of all groups.
    node: of the plan, as 'group0'.
    batch: its number, or that of a dense server.
    task: its number; of BEGIN that of the trainer.
  """

  time: float
  kind: str
  group: int
  node: str
  batch: int
  task: int


class _Queue:
  """A node: cores that are free, what waits for one, and lines to and from it."""

  __slots__ = ('busy', 'cores', 'free', 'into', 'name', 'out', 'rate', 'received', 'sent', 'slow', 'until', 'waited',
               'waiting', 'work')

  def __init__(self, name: str, cores: int, rate: float, slow: float):
    self.name, self.cores, self.free, self.rate, self.slow = name, cores, cores, rate, slow
    self.waiting: collections.deque = collections.deque()
    self.out = self.into = self.busy = self.waited = self.until = 0.0
    self.sent = self.received = self.work = 0


class _Batch:
  """A batch under way."""

  __slots__ = ('alive', 'began', 'group', 'left', 'net', 'number', 'trainer', 'waits', 'writes')

  def __init__(self, number: int, group: int, trainer: int, net: int, waits: list[int], began: float):
    self.number, self.group, self.trainer, self.net, self.waits, self.began = number, group, trainer, net, waits, began
    self.left, self.alive = len(waits), True
    self.writes: dict[str, int] = {}  # node -> writes that it had seen when this batch read it


class Clock:
  """All that happens until a number of batches is done.

  Args:
    plan: of a group's program.
    fleet: how many there are of everything.
    hardware: what they can do.
    batches: in all.
    seed: of jitter.
    seconds: (node, round) -> seconds of a task, where they were measured; the plan's own estimates are for the rest.

  Attributes:
    now: seconds, after the last event.
    done: batches that have ended.
    events: that were handled.
    centers: (node, dense server, 'slots' or 'bytes') -> what of the node's parameters the server has a copy of.
    staleness: node of the plan -> counts of writes of others between a read and the write that goes with it.
  """

  def __init__(self, plan: Plan, fleet: Fleet, hardware: Hardware, batches: int, seed: int = 0,
               seconds: Mapping[tuple[str, int], float] | None = None):
    self.plan, self.fleet, self.hardware, self.batches = plan, fleet, hardware, batches
    measured = seconds or {}
    self.tasks: tuple[Task, ...] = tuple(
        t._replace(seconds=measured.get((t.node, t.step.round), t.seconds))
        for t in tasks_of(plan, plan.transform(apart=True)))
    self.now, self.done, self.events, self.given = 0.0, 0, 0, 0
    self.staleness: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    self._heap: list = []
    self._order = 0
    self._together = fleet.together
    self._random = np.random.default_rng(seed)
    self._draws: list[float] = []
    self._nodes: dict[str, _Queue] = {}
    self._host = _Queue('host', hardware.cores, 1.0, 1.0) if hardware.one_host else None
    self._waits = [t.waits for t in self.tasks]
    self._writing = [i for i, t in enumerate(self.tasks) if t.writes]
    self._first = [i for i, t in enumerate(self.tasks) if not t.waits]
    self._again: collections.deque[int] = collections.deque()  # batches that were lost
    self._under_way: dict[int, _Batch] = {}
    self._idle: list[tuple[int, int, int]] = []  # nets that wait for slower ones
    self._counts = np.zeros((fleet.groups, fleet.trainers, fleet.nets), int)
    self._writes: collections.Counter = collections.Counter()  # (group, node)
    # (group, node) -> (batch, task) whose writes were applied there, of batches that are not done
    self._applied: dict[tuple[int, str], set[tuple[int, int]]] = collections.defaultdict(set)
    self.centers = _centers(plan, fleet)
    self._gathered: dict[tuple[str, int], list[int]] = {}  # synchronization of all groups at once
    self._places = {(g, t): [self._node(g, t, task.node) for task in self.tasks]
                    for g in range(fleet.groups) for t in range(fleet.trainers)}
    for failure in hardware.failures:
      if failure.node not in self._nodes and not failure.node.startswith(DENSE):
        raise ValueError(f'there is no {failure.node!r} that could fail: {", ".join(sorted(self._nodes))}')

  def _node(self, group: int, trainer: int, name: str) -> _Queue:
    if name == TRAINER:
      name = f'{GROUP}{group}/{TRAINER}{trainer}'
    elif name.startswith(GROUP):
      name = f'{GROUP}{group}/{name}'
    return self._named(name)

  def _named(self, name: str) -> _Queue:
    if name not in self._nodes:
      machines = {SPARSE: self.hardware.sparse, DENSE: self.hardware.dense}.get(name.rstrip('0123456789'), 1)
      rate = machines * self.plan.estimate.machine.rate
      self._nodes[name] = _Queue(name, machines * self.hardware.cores, rate, self.hardware.slow.get(name, 1.0))
    return self._nodes[name]

  def run(self) -> Iterator[Event]:
    """Events in the order of time, until all batches are done."""
    self._begin()
    handle: dict[str, Callable[..., Iterator[Event]]] = {
        'end': self._end, 'arrive': self._arrive, 'sync': self._sync, 'centers': self._center, 'apply': self._apply,
        'fail': self._fail, 'back': self._back, 'checkpoint': self._checkpoint}
    while self._heap and self.done < self.batches:
      self.now, _, kind, *what = heapq.heappop(self._heap)
      self.events += 1
      yield from handle[kind](*what)

  def _begin(self) -> None:
    for failure in self.hardware.failures:
      self._at(failure.at, 'fail', failure)
    if self.hardware.checkpoint:
      self._at(self.hardware.checkpoint, 'checkpoint')
    for node, dense in sorted({key[:2] for key in self.centers}):
      for group in range(self.fleet.groups):
        self._at(self.fleet.gap, 'sync', group, node, dense)
    for group, trainer, net in np.ndindex(*self._counts.shape):
      self._at(0.0, 'arrive', None, (group, trainer, net))

  def _at(self, when: float, kind: str, *what) -> None:
    self._order += 1
    heapq.heappush(self._heap, (when, self._order, kind, *what))

  # A net takes its next batch.

  def _next(self, group: int, trainer: int, net: int) -> Iterator[Event]:
    slack = self.fleet.slack
    if slack is not None and self._counts[group, trainer, net] - self._counts[group].min() > slack:
      self._idle.append((group, trainer, net))
      return
    if self._again:
      number = self._again.popleft()
    elif self.given < self.batches:
      number, self.given = self.given, self.given + 1
    else:
      return
    batch = _Batch(number, group, trainer, net, list(self._waits), self.now)
    self._under_way[number] = batch
    yield Event(self.now, BEGIN, group, TRAINER, number, trainer)
    for i in self._first:
      yield from self._ready(batch, i)

  def _ready(self, batch: _Batch, i: int) -> Iterator[Event]:
    """A task has all that it waits for."""
    yield from self._work(self._places[batch.group, batch.trainer][i], self.tasks[i].seconds, batch, i)

  def _work(self, node: _Queue, seconds: float, batch, i) -> Iterator[Event]:
    cores = self._host or node
    if cores.free and self.now >= node.until:
      cores.free -= 1
      yield from self._start(node, seconds, batch, i)
    else:
      cores.waiting.append((self.now, node, seconds, batch, i))

  def _start(self, node: _Queue, seconds: float, batch, i) -> Iterator[Event]:
    spent = seconds * node.slow * self._jitter() * self._crowding()
    node.busy += spent
    node.work += 1
    if isinstance(batch, _Batch) and self.tasks[i].reads:
      name = self.tasks[i].node
      batch.writes[name] = self._writes[self._scope(batch.group, name), name]
      yield Event(self.now, READ, self._scope(batch.group, name), name, batch.number, i)
    self._at(self.now + spent, 'end', node, batch, i)

  def _crowding(self) -> float:
    """How many times longer a task takes that begins now, with its own core taken already."""
    if self._host is None or self._host.cores == 1:
      return 1.0
    others = self._host.cores - self._host.free - 1
    return 1 + (self.hardware.crowded - 1) * others / (self._host.cores - 1)

  def _jitter(self) -> float:
    if not self.hardware.jitter:
      return 1.0
    if not self._draws:
      self._draws = np.exp(self._random.normal(0, self.hardware.jitter, 4096)).tolist()
    return self._draws.pop()

  def _scope(self, group: int, node: str) -> int:
    return -1 if node.startswith(SPARSE) else group

  def _end(self, node: _Queue, batch, i) -> Iterator[Event]:
    """A core is free again; whoever waits for what was computed gets it."""
    cores = self._host or node
    cores.free += 1
    yield from self._waiting(cores)
    if not isinstance(batch, _Batch):  # an update of a center
      yield from self._synchronized(node, *batch)
      return
    if not batch.alive:
      return
    yield from self._ran(batch, i)
    task = self.tasks[i]
    if task.then is not None:
      yield from self._arrive(batch, task.then)
    for receiver, size in task.sends:
      self._send(node, self._places[batch.group, batch.trainer][receiver], size, 'arrive', batch, receiver)
    batch.left -= 1
    if not batch.left:
      yield from self._finish(batch)

  def _waiting(self, cores: _Queue) -> Iterator[Event]:
    while cores.waiting and cores.free:
      since, node, seconds, batch, i = cores.waiting[0]
      if self.now < node.until:
        return
      cores.waiting.popleft()
      if isinstance(batch, _Batch) and not batch.alive:
        continue
      node.waited += self.now - since
      cores.free -= 1
      yield from self._start(node, seconds, batch, i)

  def _ran(self, batch: _Batch, i: int) -> Iterator[Event]:
    name = self.tasks[i].node
    scope = self._scope(batch.group, name)
    if self.tasks[i].writes:
      if (batch.number, i) in self._applied[scope, name]:
        yield Event(self.now, AGAIN, scope, name, batch.number, i)
        return
      self._applied[scope, name].add((batch.number, i))
      if name in batch.writes:
        self.staleness[name][self._writes[scope, name] - batch.writes[name]] += 1
      self._writes[scope, name] += 1
      batch.writes.pop(name, None)  # its own second write is nobody else's
    yield Event(self.now, RUN, scope, name, batch.number, i)

  def _send(self, sender: _Queue, receiver: _Queue, size: int, kind: str, *what) -> None:
    if self._host:
      self._at(self.now + self.hardware.latency, kind, *what)
      return
    begin = max(self.now, sender.out)
    sender.out = begin + size / sender.rate
    receiver.into = max(sender.out, max(begin, receiver.into) + size / receiver.rate)
    sender.sent += size
    receiver.received += size
    self._at(receiver.into + self.hardware.latency, kind, *what)

  def _arrive(self, batch: _Batch | None, i) -> Iterator[Event]:
    if batch is None:
      yield from self._next(*i)
    elif batch.alive:
      batch.waits[i] -= 1
      if not batch.waits[i]:
        yield from self._ready(batch, i)

  def _finish(self, batch: _Batch) -> Iterator[Event]:
    del self._under_way[batch.number]
    for i in self._writing:
      name = self.tasks[i].node
      self._applied[self._scope(batch.group, name), name].discard((batch.number, i))
    self.done += 1
    self._counts[batch.group, batch.trainer, batch.net] += 1
    yield Event(self.now, DONE, batch.group, TRAINER, batch.number, 0)
    yield from self._next(batch.group, batch.trainer, batch.net)
    idle, self._idle = self._idle, []
    for net in idle:
      yield from self._next(*net)

  # Synchronization in the background: a snapshot goes to a dense server, what it replies is applied to what is there.

  def _sync(self, group: int, node: str, dense: int) -> Iterator[Event]:
    server = self._sender(group, node)
    if self.now < server.until:
      self._at(server.until, 'sync', group, node, dense)
      return
    yield Event(self.now, SNAPSHOT, group, node, dense, 0)
    size = self.centers[node, dense, 'bytes']
    self._send(server, self._named(f'{DENSE}{dense}'), size, 'centers', group, node, dense)

  def _sender(self, group: int, node: str) -> _Queue:
    return self._node(group, 0, node)

  def _center(self, group: int, node: str, dense: int) -> Iterator[Event]:
    waiting = self._gathered.setdefault((node, dense), [])
    waiting.append(group)
    if self._together and len(waiting) < self.fleet.groups:
      return
    groups, self._gathered[node, dense] = tuple(waiting), []
    size = self.centers[node, dense, 'bytes']
    seconds = SYNC_PASSES * len(groups) * size * self.plan.estimate.machine.byte
    yield from self._work(self._named(f'{DENSE}{dense}'), seconds, (groups, node, dense), -1)

  def _synchronized(self, server: _Queue, groups: tuple[int, ...], node: str, dense: int) -> Iterator[Event]:
    for group in groups:
      yield Event(self.now, CENTER, group, node, dense, len(groups))
    for group in groups:
      size = self.centers[node, dense, 'bytes']
      self._send(server, self._sender(group, node), size, 'apply', group, node, dense)

  def _apply(self, group: int, node: str, dense: int) -> Iterator[Event]:
    yield Event(self.now, APPLY, group, node, dense, 0)
    self._at(self.now + self.fleet.gap, 'sync', group, node, dense)

  # Nodes that are lost.

  def _checkpoint(self) -> Iterator[Event]:
    for name in sorted(self._nodes):
      if TRAINER not in name or self._has_parameters(name):
        yield Event(self.now, CHECKPOINT, *self._stored(name), 0, 0)
    self._at(self.now + self.hardware.checkpoint, 'checkpoint')

  def _has_parameters(self, name: str) -> bool:
    return TRAINER in name and any(node == TRAINER for node, *_ in self.centers)

  def _stored(self, name: str) -> tuple[int, str]:
    """Group and node of the plan whose parameters a node has."""
    if '/' not in name:
      return -1, name
    group, node = name.split('/')
    return int(group.removeprefix(GROUP)), TRAINER if node.startswith(TRAINER) else node

  def _fail(self, failure: Failure) -> Iterator[Event]:
    """Batches that the node works for are lost, and tried again; a server's parameters are those of its checkpoint."""
    node = self._named(failure.node)
    node.until = self.now + failure.down
    for batch in list(self._under_way.values()):
      if node in self._places[batch.group, batch.trainer]:
        batch.alive = False
        del self._under_way[batch.number]
        self._again.append(batch.number)
        yield Event(self.now, LOST, batch.group, failure.node, batch.number, 0)
        self._at(max(node.until, self.now), 'arrive', None, (batch.group, batch.trainer, batch.net))
    self._at(node.until, 'back', failure)

  def _back(self, failure: Failure) -> Iterator[Event]:
    group, node = self._stored(failure.node)
    if node != TRAINER or self._has_parameters(failure.node):
      # What was written since the checkpoint is gone there, so that batches that are tried again write it anew.
      self._applied.pop((group, node), None)
      yield Event(self.now, RESTORE, group, node, 0, 0)
    yield from self._waiting(self._host or self._named(failure.node))

  # What was measured.

  def utilization(self) -> dict[str, dict[str, float]]:
    """Node -> shares of time that its cores and lines were busy, and milliseconds that work waited for a core."""
    found = {}
    for name, node in sorted(self._nodes.items()):
      found[name] = {'processor': node.busy / (self.now * node.cores), 'in': node.received / node.rate / self.now,
                     'out': node.sent / node.rate / self.now, 'waiting': 1e3 * node.waited / max(node.work, 1)}
    return found


def _centers(plan: Plan, fleet: Fleet) -> dict:
  """(node, dense server, 'slots' or 'bytes') -> what of the node's parameters that server keeps a copy of."""
  found: dict = {}
  for key, slots in shares(plan, fleet).items():
    found[*key, 'slots'] = slots
    found[*key, 'bytes'] = sum(nbytes(plan.graph.avals[plan.graph.slots[k].value]) for k in slots)
  return found
