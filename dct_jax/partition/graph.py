"""The train net: a loss, its gradients and an optimizer's update as one flat list of operators.

Calls are inlined, so that an operator is an equation of a jaxpr that computes something. What loops or branches (scan,
while, cond) stays one operator. Names come from the user's own: modules and `jax.named_scope`.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import optax
from jax.extend import core

from dct_jax.partition import fingerprint, tags

CALLS = {'jit': 'jaxpr', 'closed_call': 'call_jaxpr', 'core_call': 'call_jaxpr', 'remat2': 'jaxpr',
         'custom_jvp_call': 'call_jaxpr', 'custom_vjp_call': 'call_jaxpr'}
PLAIN_CALLS = {kind: CALLS[kind] for kind in ('jit', 'closed_call', 'core_call')}  # without rules for gradients
FORWARD, BACKWARD, UPDATE = 'forward', 'backward', 'update'
PARAMETER, OPTIMIZER, BATCH = 'parameter', 'optimizer', 'batch'
LOSS, AUX = 'loss', 'aux'
_WRAPPER = re.compile(r'\b(?:jvp|transpose|vmap|jit|remat|checkpoint|rematted_computation|custom_jvp|custom_vjp)\(')


@dataclasses.dataclass(frozen=True)
class Operator:
  """An equation: what it reads and what it makes, as numbers of values; a literal is read as it is."""

  equation: core.JaxprEqn
  inputs: tuple[int | core.Literal, ...]
  outputs: tuple[int, ...]
  name: str
  phase: str
  tag: str | None = None

  @property
  def kind(self) -> str:
    return self.equation.primitive.name

  @property
  def reads(self) -> tuple[int, ...]:
    """Values that it reads, each once."""
    return tuple(dict.fromkeys(x for x in self.inputs if isinstance(x, int)))


@dataclasses.dataclass(frozen=True)
class Slot:
  """An input of the whole program: a parameter, a part of the optimizer's state, or of a batch."""

  value: int
  kind: str
  path: str
  tag: str | None = None


@dataclasses.dataclass(frozen=True)
class Output:
  """An output of the whole program. What belongs to a slot is what the slot holds after the step."""

  source: int | core.Literal
  kind: str
  slot: int | None = None


@dataclasses.dataclass(frozen=True)
class Graph:
  """A flat program.

  Attributes:
    avals: shape and type of every value.
    constants: arrays that the function holds, by value.
    slots: inputs, in order.
    operators: in an order in which they can run.
    outputs: in order.
    in_tree, out_tree: of the function that was traced.
    gradients: value (or None for a constant zero) of each parameter's gradient, by slot.
  """

  avals: tuple[Any, ...]
  constants: dict[int, Any]
  slots: tuple[Slot, ...]
  operators: tuple[Operator, ...]
  outputs: tuple[Output, ...]
  in_tree: Any
  out_tree: Any
  gradients: dict[int, int]

  @functools.cached_property
  def producer(self) -> dict[int, int]:
    """Value -> the operator that makes it."""
    return {v: i for i, op in enumerate(self.operators) for v in op.outputs}

  @functools.cached_property
  def consumers(self) -> dict[int, list[int]]:
    """Value -> operators that read it."""
    users: dict[int, list[int]] = {}
    for i, op in enumerate(self.operators):
      for v in op.reads:
        users.setdefault(v, []).append(i)
    return users

  @functools.cached_property
  def slot_of(self) -> dict[int, int]:
    """Value -> the slot that it is."""
    return {s.value: i for i, s in enumerate(self.slots)}

  @functools.cached_property
  def fingerprint(self) -> str:
    """Changes with the program, but for values of constants: a saved plan fits a program with the same one."""
    return fingerprint.of(self)


def nbytes(aval: Any) -> int:
  """Bytes of a value; a key counts as the words that it travels as."""
  if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
    aval = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, aval.dtype))
  return int(aval.size) * aval.dtype.itemsize


def train_net(loss: Callable, optimizer: optax.GradientTransformation, params: Any, *batch: Any,
              has_aux: bool = False) -> Graph:
  """Traces `loss(params, *batch)`, its gradients, and the optimizer's update of parameters.

  Args:
    loss: returns a scalar; with `has_aux`, a pair of it and anything.
    optimizer: whose state is a slot beside the parameters. State must not need anything but gradients and parameters.
    params: arrays, or their shapes and types.
    *batch: likewise, all other arguments of `loss`.
    has_aux: whether `loss` returns more than a number.

  Returns:
    The graph of the function `(params, state, *batch) -> (params, state, loss)`, with `aux` at the end if there is any.

  Raises:
    ValueError: for a function with effects, a tag inside a loop, or an exchange between devices.
  """
  params, batch = shapes(params), shapes(batch)
  _check(optimizer, params)
  state = jax.eval_shape(optimizer.init, params)
  gradient = jax.value_and_grad(loss, has_aux=has_aux)

  def update(grads, state, params):
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state

  build = _Builder()
  held = build.slots(params, PARAMETER)
  kept = build.slots(state, OPTIMIZER)
  given = build.slots(batch, BATCH)
  traced, (value, grads) = jax.make_jaxpr(gradient, return_shape=True)(params, *batch)
  made = build.inline(traced, (*held, *given), '', None)
  count = len(jax.tree.leaves(value))
  after, _ = jax.make_jaxpr(update, return_shape=True)(grads, state, params)
  new = build.inline(after, (*made[count:], *kept, *held), '', UPDATE)
  stored = [Output(x, PARAMETER if i < len(held) else OPTIMIZER, i) for i, x in enumerate(new)]
  told = [Output(x, AUX if i else LOSS) for i, x in enumerate(made[:count])]
  out = (params, state, *(value if has_aux else (value,)))
  gradients = {i: x for i, x in enumerate(made[count:]) if isinstance(x, int)}
  return build.graph([*stored, *told], jax.tree.structure((params, state, *batch)), jax.tree.structure(out), gradients)


def _check(optimizer: Any, params: Any) -> None:
  if not (callable(getattr(optimizer, 'init', None)) and callable(getattr(optimizer, 'update', None))):
    raise ValueError(f'an optimizer of optax has init and update, got {optimizer!r}')
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    if not jax.numpy.issubdtype(leaf.dtype, jax.numpy.inexact):
      raise ValueError(f'parameters have gradients, but {_path(path)!r} is {leaf.dtype}: make it part of the batch')


def _path(path: Any) -> str:
  return jax.tree_util.keystr(path, simple=True, separator='/')


def forward_net(function: Callable, params: Any, *batch: Any) -> Graph:
  """The graph of a function before it is differentiated: tags, remat and functions with rules of their own stay."""
  params, batch = shapes(params), shapes(batch)
  build = _Builder(PLAIN_CALLS)
  given = (*build.slots(params, PARAMETER), *build.slots(batch, BATCH))
  traced, out = jax.make_jaxpr(function, return_shape=True)(params, *batch)
  outputs = tuple(Output(x, AUX) for x in build.inline(traced, given, '', FORWARD))
  return Graph(tuple(build.avals), build.constants, tuple(build.made), tuple(build.operators), outputs,
               jax.tree.structure((params, *batch)), jax.tree.structure(out), {})


def shapes(tree: Any) -> Any:
  """Shapes and types of arrays."""
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(jax.numpy.shape(x), jax.numpy.result_type(x)), tree)


def trace(function: Callable, *arguments: Any) -> Graph:
  """The graph of any function, all of whose arguments are a batch."""
  build = _Builder()
  given = build.slots(arguments, BATCH)
  traced, out = jax.make_jaxpr(function, return_shape=True)(*arguments)
  made = build.inline(traced, given, '', None)
  return build.graph([Output(x, AUX) for x in made], jax.tree.structure(arguments), jax.tree.structure(out), {})


class _Builder:
  """Numbers values while equations of several jaxprs are put in a row."""

  def __init__(self, calls: dict[str, str] = CALLS):
    self.calls = calls
    self.avals: list[Any] = []
    self.constants: dict[int, Any] = {}
    self.made: list[Slot] = []
    self.operators: list[Operator] = []

  def value(self, aval) -> int:
    self.avals.append(aval)
    return len(self.avals) - 1

  def slots(self, tree, kind) -> tuple[int, ...]:
    first = len(self.made)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
      self.made.append(Slot(self.value(jax.core.ShapedArray(leaf.shape, leaf.dtype)), kind, _path(path)))
    return tuple(s.value for s in self.made[first:])

  def inline(self, closed, inputs, prefix, phase) -> tuple[int | core.Literal, ...]:
    """Appends a jaxpr's equations. Values of its outputs."""
    jaxpr = closed.jaxpr if isinstance(closed, core.ClosedJaxpr) else closed
    known: dict[Any, int | core.Literal] = dict(zip(jaxpr.invars, inputs, strict=True))
    for var, constant in zip(jaxpr.constvars, getattr(closed, 'consts', ()), strict=True):
      known[var] = self.constant(var.aval, constant)
    read = lambda x: x if isinstance(x, core.Literal) else known[x]
    for equation in jaxpr.eqns:
      name = '/'.join(x for x in (prefix, str(equation.source_info.name_stack)) if x)
      given = tuple(read(x) for x in equation.invars)
      inner = self.calls.get(equation.primitive.name)
      if inner:
        made = self.inline(equation.params[inner], given, name, phase)
      else:
        made = self.equation(equation, given, name, phase)
      known.update((var, v) for var, v in zip(equation.outvars, made, strict=True))
    return tuple(read(x) for x in jaxpr.outvars)

  def constant(self, aval, array) -> int:
    v = self.value(aval)
    self.constants[v] = array
    return v

  def equation(self, equation, inputs, name, phase) -> tuple[int, ...]:
    tags.refuse(equation, name)
    outputs = tuple(self.value(v.aval) for v in equation.outvars)
    phase = phase or (BACKWARD if 'transpose(' in name else FORWARD)
    self.operators.append(Operator(equation, inputs, outputs, clean(name), phase))
    return outputs

  def graph(self, outputs, in_tree, out_tree, gradients) -> Graph:
    slots, operators, same = tags.settle(self.made, self.operators)
    seen = lambda x: same.get(x, x) if isinstance(x, int) else x
    outputs = tuple(dataclasses.replace(o, source=seen(o.source)) for o in outputs)
    return Graph(tuple(self.avals), self.constants, tuple(slots), _needed(operators, outputs), outputs, in_tree,
                 out_tree, {s: seen(v) for s, v in gradients.items()})


def clean(name: str) -> str:
  """A path of the user's names, without what transformations have put around them."""
  before = None
  while before != name:
    before, name = name, _WRAPPER.sub('(', name)
  return '/'.join(part for part in name.replace('(', '').replace(')', '').split('/') if part)


def _needed(operators: Sequence[Operator], outputs: Sequence[Output]) -> tuple[Operator, ...]:
  """Without operators that no output needs."""
  wanted = {o.source for o in outputs if isinstance(o.source, int)}
  kept = []
  for op in reversed(operators):
    if wanted.intersection(op.outputs):
      wanted.update(op.reads)
      kept.append(op)
  return tuple(reversed(kept))
