"""What a placement of blocks asks of every node: processor, network in and out, memory."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from dct_jax.partition import codecs
from dct_jax.partition.blocks import Blocks
from dct_jax.partition.costs import Machine
from dct_jax.partition.graph import BACKWARD, FORWARD, Graph, nbytes
from dct_jax.partition.placement import TRAINER, Nodes, Placement

RESOURCES = ('processor', 'in', 'out')


@dataclasses.dataclass(frozen=True)
class Codecs:
  """In which codecs values travel: activations forward, gradients back. Whatever else there is travels exactly."""

  forward: str = codecs.EXACT
  backward: str = codecs.EXACT

  def __post_init__(self):
    codecs.check(self.forward)
    codecs.check(self.backward)

  def of(self, graph: Graph, value: int) -> str:
    """The codec of a value. What a batch brings and what is not made of float32 is sent as it is."""
    maker = graph.producer.get(value)
    phase = graph.operators[maker].phase if maker is not None else None
    chosen = {FORWARD: self.forward, BACKWARD: self.backward}.get(phase or '', codecs.EXACT)
    return chosen if codecs.fits(graph.avals[value], chosen) else codecs.EXACT


@dataclasses.dataclass(frozen=True)
class Load:
  """Seconds of a batch of every trainer, for each node and resource; and bytes of memory.

  Attributes:
    seconds: float[nodes, resources].
    memory: float[nodes].
    traffic: bytes that cross for one batch, all edges together.
  """

  seconds: np.ndarray
  memory: np.ndarray
  traffic: float

  @property
  def bottleneck(self) -> float:
    """Seconds of the node and resource that is busiest: a group cannot take batches any faster."""
    return float(self.seconds.max())

  @property
  def key(self) -> tuple[float, ...]:
    """Placements are better if this is smaller: the busiest first, then the next one, and so on."""
    return (*np.sort(self.seconds.ravel())[::-1][:6].round(12).tolist(), self.traffic)


class Estimate:
  """Loads of placements, quickly: what only depends on the program is added up once.

  Args:
    blocks: of a program.
    nodes: of a group.
    machine: what a node can do.
    codec: in which codecs values travel.
    nets: batches that a trainer works on at the same time, for memory.
  """

  def __init__(self, blocks: Blocks, nodes: Nodes, machine: Machine, codec: Codecs | None = None, nets: int = 1):
    self.blocks, self.nodes, self.machine, self.codec = blocks, nodes, machine, codec or Codecs()
    graph = blocks.graph
    self.seconds = np.array([sum(machine.seconds(graph, graph.operators[i]) for i in b.operators)
                             for b in blocks.blocks])
    self.weights = np.array([sum(nbytes(graph.avals[graph.slots[s].value]) for s in b.slots) for b in blocks.blocks],
                            float)
    self.activations = np.array([sum(nbytes(graph.avals[v]) for i in b.operators for v in graph.operators[i].outputs
                                     if graph.operators[i].phase == FORWARD) for b in blocks.blocks], float) * nets
    self._edges()

  def _edges(self):
    """Values that are made in one block and read in another one. Batches are the trainer's (block -1)."""
    graph = self.blocks.graph
    makers: list[int] = []
    pairs: list[tuple[int, int]] = []
    values: list[int] = []
    for v in sorted({*self._made(), *(s.value for s in graph.slots)}):
      home = self._home(v)
      readers = self._readers(v) - {home}
      if home is None or not readers:
        continue
      pairs += [(len(values), b) for b in sorted(readers)]
      makers.append(home)
      values.append(v)
    codec = [self.codec.of(graph, v) for v in values]
    raw = np.array([nbytes(graph.avals[v]) for v in values], float)
    self.values, self.makers = values, np.array(makers, int)
    self.bytes = np.array([codecs.encoded_bytes(graph.avals[v], c) for v, c in zip(values, codec, strict=True)], float)
    self.encode = raw * np.array([self.machine.encode[c] for c in codec])
    self.decode = raw * np.array([self.machine.decode[c] for c in codec])
    self.pairs = np.array(pairs, int).reshape(-1, 2)

  def _made(self):
    return (v for op in self.blocks.graph.operators for v in op.outputs)

  def _home(self, v):
    graph = self.blocks.graph
    if v in graph.slot_of:
      slot = graph.slot_of[v]
      return self.blocks.of_slot.get(slot, -1 if graph.slots[slot].kind == 'batch' else None)
    return self.blocks.of_operator.get(graph.producer[v])

  def _readers(self, v) -> set[int]:
    """Blocks that read a value, themselves or through what is computed anywhere."""
    graph, of = self.blocks.graph, self.blocks.of_operator
    found = set()
    for i in graph.consumers.get(v, ()):
      found |= {of[i]} if i in of else set().union(*(self._readers(o) for o in graph.operators[i].outputs))
    for out in self._ends.get(v, ()):
      slot = graph.outputs[out].slot
      found.add(-1 if slot is None else self.blocks.of_slot.get(slot, -1))
    return found

  @functools.cached_property
  def _ends(self):
    ends: dict[int, list[int]] = {}
    for number, out in enumerate(self.blocks.graph.outputs):
      if isinstance(out.source, int) and out.slot not in self._copied:
        ends.setdefault(out.source, []).append(number)
    return ends

  @functools.cached_property
  def _copied(self):
    return {i for i, s in enumerate(self.blocks.graph.slots) if i not in self.blocks.of_slot and s.kind != 'batch'}

  def load(self, at: np.ndarray) -> Load:
    """Of a placement: the number of a node for each block."""
    names = self.nodes.names
    count, many = len(names), len(self.values)
    at = np.append(at, 0)  # block -1 is the trainer
    used = np.zeros((many, count), bool)
    used[self.pairs[:, 0], at[self.pairs[:, 1]]] = True
    made = np.zeros((many, count), bool)
    made[np.arange(many), at[self.makers]] = True
    gets = used & ~made
    away = np.asarray(gets.any(1))
    to_trainer = away & ~made[:, 0]  # from a server, whoever wants it
    arrives = gets.copy()
    arrives[:, 0] = to_trainer
    leaves = made & away[:, None]
    leaves[:, 0] = False
    out = self.bytes @ leaves
    into = self.bytes @ arrives
    out[0] = into[1:].sum()
    processor = np.bincount(at[:-1], self.seconds, count) + self.encode @ (made & away[:, None]) + self.decode @ gets
    seconds = np.stack([processor, into / self.machine.rate, out / self.machine.rate], 1)
    seconds[1:] *= self.nodes.trainers  # a server works for all trainers
    held = np.bincount(at[:-1], self.weights, count) + self.nodes_memory(at[:-1], count)
    return Load(seconds, held + self.bytes @ (arrives | leaves), float(into.sum()))

  def nodes_memory(self, at: np.ndarray, count: int) -> np.ndarray:
    """Bytes of activations: of all trainers on a server."""
    memory = np.bincount(at, self.activations, count)
    memory[1:] *= self.nodes.trainers
    return memory

  def placement(self, at: np.ndarray) -> Placement:
    """Of every operator and slot."""
    names, of, graph = self.nodes.names, self.blocks, self.blocks.graph
    node = lambda b: None if b is None else names[int(at[b])]
    slots = tuple(TRAINER if s.kind == 'batch' else node(of.of_slot.get(i)) for i, s in enumerate(graph.slots))
    return Placement(names, tuple(node(of.of_operator.get(i)) for i in range(len(graph.operators))), slots)
