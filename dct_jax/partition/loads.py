"""What a placement of blocks asks of every node: processor, network in and out, memory."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from dct_jax.partition import codecs
from dct_jax.partition.blocks import Blocks
from dct_jax.partition.costs import Machine
from dct_jax.partition.graph import BACKWARD, BATCH, FORWARD, Graph, nbytes
from dct_jax.partition.placement import TRAINER, Nodes, Placement
from dct_jax.partition.programs import wanted

RESOURCES = ('processor', 'in', 'out')
FEEDBACK_PASSES = 4  # over a value: it, its buffer and what is sent of it are read, the buffer is written


@dataclasses.dataclass(frozen=True)
class Codecs:
  """In which codecs values travel: activations forward, gradients back. Whatever else there is travels exactly.

  Attributes:
    forward, backward: as `codecs.check` has them.
    feedback: what gradients lose is made up for later, but for entries that are forgotten once in so many batches on
      average (`partition.feedback`); None for no such thing.
  """

  forward: str = codecs.EXACT
  backward: str = codecs.EXACT
  feedback: int | None = None

  def __post_init__(self):
    codecs.check(self.forward)
    codecs.check(self.backward)
    if self.feedback is None:
      return
    if type(self.feedback) is not int or not 0 < self.feedback < 2**31:
      raise ValueError(f'feedback is a whole number of batches from 1 on, or None, got {self.feedback!r}')
    if self.backward == codecs.EXACT:
      raise ValueError('gradients that travel exactly leave nothing to feed back, got '
                       f'{self.backward=} and {self.feedback=}')

  def of(self, graph: Graph, value: int) -> str:
    """The codec of a value. What a batch brings and what is not made of float32 is sent as it is."""
    chosen = {FORWARD: self.forward, BACKWARD: self.backward}.get(_phase(graph, value) or '', codecs.EXACT)
    return chosen if codecs.fits(graph.avals[value], chosen) else codecs.EXACT

  def feeds_back(self, graph: Graph, value: int) -> bool:
    """Whether what a value loses on its way is kept."""
    return (self.feedback is not None and _phase(graph, value) == BACKWARD
            and self.of(graph, value) != codecs.EXACT)

  def seconds(self, graph: Graph, value: int, machine: Machine) -> tuple[float, float]:
    """Processor time to encode a value, and to decode it."""
    codec, size = codecs.kind(self.of(graph, value)), nbytes(graph.avals[value])
    encode, decode = machine.encode[codec] * size, machine.decode[codec] * size
    if self.feeds_back(graph, value):  # what is sent is decoded here as well
      encode += decode + FEEDBACK_PASSES * machine.byte * size
    return encode, decode


def _phase(graph: Graph, value: int) -> str | None:
  maker = graph.producer.get(value)
  return None if maker is None else graph.operators[maker].phase


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
    self.blocks, self.nodes, self.machine, self.codec, self.nets = blocks, nodes, machine, codec or Codecs(), nets
    for name in (codecs.EXACT, codecs.kind(self.codec.forward), codecs.kind(self.codec.backward)):
      if not (name in machine.encode and name in machine.decode):
        raise ValueError(f'the machine does not have the costs of {name}')
    graph = blocks.graph
    self.seconds = np.array([sum(machine.seconds(graph, graph.operators[i]) for i in b.operators)
                             for b in blocks.blocks]) / machine.cores
    self.weights = np.array([sum(nbytes(graph.avals[graph.slots[s].value]) for s in b.slots) for b in blocks.blocks],
                            float)
    self.activations = np.array([sum(nbytes(graph.avals[v]) for i in b.operators for v in graph.operators[i].outputs
                                     if graph.operators[i].phase == FORWARD) for b in blocks.blocks], float) * nets
    self._edges()

  def _edges(self):
    """Values that are made in one block and read in others. Batches are the trainer's (block -1).

    What has the same maker, readers and phase is one edge, which `values` has the first value of.
    """
    graph = self.blocks.graph
    edges: dict[Any, list[int]] = {}
    for v, blocks in sorted(self._readers().items()):
      home = self._home(v)
      if home is not None and blocks - {home}:
        edges.setdefault((home, tuple(sorted(blocks - {home})), _phase(graph, v)), []).append(v)
    self.values, self.makers = [v[0] for v in edges.values()], np.array([home for home, _, _ in edges], int)
    self.pairs = np.array([(k, b) for k, (_, readers, _) in enumerate(edges) for b in readers], int).reshape(-1, 2)
    total = lambda cost: np.array([sum(map(cost, vs)) for vs in edges.values()], float)
    self.bytes = total(lambda v: codecs.encoded_bytes(graph.avals[v], self.codec.of(graph, v)))
    self.buffers = total(lambda v: nbytes(graph.avals[v]) * self.codec.feeds_back(graph, v))
    self.encode = total(lambda v: self.codec.seconds(graph, v, self.machine)[0]) / self.machine.cores
    self.decode = total(lambda v: self.codec.seconds(graph, v, self.machine)[1]) / self.machine.cores

  def _home(self, v):
    """The block that makes or keeps a value, or None for what every node makes or keeps for itself."""
    graph = self.blocks.graph
    if v in graph.constants:
      return None
    if v in graph.slot_of:
      slot = graph.slot_of[v]
      return self.blocks.of_slot.get(slot, -1 if graph.slots[slot].kind == BATCH else None)
    return self.blocks.of_operator.get(graph.producer[v])

  def _readers(self) -> dict[int, set[int]]:
    """Value -> blocks that read it, themselves or through what is computed anywhere."""
    graph, of = self.blocks.graph, self.blocks
    name = lambda b: None if b is None else str(b)
    slots = (TRAINER if s.kind == BATCH else name(of.of_slot.get(i)) for i, s in enumerate(graph.slots))
    operators = (name(of.of_operator.get(i)) for i in range(len(graph.operators)))
    apart = Placement((TRAINER, *map(str, range(len(of.blocks)))), tuple(operators), tuple(slots))
    return {v: {-1 if n == TRAINER else int(n) for n in nodes} for v, nodes in wanted(graph, apart).items()}

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
    sends = made & away[:, None]
    return Load(seconds, held + self.bytes @ (arrives | sends) + self.buffers @ sends, float(into.sum()))

  def nodes_memory(self, at: np.ndarray, count: int) -> np.ndarray:
    """Bytes of activations: of all trainers on a server."""
    memory = np.bincount(at, self.activations, count)
    memory[1:] *= self.nodes.trainers
    return memory

  def placement(self, at: np.ndarray) -> Placement:
    """Of every operator and slot."""
    names, of, graph = self.nodes.names, self.blocks, self.blocks.graph
    node = lambda b: None if b is None else names[int(at[b])]
    slots = tuple(TRAINER if s.kind == BATCH else node(of.of_slot.get(i)) for i, s in enumerate(graph.slots))
    return Placement(names, tuple(node(of.of_operator.get(i)) for i in range(len(graph.operators))), slots)
