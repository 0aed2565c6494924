"""Blocks: operators and slots that stay together. A layer's parameters, its operators, gradients and update are one.

Whose an operator is, is read from the flow of data (it reads a parameter, or only a parameter's update reads it) and,
where that leaves it open, from its name. Activations go with the layer before them: a ReLU left on the trainer
would send everything twice.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable

from dct_jax.partition.graph import BACKWARD, BATCH, FORWARD, LOSS, OPTIMIZER, PARAMETER, UPDATE, Graph
from dct_jax.partition.placement import TRAINER

LAYER, TABLE, REST = 'layer', 'table', 'rest'
SMALL = 1024  # entries of an optimizer's state that every node may have a copy of
VIEWS = {'convert_element_type', 'transpose', 'reshape', 'broadcast_in_dim', 'squeeze', 'copy', 'copy_p', 'rev',
         'expand_dims', 'slice', 'stop_gradient'}
PRODUCTS = {'dot_general', 'conv_general_dilated', 'int8_product'}
ELEMENTWISE = {'add', 'add_any', 'sub', 'mul', 'div', 'neg', 'max', 'min', 'exp', 'exp2', 'log', 'log1p', 'expm1',
               'tanh', 'logistic', 'sqrt', 'rsqrt', 'cbrt', 'pow', 'integer_pow', 'square', 'abs', 'sign', 'floor',
               'ceil', 'round', 'sin', 'cos', 'erf', 'erf_inv', 'select_n', 'gt', 'lt', 'ge', 'le', 'eq', 'ne', 'and',
               'or', 'not', 'xor', 'clamp', 'is_finite', 'convert_element_type', 'broadcast_in_dim', 'copy',
               'stop_gradient'}
GRADIENTS = VIEWS | ELEMENTWISE | PRODUCTS | {'reduce_sum', 'scatter-add', 'scatter_add', 'pad', 'dynamic_update_slice'}
METHOD = re.compile(r'\.\w+(?=/)')  # flax writes layer.front for a method of it that is not __call__
LESSENS = {'add_any', 'slice'}  # they make less than they read, which is better sent afterwards


@dataclasses.dataclass(frozen=True)
class OperatorBlock:
  """What moves as one.

  Attributes:
    name: of the module, or of the scope of what is not in one.
    kind: 'layer', 'table' or 'rest'.
    operators, slots: numbers in the graph.
    tag: where the user wants it.
    has_loss: whether it makes the loss or another output that is told.
  """

  name: str
  kind: str
  operators: tuple[int, ...]
  slots: tuple[int, ...]
  tag: str | None = None
  has_loss: bool = False


@dataclasses.dataclass(frozen=True)
class Blocks:
  """A graph in blocks. Operators and slots in none of them are cheap, and are wherever they are read."""

  graph: Graph
  blocks: tuple[OperatorBlock, ...]

  @functools.cached_property
  def of_operator(self) -> dict[int, int]:
    return {i: b for b, block in enumerate(self.blocks) for i in block.operators}

  @functools.cached_property
  def of_slot(self) -> dict[int, int]:
    return {s: b for b, block in enumerate(self.blocks) for s in block.slots}


def blocks_of(graph: Graph) -> Blocks:
  """Puts every operator into a block, or leaves it to run anywhere.

  Raises:
    ValueError: for two tags that send one layer to two nodes, or one that sends a batch to a server.
  """
  for slot in graph.slots:
    if slot.kind == BATCH and slot.tag not in (None, TRAINER):
      raise ValueError(f'{slot.path!r} is part of a batch, which trainers have, and has a tag for {slot.tag}')
  owners = _Owners(graph)
  made = [_layer(graph, module, owners) for module in owners.modules]
  return Blocks(graph, tuple(made + _rest(graph, owners)))


def modules_of(graph: Graph) -> dict[str, list[int]]:
  """Path of a module -> slots of its parameters."""
  found: dict[str, list[int]] = {}
  for i, slot in enumerate(graph.slots):
    if slot.kind == PARAMETER:
      path = slot.path.removeprefix('params/')
      found.setdefault(path.rpartition('/')[0] or path, []).append(i)
  return found


class _Owners:
  """Module of every operator and slot, if it has one.

  Attributes:
    modules: path -> slots of parameters.
    operator: operator -> module.
    slot: slot -> module, of the optimizer's state as well.
    anywhere: operators that are computed from nothing but constants and copies of small state.
  """

  def __init__(self, graph: Graph):
    self.graph, self.modules = graph, modules_of(graph)
    self.slot = {s: m for m, slots in self.modules.items() for s in slots}
    self.operator: dict[int, str] = {}
    self._named: dict[str, str | None] = {}  # name of an operator -> module that it was written in
    self._reach = _reached(graph, self.slot)
    self._own_states()
    self.anywhere = self._free()
    for claim in (self._by_parameters, self._by_updates, self._by_names, self._by_gradients, self._by_neighbours,
                  self._by_sources):
      for i, op in enumerate(graph.operators):
        if i not in self.operator and i not in self.anywhere:
          module = claim(i, op)
          if module is not None:
            self.operator[i] = module

  def _own_states(self):
    for i, slot in enumerate(self.graph.slots):
      reached = self._reach.get(slot.value, frozenset())
      if slot.kind == OPTIMIZER and len(reached) == 1:
        self.slot[i] = next(iter(reached))

  def _free(self) -> set[int]:
    """Operators that any node can run by itself."""
    copied = {s.value for i, s in enumerate(self.graph.slots)
              if s.kind == OPTIMIZER and i not in self.slot and self.graph.avals[s.value].size <= SMALL}
    known, free = {*self.graph.constants, *copied}, set()
    for i, op in enumerate(self.graph.operators):
      if op.tag is None and known.issuperset(op.reads):
        free.add(i)
        known.update(op.outputs)
    return free

  def _by_parameters(self, i, op):
    """It reads a parameter, as it is or in another shape."""
    del i
    for v in op.reads:
      module = self.view_of(v)
      if module is not None and op.phase != UPDATE:
        return module
    return None

  def view_of(self, value: int) -> str | None:
    """The module of a parameter, for the parameter itself or what has the same entries in another shape."""
    if value in self.graph.slot_of:
      slot = self.graph.slot_of[value]
      return self.slot.get(slot) if self.graph.slots[slot].kind == PARAMETER else None
    maker = self.graph.producer.get(value)
    if maker is None or self.graph.operators[maker].kind not in VIEWS:
      return None
    reads = self.graph.operators[maker].reads
    return self.view_of(reads[0]) if len(reads) == 1 else None

  def _by_updates(self, i, op):
    """It is arithmetic of the optimizer for one module."""
    del i
    if op.phase != UPDATE:
      return None
    reached = frozenset().union(*(self._reach.get(v, frozenset()) for v in op.outputs))
    return next(iter(reached)) if len(reached) == 1 else None

  def _by_names(self, i, op):
    """It was written inside of a module."""
    del i
    if op.phase == UPDATE or not op.name:
      return None
    if op.name not in self._named:
      path = METHOD.sub('', f'/{op.name}/')
      inside = [m for m in self.modules if f'/{m}/' in path]
      self._named[op.name] = max(inside, key=len) if inside else None
    return self._named[op.name]

  def _by_gradients(self, i, op):
    """Nothing but the gradient of one module needs it."""
    del i
    if op.phase != BACKWARD or op.kind not in GRADIENTS:
      return None
    reached = frozenset().union(*(self._reach.get(v, frozenset()) for v in op.outputs))
    makers = {self.operator.get(self.graph.producer.get(v, -1)) for v in op.reads}
    if len(reached) != 1 or (op.kind in LESSENS and makers != reached):
      return None
    module = next(iter(reached))
    return None if op.kind in ELEMENTWISE and len(self._foreign(op, module)) > 1 else module

  def _foreign(self, op, module) -> list[int]:
    """Arrays that an operator reads, and that the module has no other use for. Two of them are better sent as one."""
    graph, belongs = self.graph, lambda i: self.operator.get(i) == module or i in self.anywhere
    return [v for v in op.reads if graph.avals[v].ndim and v not in graph.constants
            and not belongs(graph.producer.get(v, -1)) and not any(map(belongs, graph.consumers[v]))]

  def _by_neighbours(self, i, op):
    """It is elementwise, and all that it reads comes from one module; or, going back, it reads what one has kept.

    A product of two modules has gradients that read what one has kept and are the other's: they are in neither.
    """
    del i
    if op.kind not in ELEMENTWISE or op.phase == UPDATE:
      return None
    makers = [self.graph.producer[v] for v in op.reads if v in self.graph.producer]
    sources = {self.operator.get(m) for m in makers if m not in self.anywhere}
    if op.phase == FORWARD or (len(makers) > 1 and len(sources) == 1):
      return next(iter(sources)) if len(makers) == len(op.reads) and len(sources) == 1 else None
    kept = {self.operator.get(m) for m in makers if self.graph.operators[m].phase == FORWARD} & self._heirs(op)
    return next(iter(kept)) if len(kept) == 1 else None

  def _heirs(self, op) -> set[str]:
    """Modules that use a gradient: for their own parameters, or to pass it on."""
    readers = {self.operator[j] for v in op.outputs for j in self.graph.consumers.get(v, ()) if j in self.operator}
    return readers.union(*(self._reach.get(v, ()) for v in op.outputs))

  def _by_sources(self, i, op):
    """It is arithmetic of the optimizer for several modules, of what one of them has: its share of a norm."""
    del i
    if op.phase != UPDATE or op.kind not in GRADIENTS:
      return None
    makers = {v: self.graph.producer.get(v) for v in op.reads}
    found = {self.slot.get(self.graph.slot_of.get(v, -1)) if m is None else self.operator.get(m)
             for v, m in makers.items() if m not in self.anywhere and v not in self.graph.constants}
    return next(iter(found)) if len(found) == 1 else None


def _reached(graph: Graph, slot_module: dict[int, str]) -> dict[int, frozenset[str]]:
  """Value -> modules whose parameters it helps to update. Losses count as a module of their own."""
  reach: dict[int, frozenset[str]] = {}
  add = lambda v, more: reach.__setitem__(v, reach.get(v, frozenset()) | more)
  for out in graph.outputs:
    if isinstance(out.source, int):
      module = LOSS if out.slot is None else slot_module.get(out.slot)
      if module is not None:
        add(out.source, frozenset([module]))
  for op in reversed(graph.operators):
    more = frozenset().union(*(reach.get(v, frozenset()) for v in op.outputs))
    for v in op.reads:
      add(v, more)
  return reach


def _layer(graph: Graph, module: str, owners: _Owners) -> OperatorBlock:
  operators = tuple(i for i in sorted(owners.operator) if owners.operator[i] == module)
  slots = tuple(i for i in sorted(owners.slot) if owners.slot[i] == module)
  uses = (graph.operators[i] for i in operators if graph.operators[i].phase != UPDATE)
  readers = {op.kind for op in uses if any(owners.view_of(v) == module for v in op.reads)}
  kind = TABLE if 'gather' in readers and not readers & PRODUCTS else LAYER
  tag = _one_tag(module, [graph.operators[i].tag for i in operators] + [graph.slots[i].tag for i in slots])
  return OperatorBlock(module, kind, operators, slots, tag, _told(graph, operators))


def _one_tag(name: str, tags: Iterable[str | None]) -> str | None:
  found = sorted({t for t in tags if t})
  if len(found) > 1:
    raise ValueError(f'{name!r} stays together, but has tags for {" and ".join(found)}')
  return found[0] if found else None


def _told(graph: Graph, operators: Iterable[int]) -> bool:
  told = {o.source for o in graph.outputs if o.slot is None and isinstance(o.source, int)}
  return any(told.intersection(graph.operators[i].outputs) for i in operators)


def _rest(graph: Graph, owners: _Owners) -> list[OperatorBlock]:
  """What is in no module: operators that are connected, in the same scope and with the same tag."""
  left = [i for i in range(len(graph.operators)) if i not in owners.operator and i not in owners.anywhere]
  group = {i: i for i in left}

  def root(i):
    while group[i] != i:
      group[i] = group[group[i]]
      i = group[i]
    return i

  alike = lambda a, b: (a.name, a.tag, a.phase == UPDATE) == (b.name, b.tag, b.phase == UPDATE)
  for i in left:
    for v in graph.operators[i].reads:
      maker = graph.producer.get(v)
      if maker in group and alike(graph.operators[maker], graph.operators[i]):
        group[root(i)] = root(maker)
  found: dict[int, list[int]] = {}
  for i in left:
    found.setdefault(root(i), []).append(i)
  first = lambda m: graph.operators[m[0]]
  blocks = [OperatorBlock(first(m).name or first(m).phase, REST, tuple(m), (), first(m).tag, _told(graph, m))
            for m in found.values()]
  shared = tuple(i for i, s in enumerate(graph.slots) if s.kind != BATCH and i not in owners.slot
                 and graph.avals[s.value].size > SMALL)
  return blocks + ([OperatorBlock('shared state', REST, (), shared)] if shared else [])
