"""Tags: where the user wants a value to be made. `on` is the identity; nothing of it is left in a program."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
from jax.extend import core
from jax.interpreters import ad, batching, mlir

if TYPE_CHECKING:
  from dct_jax.partition.graph import Operator, Slot

LOOPS = ('scan', 'while', 'cond')

_tag = core.Primitive('partition_tag')
_tag.def_impl(lambda x, **_: x)
_tag.def_abstract_eval(lambda x, **_: x)
ad.deflinear2(_tag, lambda ct, _, *, node, back: [_tag.bind(ct, node=node, back=not back)])
batching.defvectorized(_tag)
mlir.register_lowering(_tag, lambda ctx, x, **_: [x])


def on(x: Any, node: str) -> Any:
  """Says on which node `x` is made: the operator that computes it, and those that take its gradient.

  Args:
    x: an array, or a pytree of them. An argument of the program (a parameter) lives on that node.
    node: 'trainer', 'group0', 'group1', ..., 'sparse0', ...; or 'group' and 'sparse' for any one of that kind.

  Returns:
    The same `x`. Outside a plan this does nothing at all.

  Examples:
    >>> import jax, jax.numpy as jnp
    >>> float(jax.jit(lambda x: on(jnp.sin(x), 'trainer'))(0.0))
    0.0
  """
  if not isinstance(node, str) or not node:
    raise ValueError(f'a tag is the name of a node, got {node=}')
  return jax.tree.map(lambda leaf: _tag.bind(leaf, node=node, back=False), x)


def seam(x: jax.Array) -> jax.Array:
  """The identity. What adds up gradients behind it has the name of the scope that it is in, and no tag."""
  return _tag.bind(x, node=None, back=False)


def names_a_node(op: Operator) -> bool:
  """Whether an operator is a tag, in a program that has not been differentiated."""
  return op.equation.primitive is _tag and op.equation.params['node'] is not None


def refuse(equation: core.JaxprEqn, name: str) -> None:
  """Raises for what cannot be cut."""
  kind, where = equation.primitive.name, f' in {name!r}' if name else ''
  if equation.effects:
    raise ValueError(f'{kind}{where} has an effect ({", ".join(sorted(map(str, equation.effects)))}): a program with '
                     'effects cannot be cut, take it out of the loss')
  exchange = _exchange(equation)
  if exchange:
    raise ValueError(f'{exchange}{where} is an exchange between devices of a mesh: a plan has nodes instead')
  if kind in LOOPS and any(map(_holds_tag, inner(equation))):
    raise ValueError(f'a tag inside {kind}{where}: a loop or a branch is one operator and runs on one node; tag what '
                     'goes into it or comes out of it')


def _exchange(equation) -> str | None:
  """The name of what needs a mesh: an exchange, here or deeper down, or else the map over devices itself."""
  axes = equation.params.get('axes')
  named = isinstance(axes, (tuple, list)) and any(isinstance(a, str) for a in axes)
  if named or 'axis_name' in equation.params:
    return equation.primitive.name
  deeper = (_exchange(e) for jaxpr in inner(equation) for e in jaxpr.eqns)
  return next(filter(None, deeper), 'shard_map' if equation.primitive.name == 'shard_map' else None)


def inner(equation) -> list[Any]:
  """Jaxprs among the parameters of an equation."""
  is_jaxpr = lambda x: hasattr(x, 'eqns') or hasattr(x, 'jaxpr')
  leaves = jax.tree.leaves(list(equation.params.values()), is_leaf=is_jaxpr)
  return [getattr(x, 'jaxpr', x) for x in leaves if is_jaxpr(x)]


def _holds_tag(jaxpr) -> bool:
  return any(e.primitive is _tag or any(map(_holds_tag, inner(e))) for e in jaxpr.eqns)


def settle(slots: Sequence[Slot], operators: Sequence[Operator]) -> tuple[list[Slot], list[Operator], dict[int, int]]:
  """Gives tags to the operators and slots that they speak of, and takes the markers out.

  Returns:
    Slots, operators, and for every value that a marker has made the one that it stands for.
  """
  same: dict[int, int] = {}
  seen = lambda x: same.get(x, x) if isinstance(x, int) else x
  makes: dict[int, str] = {}  # value -> the node of whatever makes it
  takes: dict[int, str] = {}  # what a marker of a gradient has made -> the node of whatever reads that
  kept = []
  for op in operators:
    inputs = tuple(seen(x) for x in op.inputs)
    wants = [takes[x] for x in op.inputs if isinstance(x, int) and x in takes]
    if op.equation.primitive is not _tag:
      kept.append(dataclasses.replace(op, inputs=inputs, tag=wants[0] if wants else None))
      continue
    node, back = op.equation.params['node'], op.equation.params['back']
    if not isinstance(inputs[0], int):  # a marker of a literal: a gradient that is known
      kept.append(dataclasses.replace(op, inputs=inputs, tag=node))
      continue
    same[op.outputs[0]] = inputs[0]
    # Values that are added have one gradient, so what counts is who reads it through this marker.
    if wants or (back and node):
      takes[op.outputs[0]] = node if back and node else wants[0]
    if node and not back and makes.setdefault(inputs[0], node) != node:
      raise ValueError(f'a value{f" in {op.name!r}" if op.name else ""} has tags for {makes[inputs[0]]} and {node}')

  def tagged(op):
    found = [makes[v] for v in op.outputs if v in makes]
    if len(set(found)) > 1:
      raise ValueError(f'{op.kind} in {op.name!r} is one operator, but has tags for {" and ".join(sorted(set(found)))}')
    return dataclasses.replace(op, tag=found[0]) if found else op

  return ([dataclasses.replace(s, tag=makes.get(s.value)) for s in slots], [tagged(op) for op in kept], same)
