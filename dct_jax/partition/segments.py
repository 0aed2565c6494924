"""Segments: operators that a node runs in one go, as one compiled function. Equal ones share a compilation."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from dct_jax.partition.graph import Graph, Operator

JAXPRS = (core.ClosedJaxpr, core.Jaxpr)
CACHED = 4096  # functions that are remembered
_functions: collections.OrderedDict[Any, Callable] = collections.OrderedDict()


@dataclasses.dataclass(frozen=True)
class Segment:
  """Part of a program.

  Attributes:
    operators: their numbers.
    inputs, outputs: numbers of values.
    function: arrays of inputs -> tuple of arrays of outputs, compiled when first called.
    phase: of the last operator: 'update' if it may write parameters.
  """

  operators: tuple[int, ...]
  inputs: tuple[int, ...]
  outputs: tuple[int, ...]
  function: Callable
  phase: str


def cut(graph: Graph, groups: Sequence[Sequence[int]], leaving: Sequence[int]) -> list[Segment]:
  """A segment for each group of operators of a node, which run one after the other.

  Args:
    graph: the whole program.
    groups: numbers of operators, each group in an order in which they can run.
    leaving: values that are wanted outside of all groups.
  """
  made, wanted = [], set(leaving)
  for group in reversed(groups):
    operators = [graph.operators[i] for i in group]
    own = {v for op in operators for v in op.outputs}
    inputs = tuple(dict.fromkeys(v for op in operators for v in op.reads if v not in own))
    outputs = tuple(v for op in operators for v in op.outputs if v in wanted)
    wanted.update(inputs)
    made.append(Segment(tuple(group), inputs, outputs, function_of(operators, inputs, outputs), operators[-1].phase))
  return made[::-1]


def function_of(operators: Sequence[Operator], inputs: Sequence[int], outputs: Sequence[int]) -> Callable:
  """A compiled function of these operators, the same one for those that differ in numbers of values alone."""
  key = _key(operators, inputs, outputs)
  if key in _functions:
    _functions.move_to_end(key)
    return _functions[key]

  def run(*arrays):
    known = dict(zip(inputs, arrays, strict=True))
    for op in operators:
      known.update(zip(op.outputs, bind(op, known), strict=True))
    return tuple(known[v] for v in outputs)

  _functions[key] = jax.jit(run)
  if len(_functions) > CACHED:
    _functions.popitem(last=False)
  return _functions[key]


def bind(op: Operator, known: dict[int, Any]) -> Sequence[Any]:
  """Runs one operator on values that are known by their numbers."""
  return bind_to(op, [x.val if isinstance(x, core.Literal) else known[x] for x in op.inputs])


def bind_to(op: Operator, given: Sequence[Any]) -> Sequence[Any]:
  """Runs one operator on other arrays."""
  equation = op.equation
  params = equation.primitive.get_bind_params(equation.params)
  functions, params = params if isinstance(params, tuple) else ((), params)  # older JAX has functions apart
  made = equation.primitive.bind(*functions, *given, **params)
  return made if equation.primitive.multiple_results else [made]


def _key(operators, inputs, outputs):
  number = {v: i for i, v in enumerate(inputs)}
  rows = []
  for op in operators:
    given = tuple(_literal(x) if isinstance(x, core.Literal) else number[x] for x in op.inputs)
    for v in op.outputs:
      number[v] = len(number)
    rows.append((op.kind, tuple((k, _token(v)) for k, v in sorted(op.equation.params.items())), given,
                 tuple(str(v.aval) for v in op.equation.outvars)))
  shapes = {x: str(v.aval) for op in operators for x, v in zip(op.inputs, op.equation.invars, strict=True)
            if isinstance(x, int)}
  return tuple(rows), tuple(shapes[v] for v in inputs), tuple(number[v] for v in outputs)


def _literal(x: core.Literal) -> Any:
  return str(x.aval), np.asarray(x.val).tobytes()


def _token(x: Any) -> Any:
  """Something that is equal for equal parameters of operators."""
  if isinstance(x, core.ClosedJaxpr):
    return _token(x.jaxpr), tuple(id(c) for c in x.consts)
  if isinstance(x, core.Jaxpr):
    return str(x), tuple(_unseen(x))
  if isinstance(x, (tuple, list)):
    return tuple(map(_token, x))
  return id(x) if callable(x) and not isinstance(x, type) else repr(x)


def _unseen(jaxpr: core.Jaxpr) -> Iterator[Any]:
  """What the text of a jaxpr does not tell: exact numbers, and constants that calls inside of it hold."""
  for equation in jaxpr.eqns:
    yield from (_literal(x) for x in equation.invars if isinstance(x, core.Literal))
    for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: isinstance(x, JAXPRS)):
      if isinstance(inner, JAXPRS):
        yield _token(inner)
