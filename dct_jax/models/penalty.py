"""L1 and L2 penalties that untouched weights pay later, to the same amount.

A step of SGD with rate r on loss + penalty is w <- P_r(w - r g), where for l1 (Lasso) P_r soft-thresholds by
r * strength, the proximal step, and for l2 it multiplies with exp(-r * strength), the exact flow of weight
decay (not its Euler step 1 - r * strength). Either way P_a(P_b(w)) = P_(a + b)(w). A sparse gradient touches
few weights, and the others see P alone, step after step: so each weight carries the sum of rates until which it
has paid, and pays the difference when it is next read. Nothing is approximated but by rounding.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

KINDS = ('none', 'l1', 'l2')


class Penalty(NamedTuple):
  """strength * ||w||_1, or strength / 2 * ||w||^2."""

  kind: str = 'none'
  strength: float = 0.0


class Debt(NamedTuple):
  """What weights owe."""

  clock: jax.Array  # float32: sum of rates so far
  paid: jax.Array  # float32[size]: until when each weight has paid; float32[1] without a penalty


def make_penalty(kind: str, strength: float) -> Penalty:
  """Checks.

  Raises:
    ValueError: for an unknown kind, or a strength that does not fit it.
  """
  if kind not in KINDS:
    raise ValueError(f'kind must be one of {KINDS}, got {kind=}')
  if strength < 0 or (kind == 'none') != (strength == 0):
    raise ValueError(f'strength must be positive, and 0 without a penalty, got {kind=}, {strength=}')
  return Penalty(kind, float(strength))


def no_debt(penalty: Penalty, size: int) -> Debt:
  """At the start."""
  return Debt(jnp.zeros((), jnp.float32), jnp.zeros(1 if penalty.kind == 'none' else size, jnp.float32))


def pay(penalty: Penalty, weights: jax.Array, time: jax.Array | float) -> jax.Array:
  """P_time(weights).

  Examples:
    >>> pay(Penalty('l1', 0.5), jnp.array([2.0, -0.3]), 1.0).tolist()
    [1.5, -0.0]
  """
  if penalty.kind == 'l2':
    return weights * jnp.exp(-penalty.strength * time)
  if penalty.kind == 'l1':
    return jnp.sign(weights) * jnp.maximum(jnp.abs(weights) - penalty.strength * time, 0)
  return weights


def read(penalty: Penalty, weights: jax.Array, debt: Debt, indices: jax.Array) -> jax.Array:
  """What some weights are now; 0 for indices beyond the last one."""
  take = lambda x: x.at[indices].get(mode='fill', fill_value=0)
  if penalty.kind == 'none':
    return take(weights)
  return pay(penalty, take(weights), debt.clock - take(debt.paid))


def settle(penalty: Penalty, weights: jax.Array, debt: Debt) -> jax.Array:
  """All weights as they are now: a pass over the whole model, for evaluation and export."""
  return weights if penalty.kind == 'none' else pay(penalty, weights, debt.clock - debt.paid)


def value(penalty: Penalty, weights: jax.Array) -> jax.Array:
  """The penalty of settled weights."""
  if penalty.kind == 'l1':
    return penalty.strength * jnp.sum(jnp.abs(weights))
  return penalty.strength / 2 * jnp.sum(jnp.square(weights))
