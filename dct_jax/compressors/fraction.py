"""Fractions that users give (a sparsity, a share to keep), as numbers or optax schedules."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

Fraction = float | Callable[[jax.Array], jax.Array]


def check(name: str, value: Fraction) -> None:
  """A fraction lies in (0, 1]; a schedule is checked at its start."""
  first = _first(value) if callable(value) else value
  if isinstance(first, bool) or not isinstance(first, (int, float)) or not 0 < first <= 1:
    raise ValueError(f'{name} must be in (0, 1], got {name}={first!r}')


def floor_once(size: int, value: Fraction) -> int:
  """floor(size * value) at the first step, multiplied in decimal: 0.29 * 100 is 29, not 28.999999."""
  return math.floor(size * decimal.Decimal(repr(_first(value))))


def _first(value: Fraction) -> float:
  """A number, or a schedule's first one, also while something is being traced."""
  if not callable(value):
    return float(value)
  with jax.ensure_compile_time_eval():
    return float(value(jnp.zeros((), jnp.int32)))


def floor_of(sizes, value: Fraction, step: jax.Array) -> jax.Array:
  """floor(size * value) for each size, as uint32.

  A schedule gives float32, whose rounding is forgiven by a millionth.
  """
  if not callable(value):
    return jnp.array([floor_once(n, value) for n in sizes], jnp.uint32)
  share = jnp.asarray(value(step), jnp.float32)
  product = jnp.asarray(sizes, jnp.float32) * share * (1 + 1e-6)
  return jnp.minimum(jnp.floor(product).astype(jnp.uint32), jnp.asarray(sizes, jnp.uint32))
