"""Numbers that users give: fractions (a sparsity, a share to keep), as numbers or optax schedules, and counts."""

from __future__ import annotations

import decimal
import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Fraction = float | Callable[[jax.Array], jax.Array]
PROBED = tuple(2**i - 1 for i in range(24))  # steps at which a schedule is looked at
DIGITS = 6  # of decimals that a schedule may mean
NOISE = 2.0**-22  # relative: what a schedule's own arithmetic may be off


def check(name: str, value: Fraction, *, zero: bool = False) -> Fraction:
  """A fraction in (0, 1], or in [0, 1], as a Python number; or a schedule, of which some steps are looked at.

  Raises:
    ValueError: for any other number, for one that is traced, and for a schedule that begins elsewhere.
  """
  first = first_of(value) if callable(value) else number(name, value)
  if not (0 < first <= 1 or (zero and first == 0)):
    raise ValueError(f'{name} must be in {"[" if zero else "("}0, 1], got {name}={first!r}')
  if not callable(value):
    return first
  _warn_of_schedule(name, value)
  return value


def number(name: str, value: Any) -> float:
  """A Python number of what a user gives; float32(0.29) means 0.29, and not 0.28999999."""
  if isinstance(value, jax.core.Tracer):
    raise ValueError(
        f'{name} must be known when a program is compiled, as messages have lengths that follow from it; got a traced '
        'value. optax.inject_hyperparams makes such values of all numbers: leave it out here, as in '
        'optax.chain(dct_jax.dct_dp(...), optax.inject_hyperparams(optax.sgd)(...)), and give a schedule (a function '
        f'of the step) where {name} may be one and shall change')
  if isinstance(value, (np.generic, np.ndarray, jax.Array)) and not np.shape(value):
    single = np.asarray(value)[()]
    value = bool(single) if single.dtype.kind == 'b' else float(str(single)) if single.dtype.kind in 'fiuV' else value
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    raise ValueError(f'{name} must be a number, got {name}={value!r}')
  return value


def whole(name: str, value: Any, least: int, of: str = 'number') -> int:
  """A count as a Python integer; 1e6 is one."""
  found = number(name, value)
  if not found >= least or not math.isfinite(found) or int(found) != found:
    raise ValueError(f'{name} must be a whole {of} of at least {least}, got {name}={found!r}')
  return int(found)


def is_zero(value: Fraction) -> bool:
  """Whether it is the number 0, and no schedule."""
  return not callable(value) and value == 0


def first_of(value: Fraction) -> float:
  """A number, or a schedule's first one, also while something is being traced."""
  if not callable(value):
    return float(str(value))
  with jax.ensure_compile_time_eval():
    return float(str(np.float32(value(jnp.zeros((), jnp.int32)))))


def floor_once(size: int, value: Fraction) -> int:
  """floor(size * value) at the first step, multiplied in decimal: 0.29 * 100 is 29, not 28.999999."""
  return math.floor(size * decimal.Decimal(repr(first_of(value))))


def at(value: Fraction, step: jax.Array) -> jax.Array:
  """The fraction of a step, float32 in [0, 1]; NaN is 0."""
  share = jnp.asarray(value(step) if callable(value) else value, jnp.float32)
  return jnp.where(share > 0, jnp.minimum(share, 1), 0)


def floor_of(sizes, value: Fraction, step: jax.Array) -> jax.Array:
  """floor(size * value) for each size, as uint32.

  A schedule gives float32, and its arithmetic rounds. Next to a decimal with few digits, the decimal is meant.
  """
  if not callable(value):
    return jnp.array([floor_once(n, value) for n in sizes], jnp.uint32)
  return scaled(sizes, at(value, step))


def scaled(sizes, share: jax.Array) -> jax.Array:
  """floor(size * share) in integers: a product in float32 would have 24 bits, and layers may have more entries."""
  most = 10**DIGITS
  decimals = jnp.round(share * most)
  is_decimal = jnp.abs(decimals / most - share) <= NOISE * share
  exact = _high_word(np.array(sizes, np.uint32), (share * 2.0**32).astype(jnp.uint32))  # of 1, which is a decimal, not
  whole_part, rest = np.divmod(np.array(sizes, np.uint32), np.uint32(most))
  count, thousand = decimals.astype(jnp.uint32), jnp.uint32(1000)
  low = rest * (count % thousand) // thousand  # what is dropped here cannot change the quotient below
  return jnp.where(is_decimal, whole_part * count + (low + rest * (count // thousand)) // thousand, exact)


def _high_word(a, b):
  """The upper 32 of the 64 bits of a * b, for uint32, by halves."""
  half = jnp.uint32(0xFFFF)
  low = (a >> 16) * (b & half) + ((a & half) * (b & half) >> 16)
  high = (a & half) * (b >> 16) + (low & half)
  return (a >> 16) * (b >> 16) + (low >> 16) + (high >> 16)


def _warn_of_schedule(name, value):
  """Of a schedule that leaves [0, 1] at a step that is looked at."""
  with jax.ensure_compile_time_eval():
    try:
      found = np.asarray(jax.vmap(value)(jnp.array(PROBED, jnp.int32)))
    except Exception:  # a schedule of one step at a time
      return
  for step, share in zip(PROBED, found, strict=True):
    if not 0 <= share <= 1:
      warnings.warn(f'the schedule of {name} leaves [0, 1]: in step {step} it is {share:g}; what is outside is taken '
                    'as 0 or 1', UserWarning, stacklevel=4)
      return
