"""Runs a function whose layers are in parts. Parts run in scopes of their own names; what joins them is outside."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from dct_jax.partition import narrow, tags
from dct_jax.partition.fcs import Fc, Layers, Table
from dct_jax.partition.graph import Graph, Operator
from dct_jax.partition.segments import bind, bind_to

Known = dict[int, Any]  # value -> array


class Parts(NamedTuple):
  """Parts of a parameter, and names of the modules that they are in."""

  arrays: list[Any]
  modules: list[str]


class Rewrite(NamedTuple):
  """What runs in place of some operators, when the last one of them would: (known, parts) -> value, array."""

  replaces: frozenset[int]
  run: Callable[[Known, dict[int, Parts]], tuple[int, Any]]


def steps(graph: Graph, layers: Layers, choice: Any) -> list[Rewrite]:
  """One for each layer that is split; for a table one for each look-up."""
  made = []
  for name, (kind, _) in choice.items():
    if kind == 'rows':
      table = layers.tables[name]
      made += [Rewrite(frozenset([i, *table.views]), functools.partial(_look_up, graph, table, i))
               for i in table.lookups]
      continue
    fc = layers.fcs[name]
    if kind == 'vertical':
      made.append(Rewrite(_all(fc, fc.activation), functools.partial(_vertical, graph, fc)))
    elif kind == 'horizontal':
      made.append(Rewrite(_all(fc), functools.partial(_horizontal, graph, fc)))
    else:
      behind, between = layers.between[name]
      second = layers.fcs[behind]
      made.append(Rewrite(_all(fc, between) | _all(second), functools.partial(_both, graph, fc, between, second)))
  return made


def run(graph: Graph, replaced: Sequence[Rewrite], known: Known, parts: dict[int, Parts]) -> None:
  """Runs all operators; values are put into `known`."""
  skipped = frozenset().union(*(s.replaces for s in replaced))
  at = {max(s.replaces): s for s in replaced}
  for i, op in enumerate(graph.operators):
    if i in at:
      value, array = at[i].run(known, parts)
      known[value] = array
    elif i not in skipped:
      with scope(op.name):
        known.update(zip(op.outputs, bind(op, known), strict=True))


def call(graph: Graph, replaced: Sequence[Rewrite], known: Known, parts: dict[int, Parts]) -> Any:
  """Runs all operators, and returns what the function does that the graph was traced from."""
  run(graph, replaced, known, parts)
  read = lambda x: x.val if isinstance(x, core.Literal) else known[x]
  return jax.tree.unflatten(graph.out_tree, [read(o.source) for o in graph.outputs])


def _all(fc: Fc, more: Sequence[int] = ()) -> frozenset[int]:
  return frozenset([fc.dot, *fc.views, *fc.bias_views, *fc.start, *more])


def scope(name: str) -> contextlib.AbstractContextManager:
  """Operators that are made inside have this name."""
  return jax.named_scope(name) if name else contextlib.nullcontext()


def _vertical(graph: Graph, fc: Fc, known: Known, parts: dict[int, Parts]) -> tuple[int, Any]:
  outside = graph.operators[fc.dot].name
  widths = [a.shape[fc.outputs] for a in parts[fc.kernel].arrays]
  with scope(outside):
    sides = _sides(graph, fc, fc.activation, known, widths)
  made = []
  for i, module in enumerate(parts[fc.kernel].modules):
    with scope(outside):
      x = tags.seam(known[fc.x])
    with scope(module):
      local = _activate(graph, fc, fc.activation, _fc(graph, fc, x, parts, i, True), known, sides[i])
      made.append(local[fc.result])
  with scope(outside):
    return fc.result, lax.concatenate(made, fc.axis)


def _horizontal(graph: Graph, fc: Fc, known: Known, parts: dict[int, Parts]) -> tuple[int, Any]:
  outside = graph.operators[fc.dot].name
  with scope(outside):
    xs = lax.split(known[fc.x], [a.shape[fc.inputs] for a in parts[fc.kernel].arrays], fc.x_axis)
  made = []
  for i, module in enumerate(parts[fc.kernel].modules):
    with scope(module):
      made.append(_fc(graph, fc, xs[i], parts, i, i == 0))
  with scope(outside):
    return _end(graph, fc), functools.reduce(lax.add, made)


def _both(graph: Graph, first: Fc, between: Sequence[int], second: Fc, known: Known,
          parts: dict[int, Parts]) -> tuple[int, Any]:
  outside = graph.operators[first.dot].name
  widths = [a.shape[first.outputs] for a in parts[first.kernel].arrays]
  with scope(outside):
    sides = _sides(graph, first, between, known, widths)
  made = []
  for i, module in enumerate(parts[first.kernel].modules):
    with scope(outside):
      x = tags.seam(known[first.x])
    with scope(module):
      local = _activate(graph, first, between, _fc(graph, first, x, parts, i, True), known, sides[i])
    with scope(parts[second.kernel].modules[i]):
      made.append(_fc(graph, second, local[second.x], parts, i, i == 0))
  with scope(graph.operators[second.dot].name):
    return _end(graph, second), functools.reduce(lax.add, made)


def _end(graph: Graph, fc: Fc) -> int:
  """The value behind the bias."""
  return graph.operators[fc.start[-1] if fc.start else fc.dot].outputs[0]


def _fc(graph: Graph, fc: Fc, x: Any, parts: dict[int, Parts], i: int, with_bias: bool) -> Any:
  """A part of an FC, up to its bias."""
  kernel = parts[fc.kernel].arrays[i]
  for view in fc.views:
    kernel, = bind_to(graph.operators[view], [kernel])
  y, = bind_to(graph.operators[fc.dot], [x, kernel] if fc.side == 1 else [kernel, x])
  for k in fc.start:
    if graph.operators[k].kind != 'add':
      y, = bind_to(graph.operators[k], [y])
    elif with_bias and fc.bias is not None:
      y = jnp.add(y, _bias(graph, fc, parts[fc.bias].arrays[i], y.ndim))
  return y


def _bias(graph: Graph, fc: Fc, bias: Any, ndim: int) -> Any:
  for view in fc.bias_views:
    if graph.operators[view].kind == 'convert_element_type':
      bias, = bind_to(graph.operators[view], [bias])
  return jnp.reshape(bias, [-1 if d == fc.axis else 1 for d in range(ndim)])


def _sides(graph: Graph, fc: Fc, inside: Sequence[int], known: Known, widths: Sequence[int]) -> list[Known]:
  """Parts of all that elementwise operators read from elsewhere, as wide as the parts of an FC."""
  own = {v for i in inside for v in graph.operators[i].outputs} | {_end(graph, fc)}
  read = {v for i in inside for v in graph.operators[i].reads} - own
  wide = [v for v in sorted(read) if known[v].ndim and known[v].shape[fc.axis] == sum(widths)]
  cut = {v: lax.split(known[v], widths, fc.axis) for v in wide}
  return [{v: cut[v][i] for v in wide} for i in range(len(widths))]


def _activate(graph: Graph, fc: Fc, inside: Sequence[int], y: Any, known: Known, sides: Known) -> Known:
  """Elementwise operators on a part of what an FC makes: all that they make of it."""
  local = {_end(graph, fc): y, **sides}
  for i in inside:
    op = graph.operators[i]
    given = [x.val if isinstance(x, core.Literal) else local[x] if x in local else known[x] for x in op.inputs]
    made = narrow.run(op, given, y.shape)
    local.update(zip(op.outputs, made, strict=True))
  return local


def _look_up(graph: Graph, table: Table, lookup: int, known: Known, parts: dict[int, Parts]) -> tuple[int, Any]:
  """Every part looks up the rows that it has, and gives zeros for others."""
  op = _in_any_order(graph.operators[lookup])
  views = [i for i in table.views if i in _before(graph, lookup)]
  shards, modules = parts[table.table]
  ends = list(itertools.accumulate(s.shape[0] for s in shards))
  made = []
  for i, module in enumerate(modules):
    low, high = ends[i] - shards[i].shape[0], ends[i]
    with scope(module):
      shard = shards[i]
      for view in views:
        shard, = bind_to(graph.operators[view], [shard])
      ids = _wide(op.inputs[1].val if isinstance(op.inputs[1], core.Literal) else known[op.inputs[1]])
      # Numbers of no row are left to the first and the last part, which treat them as the whole table would.
      own = jnp.logical_and(True if i == 0 else ids >= low, True if high == ends[-1] else ids < high)
      own = jnp.broadcast_to(own, ids.shape)
      rows, = bind_to(op, [shard, jnp.where(own, ids - low, 0)])
      made.append(jnp.where(_per_row(op, own[..., 0], rows), rows, 0))
  with scope(op.name):
    return op.outputs[0], functools.reduce(lax.add, made)


def _in_any_order(op: Operator) -> Operator:
  """A look-up that promises nothing of its numbers: those of other parts' rows all become the same one."""
  params = op.equation.params | {'indices_are_sorted': False, 'unique_indices': False}
  return dataclasses.replace(op, equation=op.equation.replace(params=params))


def _before(graph: Graph, lookup: int) -> set[int]:
  """Operators between a table and a look-up."""
  found: set[int] = set()
  reads = graph.operators[lookup].reads[:1]
  while reads and (maker := graph.producer.get(reads[0])) is not None:
    found.add(maker)
    reads = graph.operators[maker].reads[:1]
  return found


def _wide(ids: jax.Array) -> jax.Array:
  """Numbers of rows in a type that holds all of them."""
  return ids if ids.dtype.itemsize >= 4 and jnp.issubdtype(ids.dtype, jnp.signedinteger) else ids.astype(jnp.int32)


def _per_row(op: Any, mask: jax.Array, rows: jax.Array) -> jax.Array:
  numbers = op.equation.params['dimension_numbers']
  return lax.broadcast_in_dim(mask, rows.shape, [d for d in range(rows.ndim) if d not in numbers.offset_dims])
