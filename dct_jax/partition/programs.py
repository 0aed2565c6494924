"""The net transformation: one program for each node, with sends and receives in rounds.

In a round every node runs what it can with what it has, then sends. Servers talk to the trainer alone: what one server
makes for another goes through it. A value travels to a node once, however often it is used there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from dct_jax.partition import segments
from dct_jax.partition.graph import UPDATE, Graph
from dct_jax.partition.placement import TRAINER, Placement


@dataclasses.dataclass(frozen=True)
class Transfer:
  """A value on its way from a node to another one, in the codec of its edge."""

  value: int
  codec: str


@dataclasses.dataclass(frozen=True)
class RoundStep:
  """What a node does in a round: it receives, runs, and sends. Peers are names of nodes."""

  round: int
  receives: dict[str, tuple[Transfer, ...]]
  runs: tuple[segments.Segment, ...]
  sends: dict[str, tuple[Transfer, ...]]


@dataclasses.dataclass(frozen=True)
class Program:
  """Everything that a node does for one batch.

  Attributes:
    node: its name.
    slots: numbers of the slots that it holds at the beginning.
    steps: in order of rounds.
    results: (number of an output of the whole program, its value) that it has at the end.
  """

  node: str
  slots: tuple[int, ...]
  steps: tuple[RoundStep, ...]
  results: tuple[tuple[int, int], ...]


def transform(graph: Graph, placement: Placement, codec_of: Any = None, *, apart: bool = False) -> dict[str, Program]:
  """Programs of all nodes that have something to do.

  Args:
    graph: the whole program.
    placement: where operators and slots are.
    codec_of: value -> name of the codec in which it travels; 'exact' for all unless given.
    apart: whether updates of parameters are segments of their own, which read parameters as they are by then. Nets
      that run at the same time need that; without it gradients and updates may share a segment.
  """
  schedule = _Schedule(graph, placement)
  codec = codec_of or (lambda v: 'exact')
  return {node: _program(schedule, node, codec, apart) for node in schedule.nodes}


class _Schedule:
  """When each value is where.

  Attributes:
    where: operator -> nodes that run it.
    round: (operator, node) -> round.
    have: (value, node) -> the first round in which the node can use it.
    moves: (value, from, to) -> the round after which it is sent.
  """

  def __init__(self, graph: Graph, placement: Placement):
    self.graph, self.placement = graph, placement
    self.wanted = wanted(graph, placement)
    self.where = [_nodes_of(graph, placement, self.wanted, i) for i in range(len(graph.operators))]
    self.round: dict[tuple[int, str], int] = {}
    self.have: dict[tuple[int, str], int] = {}
    self.moves: dict[tuple[int, str, str], int] = {}
    for i, op in enumerate(graph.operators):
      for node in self.where[i]:
        self.round[i, node] = max((self.at(v, node) for v in op.reads), default=0)
        self.have.update(((v, node), self.round[i, node]) for v in op.outputs)
    self.results = list(self._results())
    self._delay()
    busy = {n for nodes in self.where for n in nodes} | {n for n, _, _ in self.results}
    busy |= {n for _, a, b in self.moves for n in (a, b)} | {TRAINER}
    self.nodes = [n for n in placement.nodes if n in busy]

  def at(self, value: int, node: str) -> int:
    """The first round in which a node can use a value; it is sent there if need be."""
    if (value, node) not in self.have:
      self.have[value, node] = self._fetched(value, node)
    return self.have[value, node]

  def _fetched(self, value: int, node: str) -> int:
    home = self._home(value, node)
    if home == node:
      return 0
    source = home if TRAINER in (home, node) else TRAINER
    ready = self.at(value, source)
    self.moves[value, source, node] = ready
    return ready + 1

  def _home(self, value: int, node: str) -> str:
    """Where a value is made or kept, for a node that wants it."""
    graph = self.graph
    if value in graph.constants:
      return node
    if value in graph.slot_of:
      return self.placement.slots[graph.slot_of[value]] or node
    nodes = self.where[graph.producer[value]]
    return node if node in nodes else nodes[0]

  def _results(self) -> Iterator[tuple[str, int, int]]:
    """(node, number of the output, value)."""
    for number, out in enumerate(self.graph.outputs):
      if isinstance(out.source, int):
        for node in _ends(self.graph, self.placement, self.wanted, number):
          self.at(out.source, node)
          yield node, number, out.source

  def _delay(self) -> None:
    """What needs nothing from other nodes runs in the round of its first reader, not in a segment of its own.

    Otherwise a node would begin with the reshaped biases of all of its layers, and no two nodes would be alike.
    """
    leaves = {(v, a) for v, a, _ in self.moves}
    early = self._early()
    for i in reversed(range(len(self.graph.operators))):
      for node in self.where[i]:
        outputs = self.graph.operators[i].outputs
        readers = [self.round[j, node] for v in outputs for j in self.graph.consumers.get(v, ())
                   if (j, node) in self.round]
        if readers and (i, node) in early and not any((v, node) in leaves for v in outputs):
          self.round[i, node] = min(readers)

  def _early(self) -> set[tuple[int, str]]:
    """(operator, node) of copies of cheap operators, and of those that read slots of their node and nothing else."""
    graph, found = self.graph, set()
    known = {(s.value, n) for k, s in enumerate(graph.slots) for n in self.placement.nodes
             if self.placement.slots[k] in (n, None)}
    for i, op in enumerate(graph.operators):
      for node in self.where[i]:
        if self.placement.operators[i] is None or all(v in graph.constants or (v, node) in known for v in op.reads):
          found.add((i, node))
          known.update((v, node) for v in op.outputs)
    return found


def _ends(graph, placement, wanted, number) -> tuple[str, ...]:
  """Nodes that want an output of the whole program: where its slot is, and the trainer for losses."""
  slot = graph.outputs[number].slot
  if slot is None:
    return (TRAINER,)
  home = placement.slots[slot]
  if home is not None:
    return (home,)
  return tuple(n for n in placement.nodes if n in wanted[graph.slots[slot].value])


def wanted(graph: Graph, placement: Placement) -> dict[int, set[str]]:
  """Value -> nodes that read it. Operators that run anywhere run where their outputs are read.

  Slots that every node may have a copy of are kept by nodes that read them, or by the trainer if none does.
  """
  found: dict[int, set[str]] = {}
  copies = []
  for out in graph.outputs:
    if isinstance(out.source, int):
      home = TRAINER if out.slot is None else placement.slots[out.slot]
      found.setdefault(out.source, set()).update(() if home is None else (home,))
      if home is None and out.slot is not None:
        copies.append((graph.slots[out.slot].value, out.source))
  _spread(graph, placement, copies, found)
  for value, _ in copies:
    if not found.get(value):
      found[value] = {TRAINER}
  _spread(graph, placement, copies, found)
  return found


def _spread(graph: Graph, placement: Placement, copies: list[tuple[int, int]], found: dict[int, set[str]]) -> None:
  """Whoever reads what an operator makes reads what it is made of; likewise for what a copy will be."""
  before = -1
  while before < (before := sum(map(len, found.values()))):
    for value, source in copies:
      found[source] |= found.get(value, set())
    for i in reversed(range(len(graph.operators))):
      op, node = graph.operators[i], placement.operators[i]
      nodes = {node} if node is not None else set().union(*(found.get(v, ()) for v in op.outputs))
      for v in op.reads:
        found.setdefault(v, set()).update(nodes)


def _nodes_of(graph, placement, wanted, i) -> tuple[str, ...]:
  node = placement.operators[i]
  if node is not None:
    return (node,)
  nodes = set().union(*(wanted.get(v, ()) for v in graph.operators[i].outputs))
  return tuple(n for n in placement.nodes if n in nodes)


def _program(schedule: _Schedule, node: str, codec, apart: bool) -> Program:
  graph = schedule.graph
  mine: dict[int, list[int]] = {}
  for (i, n), r in schedule.round.items():
    if n == node:
      mine.setdefault(r, []).append(i)
  moves = sorted((r, a, b, v) for (v, a, b), r in schedule.moves.items() if node in (a, b))
  rounds = sorted({*mine, *(r + (b == node) for r, a, b, v in moves)})
  results = tuple((number, value) for n, number, value in schedule.results if n == node)
  leaving = [v for r, a, b, v in moves if a == node] + [v for _, v in results]
  groups = [(r, part) for r in rounds for part in _parts(graph, sorted(mine.get(r, ())), apart)]
  made = segments.cut(graph, [part for _, part in groups], leaving)
  steps = tuple(RoundStep(
      r, receives=_messages(((a, v) for q, a, b, v in moves if b == node and q + 1 == r), codec),
      runs=tuple(s for (q, _), s in zip(groups, made, strict=True) if q == r),
      sends=_messages(((b, v) for q, a, b, v in moves if a == node and q == r), codec)) for r in rounds)
  read = {v for s in made for v in s.inputs} | set(leaving)
  slots = tuple(k for k, s in enumerate(graph.slots) if s.value in read and schedule.placement.slots[k] in (node, None))
  return Program(node, slots, steps, results)


def _parts(graph: Graph, operators: list[int], apart: bool) -> list[list[int]]:
  if not apart:
    return [operators] if operators else []
  late = lambda i: graph.operators[i].phase == UPDATE
  return [p for p in ([i for i in operators if not late(i)], [i for i in operators if late(i)]) if p]


def _messages(pairs, codec) -> dict[str, tuple[Transfer, ...]]:
  found: dict[str, list[Transfer]] = {}
  for peer, value in sorted(pairs):
    found.setdefault(peer, []).append(Transfer(value, codec(value)))
  return {peer: tuple(values) for peer, values in found.items()}


def all_transfers(programs: dict[str, Program]) -> Iterator[tuple[str, str, int, Transfer]]:
  """(from, to, round, transfer) of everything that is sent."""
  for node, program in programs.items():
    for step in program.steps:
      for peer, sent in step.sends.items():
        yield from ((node, peer, step.round, t) for t in sent)


def count_segments(programs: dict[str, Program]) -> tuple[int, int]:
  """Segments of all programs, and how many of them are different and have to be compiled."""
  runs = [s for p in programs.values() for step in p.steps for s in step.runs]
  return len(runs), len({id(s.function) for s in runs})


def rounds(programs: dict[str, Program]) -> int:
  """Number of rounds of a batch."""
  return 1 + max(step.round for p in programs.values() for step in p.steps)


