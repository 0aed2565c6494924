"""Fully connected layers and tables of a program, found by the flow of data before it is differentiated."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

from dct_jax.partition import narrow, tags
from dct_jax.partition.blocks import modules_of
from dct_jax.partition.graph import PARAMETER, Graph, Operator

KERNEL_VIEWS = ('convert_element_type', 'transpose')
BIAS_VIEWS = (*KERNEL_VIEWS, 'reshape', 'broadcast_in_dim', 'squeeze', 'expand_dims')


@dataclasses.dataclass(frozen=True)
class Fc:
  """A product of an activation with a matrix of parameters, and what belongs to it.

  Attributes:
    name: of its module, or of the matrix if there are several in one.
    dot: the operator.
    side: which of its inputs is the matrix.
    kernel, bias: slots.
    views: operators that make the product's input of the matrix.
    bias_views: likewise of the bias.
    start: operators behind the product, up to the one that adds the bias.
    activation: elementwise operators behind those, which read nothing else.
    result: the value that they make.
    inputs, outputs: axes of the matrix that is stored, to be summed over and to be kept.
    x, x_axis: the activation, and the axis that is summed over.
    axis: of the result, along which the outputs are.
    rows, columns: sizes of those axes of the matrix.
  """

  name: str
  dot: int
  side: int
  kernel: int
  bias: int | None
  views: tuple[int, ...]
  bias_views: tuple[int, ...]
  start: tuple[int, ...]
  activation: tuple[int, ...]
  result: int
  inputs: int
  outputs: int
  x: int
  x_axis: int
  axis: int
  rows: int
  columns: int


@dataclasses.dataclass(frozen=True)
class Table:
  """A matrix of which nothing but rows is read.

  Attributes:
    name: of its module, or of the matrix.
    table: its slot.
    views: operators that change its type.
    lookups: operators that read rows.
    rows: how many there are.
  """

  name: str
  table: int
  views: tuple[int, ...]
  lookups: tuple[int, ...]
  rows: int


@dataclasses.dataclass(frozen=True)
class Layers:
  """What can be split.

  Attributes:
    fcs, tables: by name.
    between: name of an FC -> name of the one behind it, and elementwise operators that are all there is between them.
  """

  fcs: dict[str, Fc]
  tables: dict[str, Table]
  between: dict[str, tuple[str, tuple[int, ...]]]


def layers_of(graph: Graph) -> Layers:
  """Finds them in a graph from `forward_net`."""
  flow = _Flow(graph)
  found = [fc for i, op in enumerate(graph.operators) if op.kind == 'dot_general' and (fc := _fc(flow, i, op))]
  names = _names(graph, [fc.kernel for fc in found])
  fcs = {names[fc.kernel]: dataclasses.replace(fc, name=names[fc.kernel]) for fc in found}
  slots = {s: i for i, s in enumerate(graph.slots) if s.kind == PARAMETER}
  seen = [t for i in slots.values() if (t := _table(flow, i))]
  names = _names(graph, [t.table for t in seen])
  tables = {names[t.table]: dataclasses.replace(t, name=names[t.table]) for t in seen}
  return Layers(fcs, tables, _pairs(flow, fcs))


def path_of(graph: Graph, slot: int) -> str:
  """A parameter's path, as in names of modules."""
  return graph.slots[slot].path.removeprefix('params/')


def _names(graph: Graph, slots: list[int]) -> dict[int, str]:
  """A module's name for the one matrix in it, the whole path for one of several."""
  module = {s: m for m, inside in modules_of(graph).items() for s in inside}
  mine = [module[s] for s in slots]
  return {s: module[s] if mine.count(module[s]) == 1 else path_of(graph, s) for s in slots}


class _Flow:
  """Who reads what."""

  def __init__(self, graph: Graph):
    self.graph = graph
    self.told = {o.source for o in graph.outputs if isinstance(o.source, int)}

  def reader(self, value: int) -> int | None:
    """The only operator that reads a value."""
    readers = self.graph.consumers.get(value, ())
    return readers[0] if len(readers) == 1 and value not in self.told else None

  def parameter(self, value: int | object, views: tuple[str, ...]) -> tuple[int, tuple[int, ...]] | None:
    """The slot of a parameter that this is a view of, and the operators in between; None if others read it too."""
    passed: list[int] = []
    while isinstance(value, int) and self.reader(value) is not None:
      slot = self.graph.slot_of.get(value)
      if slot is not None:
        return (slot, tuple(passed[::-1])) if self.graph.slots[slot].kind == PARAMETER else None
      maker = self.graph.producer.get(value)
      if maker is None or self.graph.operators[maker].kind not in views:
        return None
      passed.append(maker)
      value = self.graph.operators[maker].inputs[0]
    return None

  def tagged(self, operators: Iterable[int]) -> bool:
    """Whether the user has said where one of these runs: it is not for several nodes then."""
    readers = (self.graph.operators[j] for i in operators for v in self.graph.operators[i].outputs
               for j in self.graph.consumers.get(v, ()))
    return any(map(tags.names_a_node, readers))

  @functools.cached_property
  def free(self) -> set[int]:
    """Values that are made of nothing but constants."""
    known = set(self.graph.constants)
    for op in self.graph.operators:
      if known.issuperset(op.reads):
        known.update(op.outputs)
    return known

  def activation(self, value: int, *, more: bool) -> tuple[tuple[int, ...], int]:
    """Elementwise operators behind a value, as many as there are until one value is all that is read of them.

    Args:
      value: the first one.
      more: whether they may also read arrays that come from elsewhere, as masks.

    Returns:
      Their numbers, and the value that they make.
    """
    graph, shape = self.graph, self.graph.avals[value].shape
    inside: list[int] = []
    inner = {value}
    best: tuple[tuple[int, ...], int] = (), value
    for i in range(graph.producer[value] + 1, len(graph.operators)):
      op = graph.operators[i]
      if not inner.intersection(op.reads):
        continue
      joins = all(v in inner or self._may_join(v, shape, more) for v in op.reads)
      if not joins or not narrow.is_elementwise(op, shape):
        break
      inside.append(i)
      inner.update(op.outputs)
      leaving = [v for v in inner if v in self.told or not set(graph.consumers.get(v, ())) <= set(inside)]
      if len(leaving) == 1 and leaving[0] in op.outputs:
        best = (tuple(inside), leaving[0])
    return best

  def _may_join(self, value: int, shape: tuple[int, ...], more: bool) -> bool:
    aval = self.graph.avals[value]
    return aval.ndim == 0 or value in self.free or (more and aval.ndim == len(shape) and not self._is_parameter(value))

  def _is_parameter(self, value: int) -> bool:
    slot = self.graph.slot_of.get(value)
    if slot is not None:
      return self.graph.slots[slot].kind == PARAMETER
    maker = self.graph.producer.get(value)
    return maker is not None and self.graph.operators[maker].kind in BIAS_VIEWS and any(
        map(self._is_parameter, self.graph.operators[maker].reads))


def _fc(flow: _Flow, i: int, op: Operator) -> Fc | None:
  graph, ((left, right), batch) = flow.graph, op.equation.params['dimension_numbers']
  if len(left) != 1 or any(batch):
    return None
  for side in (1, 0):
    found = flow.parameter(op.inputs[side], KERNEL_VIEWS)
    x = op.inputs[1 - side]
    if not found or not isinstance(x, int) or flow.parameter(x, KERNEL_VIEWS):
      continue
    slot, views = found
    if graph.avals[graph.slots[slot].value].ndim == 2:
      made = _described(flow, i, side, slot, views, int(x), (left[0], right[0]))
      return None if flow.tagged((i, *made.start, *made.activation)) else made
  return None


def _described(flow: _Flow, i: int, side: int, slot: int, views: tuple[int, ...], x: int,
               summed: tuple[int, int]) -> Fc:
  graph = flow.graph
  inputs = summed[side]
  for view in reversed(views):
    if graph.operators[view].kind == 'transpose':
      inputs = graph.operators[view].equation.params['permutation'][inputs]
  product = graph.operators[i].outputs[0]
  axis = graph.avals[product].ndim - 1 if side == 1 else 0
  shape = graph.avals[graph.slots[slot].value].shape
  start, bias, bias_views = _bias(flow, product, axis, shape[1 - inputs])
  end = graph.operators[start[-1]].outputs[0] if start else product
  activation, result = flow.activation(end, more=False)
  return Fc('', i, side, slot, bias, views, bias_views, start, activation, result, inputs, 1 - inputs, x,
            summed[1 - side], axis, shape[inputs], shape[1 - inputs])


def _bias(flow: _Flow, product: int, axis: int, width: int) -> tuple[tuple[int, ...], int | None, tuple[int, ...]]:
  """Operators from a product to the one that adds the bias; the bias, and views of it."""
  graph, value, passed = flow.graph, product, []
  shape = graph.avals[product].shape
  while (reader := flow.reader(value)) is not None:
    op = graph.operators[reader]
    passed.append(reader)
    if op.kind == 'add' and graph.avals[op.outputs[0]].shape == shape:
      other = op.inputs[1 - op.inputs.index(value)]
      found = flow.parameter(other, BIAS_VIEWS)
      if found and _is_row(graph, found[0], width) and _along(flow, other, found[1], axis, width):
        return tuple(passed), *found
    if op.kind != 'convert_element_type':
      break
    value = op.outputs[0]
  return (), None, ()


def _is_row(graph: Graph, slot: int, width: int) -> bool:
  shape = graph.avals[graph.slots[slot].value].shape
  return [n for n in shape if n != 1] == [width] or (width == 1 and set(shape) == {1})


def _along(flow: _Flow, value: Any, views: tuple[int, ...], axis: int, width: int) -> bool:
  """Whether a view of a bias varies along an axis of the product, and not along another one that is as long."""
  where = [d for d, n in enumerate(flow.graph.avals[value].shape) if n == width]
  if width == 1 or where == [axis]:
    return True
  last = [op for op in (flow.graph.operators[i] for i in views) if op.kind == 'broadcast_in_dim']
  return axis in where and len(last) == 1 and last[0].equation.params['broadcast_dimensions'][-1:] == (axis,)


def _pairs(flow: _Flow, fcs: dict[str, Fc]) -> dict[str, tuple[str, tuple[int, ...]]]:
  """FCs with nothing but elementwise operators between them."""
  graph, found = flow.graph, {}
  readers = {(fc.x, fc.x_axis): fc for fc in fcs.values()}
  for name, fc in fcs.items():
    end = graph.operators[fc.start[-1]].outputs[0] if fc.start else graph.operators[fc.dot].outputs[0]
    inside, result = flow.activation(end, more=True)
    behind = readers.get((result, fc.axis))
    if behind is not None and flow.reader(result) == behind.dot:
      found[name] = (behind.name, inside)
  return found


def _table(flow: _Flow, slot: int) -> Table | None:
  """A matrix whose readers all look up rows, through changes of type."""
  graph, views, lookups = flow.graph, [], []
  aval = graph.avals[graph.slots[slot].value]
  front = [graph.slots[slot].value]
  while front:
    value = front.pop()
    if value in flow.told:
      return None
    for i in graph.consumers.get(value, ()):
      op = graph.operators[i]
      if op.kind == 'convert_element_type':
        views.append(i)
        front.append(op.outputs[0])
      elif op.kind == 'gather' and op.inputs[0] == value and _takes_rows(op, aval.shape):
        lookups.append(i)
      else:
        return None
  if not lookups or flow.tagged(lookups):
    return None
  return Table('', slot, tuple(sorted(views)), tuple(lookups), aval.shape[0])


def _takes_rows(op: Operator, shape: tuple[int, ...]) -> bool:
  numbers = op.equation.params['dimension_numbers']
  return (tuple(numbers.collapsed_slice_dims) == (0,) and tuple(numbers.start_index_map) == (0,)
          and not numbers.operand_batching_dims and tuple(op.equation.params['slice_sizes']) == (1, *shape[1:]))
