"""A plan in words: what every node has to do, what one batch waits for, and why blocks are where they are."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import NamedTuple

from dct_jax.partition.files import splits_of
from dct_jax.partition.graph import PARAMETER, nbytes
from dct_jax.partition.loads import RESOURCES
from dct_jax.partition.plan import Plan
from dct_jax.partition.programs import RoundStep, count_segments, rounds
from dct_jax.partition.tasks import tasks_of
from dct_jax.wire.units import size_text

LATENCY = 1e-4  # seconds of a message, however short
LONGEST = 5  # parts of the critical path that are printed
COMPUTING, SENDING = 'computing', 'sending'


class Row(NamedTuple):
  """What a node has to do for a batch of every trainer.

  Attributes:
    node: its name.
    operators: that it runs.
    weights: bytes of its parameters.
    memory: bytes of weights, the optimizer's state, activations and buffers.
    processor: seconds.
    received, sent: bytes.
    receiving, sending: seconds that the network takes for them.
    share: of the bottleneck's seconds, by the busiest of the three resources.
  """

  node: str
  operators: int
  weights: float
  memory: float
  processor: float
  received: float
  receiving: float
  sent: float
  sending: float
  share: float


def rows(plan: Plan) -> list[Row]:
  """The table of nodes, the trainer first."""
  load, rate = plan.load, plan.estimate.machine.rate
  programs, found = plan.programs, []
  weights = _weights(plan)
  for n, node in enumerate(plan.nodes.names):
    processor, into, out = (float(s) for s in load.seconds[n])
    steps = programs[node].steps if node in programs else ()
    operators = sum(len(segment.operators) for step in steps for segment in step.runs)
    found.append(Row(node, operators, weights[node], float(load.memory[n]), processor, into * rate, into, out * rate,
                     out, max(processor, into, out) / load.bottleneck if load.bottleneck else 0.0))
  return found


def _weights(plan: Plan) -> dict[str, float]:
  held = dict.fromkeys(plan.nodes.names, 0.0)
  for slot, node in zip(plan.graph.slots, plan.placement.slots, strict=True):
    if slot.kind == PARAMETER and node is not None:
      held[node] += nbytes(plan.graph.avals[slot.value])
  return held


def imbalance(plan: Plan) -> float:
  """How much busier the busiest node is than the mean of all nodes; 1 if all are equally busy."""
  busy = plan.load.seconds.max(1)
  return float(busy.max() / busy.mean()) if busy.any() else 1.0


@dataclasses.dataclass(frozen=True)
class Leg:
  """A part of a batch's time: a node computes, or a message is under way.

  Attributes:
    kind: 'computing' or 'sending'.
    where: a node, or 'trainer to group0'.
    what: what most of its time is for, or bytes.
    round: of the programs.
    begin, end: seconds.
    after: the part that this one had to wait for.
  """

  kind: str
  where: str
  what: str
  round: int
  begin: float
  end: float
  after: Leg | None = dataclasses.field(default=None, repr=False, compare=False)


class Path(NamedTuple):
  """The critical path of one batch: parts in order, each of which begins when the one before it lets it.

  Attributes:
    parts: of which none overlaps with the next one.
    computing, sending: seconds of either kind.
  """

  parts: tuple[Leg, ...]
  computing: float
  sending: float

  @property
  def seconds(self) -> float:
    return self.computing + self.sending


def critical_path(plan: Plan, *, latency: float = LATENCY) -> Path:
  """What one batch waits for if it has the group to itself: the longest path through all programs.

  A node's rounds follow each other; a round begins when all of its messages are there. Messages of a node leave one
  after the other, and those to a node arrive one after the other, at the rate of the machine.

  Args:
    plan: of any kind.
    latency: seconds that a message takes beside its bytes.
  """
  clock = _Clock(plan, latency)
  parts = [clock.last]
  while parts[-1].after is not None:
    parts.append(parts[-1].after)
  parts.reverse()
  ends = [p.begin for p in parts[1:]] + [parts[-1].end]
  cut = tuple(dataclasses.replace(p, end=end, after=None) for p, end in zip(parts, ends, strict=True))
  total = lambda kind: sum(p.end - p.begin for p in cut if p.kind == kind)
  return Path(cut, total(COMPUTING), total(SENDING))


class _Clock:
  """When everything happens in one batch.

  Attributes:
    last: the part that ends last.
  """

  def __init__(self, plan: Plan, latency: float):
    self.plan, self.graph, self.latency = plan, plan.graph, latency
    self.seconds = [plan.estimate.machine.seconds(self.graph, op) for op in self.graph.operators]
    self.tasks = tasks_of(plan)
    self.done: dict[str, Leg] = {}  # node -> its round before
    self.lines: dict[tuple[str, str], tuple[float, Leg]] = {}  # ('in' or 'out', node) -> free again, and after what
    self.mail: dict[int, list[Leg]] = {}  # task -> messages that it waits for
    for _, numbers in itertools.groupby(range(len(self.tasks)), lambda i: self.tasks[i].step.round):
      ready = [(self._run(i), i) for i in numbers]
      for part, i in sorted(ready, key=lambda x: x[0].end):
        for peer, size in self.tasks[i].sends:
          self._send(part, peer, size)
    self.last = max(self.done.values(), key=lambda p: p.end)

  def _run(self, i: int) -> Leg:
    task = self.tasks[i]
    waits = [*self.mail.pop(i, ()), *([self.done[task.node]] if task.node in self.done else [])]
    after = max(waits, key=lambda p: p.end, default=None)
    begin = after.end if after else 0.0
    self.done[task.node] = Leg(COMPUTING, task.node, self._mostly(task.step), task.step.round, begin,
                               begin + task.seconds, after)
    return self.done[task.node]

  def _mostly(self, step: RoundStep) -> str:
    """The block that takes most of a round."""
    of, spent = self.plan.blocks.of_operator, dict[str, float]()
    for i in (i for s in step.runs for i in s.operators if i in of):
      key = f'{self.plan.blocks.blocks[of[i]].name} ({self.graph.operators[i].phase})'
      spent[key] = spent.get(key, 0.0) + self.seconds[i]
    return max(spent, key=lambda k: spent[k], default='passes on')

  def _send(self, part: Leg, receiver: int, size: int) -> None:
    peer = self.tasks[receiver].node
    free = [(part.end, part), *(self.lines[line] for line in (('out', part.where), ('in', peer)) if line in self.lines)]
    begin, after = max(free, key=lambda x: x[0])
    end = begin + size / self.plan.estimate.machine.rate
    sent = Leg(SENDING, f'{part.where} to {peer}', size_text(size), part.round, begin, end + self.latency, after)
    self.lines['out', part.where] = self.lines['in', peer] = (end, sent)
    self.mail.setdefault(receiver, []).append(sent)


def explain(plan: Plan, *, latency: float = LATENCY, moves: int = 10, parts: int = LONGEST) -> str:
  """A plan as text: nodes, the bottleneck, the critical path, and how the placement was found.

  Args:
    plan: of any kind.
    latency: seconds that a message takes beside its bytes.
    moves: of the refinement that are printed, at most.
    parts: of the critical path that are printed, the longest ones.
  """
  return '\n\n'.join('\n'.join(lines) for lines in (
      _nodes(plan), list(_findings(plan)), list(_path(critical_path(plan, latency=latency), parts)),
      list(_moves(plan, moves))) if lines)


def _nodes(plan: Plan) -> list[str]:
  heads = ('node', 'operators', 'weights', 'memory', 'processor', 'in', '', 'out', '', 'of bottleneck')
  ms = lambda s: f'{s * 1e3:.2f} ms'
  cells = [heads] + [(r.node, f'{r.operators:,}', size_text(r.weights), size_text(r.memory), ms(r.processor),
                      size_text(r.received), ms(r.receiving), size_text(r.sent), ms(r.sending), f'{r.share:.0%}')
                     for r in rows(plan)]
  widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
  line = lambda row: row[0].ljust(widths[0]) + ''.join(c.rjust(w + 2) for c, w in zip(row[1:], widths[1:], strict=True))
  return [line(row).rstrip() for row in cells]


def _findings(plan: Plan) -> Iterator[str]:
  load, many = plan.load, plan.nodes.trainers
  node, resource = divmod(int(load.seconds.argmax()), len(RESOURCES))
  what = ('processor', 'network, receiving', 'network, sending')[resource]
  of = f' ({many} batches at a time, one of each trainer)' if many > 1 else ''
  yield (f'{plan.nodes.names[node]} is the bottleneck ({what}): {load.bottleneck * 1e3:.2f} ms a batch{of}; '
         f'imbalance {imbalance(plan):.2f} (busiest over mean)')
  for name in plan.idle:
    yield f'{name} is idle: there are fewer parts than servers, split layers or use fewer servers'
  if splits_of(plan):
    yield 'split layers: ' + ', '.join(f'{layer} ({how}, {n} parts)' for layer, (how, n) in splits_of(plan).items())
  segments, compiled = count_segments(plan.programs)
  yield (f'{size_text(load.traffic)} cross for a batch, in {rounds(plan.programs)} rounds; {segments} segments, '
         f'{compiled} to compile')
  if plan.optimal:
    yield 'this is the best placement of these blocks, as far as costs are right'


def _path(path: Path, parts: int) -> Iterator[str]:
  messages = sum(p.kind == SENDING for p in path.parts)
  yield (f'critical path of a batch: {path.seconds * 1e3:.2f} ms, {path.computing * 1e3:.2f} ms of it computing and '
         f'{path.sending * 1e3:.2f} ms in {messages} messages')
  longest = sorted(path.parts, key=lambda p: p.begin - p.end)[:parts]
  if len(path.parts) > parts:
    yield f'  its {len(longest)} longest parts of {len(path.parts)}, in order:'
  for p in sorted(longest, key=lambda p: p.begin):
    yield f'  {(p.end - p.begin) * 1e3:8.2f} ms  round {p.round}, {p.where}: {p.what}'


def _moves(plan: Plan, most: int) -> Iterator[str]:
  if plan.moves:
    count = f'{len(plan.moves)} moves' if len(plan.moves) > 1 else 'one move'
    yield f'{count} after the rules, {plan.moves[0].before * 1e3:.2f} to {plan.moves[-1].after * 1e3:.2f} ms:'
  for move in plan.moves[:most]:
    yield f'  {move.why}'
  if len(plan.moves) > most:
    yield f'  and {len(plan.moves) - most} more'
