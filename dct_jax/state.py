"""State that says what it is: which leaves are a worker's own, and how they go to another number of workers.

A state class declares it once, above its fields:

    >>> from typing import NamedTuple
    >>> import jax, jax.numpy as jnp
    >>> from dct_jax import state
    >>> @state.own(residual=state.SUM)
    ... class MyState(NamedTuple):
    ...   step: jax.Array
    ...   residual: jax.Array

and then takes part in everything: `dct_jax.init` places a residual on each worker, a checkpoint keeps all of them
and gives them to another number of workers, their sum unchanged. What is not named is equal on all workers.
Per-worker leaves have at least one dimension, along which workers lie; scalars among them are shared.

    >>> state.rules((MyState(jnp.zeros(()), jnp.zeros(3)), jnp.zeros(2)))
    [None, 'sum', None]

What is dealt out over workers, in one way for each number of them, has a `Dealt` for a rule. A rule may depend on a
state, by what is static in it: instead of one, give a function of the state that returns a rule for a field, or one for
each leaf of it.

A state inside another one may declare for itself; a field of rule `INNER` only holds such states and whatever
else an optimizer may have, about which nothing is declared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
import optax

SUM = 'sum'  # amounts that are still to be added somewhere: their sum over workers stays
MEAN = 'mean'  # amounts that the next ones are averaged with: their mean over workers stays
MERGE = 'merge'  # estimates, one a worker: averaged where workers join, copied where they part
COPY = 'copy'  # whatever another worker has will do
RANK = 'rank'  # the worker's own number
NEVER = 'never'  # only as many workers as made it can go on with it
INNER = 'inner'  # states of others, which speak for themselves
RULES = (SUM, MEAN, MERGE, COPY, RANK, NEVER, INNER)


class Dealt(NamedTuple):
  """The rule of an array that is dealt out over workers."""

  # The shape of all parts, one after the other, of any number of workers -> the same of another number.
  shape: Callable[[tuple[int, ...], int], tuple[int, ...]]
  # (all parts, old number of workers, new number, 'sum' or 'mean' of amounts that stays) -> all parts.
  move: Callable[[np.ndarray, int, int, str], np.ndarray]


State = TypeVar('State')
Rule = str | Dealt

_declared: dict[type, Mapping[str, Any]] = {}


def declare(cls: type, **fields: str | Callable[[Any], Rule | Sequence[Rule]]) -> None:
  """Speaks for a state class that is not ours and cannot do it itself.

  Args:
    cls: a NamedTuple, or a dataclass that is registered as a pytree.
    **fields: rules of the fields that are not equal on all workers, or what finds them in a state.

  Raises:
    ValueError: for a field that the class does not have, or an unknown rule.
  """
  known = getattr(cls, '_fields', None) or tuple(getattr(cls, '__dataclass_fields__', fields))
  strangers = sorted(set(fields) - set(known))
  unknown = sorted({rule for rule in fields.values() if not callable(rule)} - set(RULES))
  if strangers or unknown:
    raise ValueError(f'{cls.__name__} has the fields {known}, and rules are {RULES}, got {strangers=} and {unknown=}')
  _declared[cls] = fields


def own(**fields: str | Callable[[Any], Rule | Sequence[Rule]]) -> Callable[[type[State]], type[State]]:
  """Declares, above a state class, which of its fields are a worker's own; the same as `declare` after it."""

  def decorate(cls):
    declare(cls, **fields)
    return cls

  return decorate


def _speaks(node):
  return type(node) in _declared


class Leaf(NamedTuple):
  """What is known of a leaf without looking at what an optimizer does."""

  path: str
  rule: Rule | None  # None: equal on all workers, or not declared
  declared: bool  # False: nobody says anything; it may differ by worker all the same, which tracing tells


def visit(tree: Any, default: Rule | None = None, declared: bool = False) -> list[Leaf]:
  """Every leaf of a state, in their order; `default` is the rule of those about which nobody says more."""
  out = []
  for path, node in jax.tree_util.tree_leaves_with_path(tree, is_leaf=_speaks):
    here, said = jax.tree_util.keystr(path), _declared.get(type(node))
    if said is None:
      out.append(Leaf(here, _of_leaf(default, node), declared))
      continue
    for key, child in _children(node):
      rule = said.get(key)
      rule = rule(node) if callable(rule) else rule
      inside = visit(child, None if rule == INNER or isinstance(rule, list) else rule, rule != INNER)
      if isinstance(rule, list):
        inside = [leaf._replace(rule=one, declared=True) for leaf, one in zip(inside, rule, strict=True)]
      out += [leaf._replace(path=f'{here}.{key}{leaf.path}') for leaf in inside]
  return out


def rules(tree: Any) -> list[Rule | None]:
  """The rule of every leaf, in their order; None for what is equal on all workers or not declared."""
  return [leaf.rule for leaf in visit(tree)]


def find(tree: Any, is_one: Callable[[Any], bool]) -> list[Any]:
  """The outermost nodes of a tree for which `is_one` holds."""
  return [x for x in jax.tree.leaves(tree, is_leaf=is_one) if is_one(x)]


def of_amounts(leaf: Any) -> bool:
  """Whether a leaf can be an amount: integers (counters, random keys) never are."""
  return np.issubdtype(leaf.dtype, np.inexact) or leaf.dtype.name == 'bfloat16'


def _of_leaf(rule, leaf):
  return COPY if rule in (SUM, MEAN, MERGE) and not of_amounts(leaf) else rule


def _children(node):
  """Names and values of a node's fields, in the order of its leaves."""
  fields, _ = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
  known = list(getattr(node, '__dataclass_fields__', ()))  # for pytrees whose children have but numbers

  def name(key):
    found = getattr(key, 'name', None) or getattr(key, 'key', None)
    return known[found] if isinstance(found, int) and known else found

  return [(name(key), child) for (key,), child in fields]


declare(optax.MultiStepsState, acc_grads=MEAN, inner_opt_state=INNER)
