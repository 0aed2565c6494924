"""Several local gradients for one exchange."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from dct_jax import axes
from dct_jax.contract import Receipt
from dct_jax.state import INNER, MEAN, own


def _without_receipts(state):
  """Nothing was exchanged in this step, so nothing may be accounted for it."""
  is_one = lambda n: isinstance(n, Receipt)
  clear = lambda n: jax.tree.map(jnp.zeros_like, n) if is_one(n) else n
  return jax.tree.map(clear, state, is_leaf=is_one)


@own(pending=MEAN, inner=INNER)
class AccumulateState(NamedTuple):
  """State of `accumulate`."""

  mini_step: jax.Array
  pending: tuple[jax.Array, ...]  # mean of the local gradients so far; differs by worker
  inner: Any


def accumulate(tx: optax.GradientTransformation, every: int) -> optax.GradientTransformation:
  """Runs `tx` once in `every` steps, on the mean of the local gradients since the last time.

  In between the updates are zero and nothing is exchanged. `optax.MultiSteps` gives the same updates, but it
  runs the inner transformation in every step and throws the result away, so that it saves no bytes.

  Args:
    tx: the whole chain, with a compressed mean in it.
    every: steps for one exchange.

  Returns:
    An `optax.GradientTransformation`.

  Examples:
    >>> import dct_jax, jax.numpy as jnp, optax
    >>> tx = dct_jax.accumulate(optax.chain(dct_jax.dense_mean(), optax.sgd(1.0)), every=2)
    >>> params = jnp.zeros(2)
    >>> state = tx.init(params)
    >>> updates, state = tx.update(jnp.array([1.0, 2.0]), state, params)
    >>> updates.tolist()
    [0.0, 0.0]
    >>> updates, state = tx.update(jnp.array([3.0, 4.0]), state, params)
    >>> updates.tolist()
    [-2.0, -3.0]
  """
  if every < 1 or int(every) != every:
    raise ValueError(f'every must be a whole number of at least 1, got {every=}')

  def init(params):
    empty = lambda x: jnp.zeros(jnp.shape(x) or (1,), jnp.float32)
    return AccumulateState(
        jnp.zeros((), jnp.int32), tuple(empty(x) for x in jax.tree.leaves(params)), tx.init(params))

  def update(updates, state, params=None):
    leaves, structure = jax.tree.flatten(updates)
    weight = 1 / (state.mini_step + 1).astype(jnp.float32)
    pending = tuple(
        e + (g.reshape(e.shape).astype(jnp.float32) - e) * weight
        for e, g in zip(state.pending, leaves, strict=True))

    def exchange(pending, inner):
      mean = [e.reshape(g.shape).astype(g.dtype) for e, g in zip(pending, leaves, strict=True)]
      out, inner = tx.update(jax.tree.unflatten(structure, mean), inner, params)
      return out, axes.vary_as(jax.tree.map(jnp.zeros_like, pending), pending), inner

    def wait(pending, inner):
      nothing = jax.tree.map(lambda g: jnp.zeros(g.shape, g.dtype), updates)
      return nothing, pending, _without_receipts(inner)

    last = state.mini_step == every - 1
    out, pending, inner = lax.cond(last, exchange, wait, pending, state.inner)
    return out, AccumulateState((state.mini_step + 1) % every, pending, inner)

  return optax.GradientTransformation(init, update)
