"""Elementwise operators on a part of what they were traced for: fewer entries along one axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from dct_jax.partition.blocks import ELEMENTWISE
from dct_jax.partition.graph import Graph, Operator, trace
from dct_jax.partition.segments import bind_to

KINDS = ELEMENTWISE - {'broadcast_in_dim'}


def is_elementwise(op: Operator, shape: tuple[int, ...]) -> bool:
  """Whether an operator makes every entry of arrays of this shape of the same entry of what it reads."""
  if any(a.shape != shape for a in _avals(op.equation.outvars)):
    return False
  if op.kind != 'custom_jvp_call':
    return op.kind in KINDS
  floats = all(jnp.issubdtype(a.dtype, jnp.floating) for a in _avals(op.equation.invars))
  return floats and not op.equation.params['symbolic_zeros'] and all(_is_flat(g, shape) for g in _rules(op))


def _avals(variables: Sequence[Any]) -> list[Any]:
  return [v.aval for v in variables]


def _is_flat(graph: Graph, shape: tuple[int, ...]) -> bool:
  made = [graph.avals[v] for op in graph.operators for v in op.outputs]
  alone = all(getattr(c, 'shape', ()) == () for c in graph.constants.values())
  broadcast = lambda op: op.kind == 'broadcast_in_dim' and _avals(op.equation.invars)[0].shape == ()
  return alone and all(a.shape in ((), shape) for a in made) and all(
      op.kind in KINDS or broadcast(op) for op in graph.operators)


def run(op: Operator, given: Sequence[Any], shape: tuple[int, ...]) -> Sequence[Any]:
  """Runs an elementwise operator on arrays that broadcast to `shape`, which need not be the one it was traced for."""
  if op.kind != 'custom_jvp_call':
    return _bind(op, given, shape)
  value, derivative = _rules(op)
  call = jax.custom_jvp(lambda *xs: tuple(_evaluate(value, xs, shape)))
  count = len(op.outputs)

  @call.defjvp
  def _(xs, tangents):
    made = _evaluate(derivative, (*xs, *tangents), shape)
    return tuple(made[:count]), tuple(made[count:])

  return call(*(jnp.asarray(x) for x in given))


def _rules(op: Operator) -> tuple[Graph, Graph]:
  """The value, and the value with its derivative, of a function that has a rule for it."""
  call = lambda *xs: tuple(_bind(op, xs, ()))
  avals = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in _avals(op.equation.invars)]
  half = len(avals)
  return trace(call, *avals), trace(lambda *xs: jax.jvp(call, xs[:half], xs[half:]), *avals, *avals)


def _evaluate(graph: Graph, arrays: Sequence[Any], shape: tuple[int, ...]) -> list[Any]:
  known = {s.value: x for s, x in zip(graph.slots, arrays, strict=True)} | graph.constants
  read = lambda x: x.val if isinstance(x, core.Literal) else known[x]
  for op in graph.operators:
    known.update(zip(op.outputs, _bind(op, [read(x) for x in op.inputs], shape), strict=True))
  return [read(o.source) for o in graph.outputs]


def _bind(op: Operator, given: Sequence[Any], shape: tuple[int, ...]) -> Sequence[Any]:
  if op.kind == 'broadcast_in_dim':  # of a number, to everything
    return [jnp.broadcast_to(given[0], shape)]
  return bind_to(op, given)
