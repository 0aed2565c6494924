"""State that says what it is: which of its leaves are a worker's own, and what becomes of them on other workers.

A state class declares it once, beside its fields:

    >>> from typing import NamedTuple
    >>> import jax, jax.numpy as jnp
    >>> from dct_jax import state
    >>> class MyState(NamedTuple):
    ...   step: jax.Array
    ...   residual: jax.Array
    ...   PER_WORKER = {'residual': state.SUM}  # no annotation: this is no field

and then takes part in everything: `dct_jax.init` places a residual on each worker, a checkpoint keeps all of them
and gives them to another number of workers, their sum unchanged. What is not named is equal on all workers.
Per-worker leaves have at least one dimension, along which workers lie; scalars among them are shared.

    >>> state.rules((MyState(jnp.zeros(()), jnp.zeros(3)), jnp.zeros(2)))
    [None, 'sum', None]

A state inside another one may declare for itself; a field of rule `INNER` only holds such states and whatever
else an optimizer may have, about which nothing is declared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

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

_foreign: dict[type, Mapping[str, str]] = {}


def declare(cls: type, **fields: str) -> None:
  """Speaks for a state class that is not ours and cannot do it itself.

  Args:
    cls: a NamedTuple or a dataclass that is registered as a pytree.
    **fields: rules of the fields that are not equal on all workers.
  """
  _foreign[cls] = fields


def per_worker(node: Any) -> Mapping[str, str] | None:
  """What the class of a node declares; None if it declares nothing."""
  kind = type(node)
  return _foreign[kind] if kind in _foreign else getattr(kind, 'PER_WORKER', None)


def _speaks(node):
  return per_worker(node) is not None


class Leaf(NamedTuple):
  """What is known of a leaf without looking at what an optimizer does."""

  path: str
  rule: str | None  # None: equal on all workers, or not declared
  declared: bool  # False: nobody says anything; it may differ by worker all the same, which tracing tells


def visit(tree: Any, default: str | None = None, declared: bool = False) -> list[Leaf]:
  """Every leaf of a state, in their order; `default` is the rule of those about which nobody says more."""
  out = []
  for path, node in jax.tree_util.tree_leaves_with_path(tree, is_leaf=_speaks):
    here, own = jax.tree_util.keystr(path), per_worker(node)
    if own is None:
      out.append(Leaf(here, _of_leaf(default, node), declared))
      continue
    for key, child in _children(node):
      rule = own.get(key)
      inside = visit(child, None if rule == INNER else rule, rule != INNER)
      out += [leaf._replace(path=f'{here}.{key}{leaf.path}') for leaf in inside]
  return out


def rules(tree: Any) -> list[str | None]:
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
  return [(getattr(key, 'name', None) or getattr(key, 'key', None), child) for (key,), child in fields]


declare(optax.MultiStepsState, acc_grads=MEAN, inner_opt_state=INNER)
