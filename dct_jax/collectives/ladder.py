"""The ladder of capacities: a few static message lengths, of which every step uses one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dct_jax import axes
from dct_jax.contract import Size

STEEPEST, FLATTEST = 2.2, 1.25  # ratios of neighbouring rungs
NEAR = (1.125, 1.3, 1.6)  # times the nominal size: where most steps are, rungs lie close together


def _generous(words):
  """A little more, so that a message that grows slowly does not overflow in every step."""
  return words + words // 64


def rungs(size: Size, workers: int, count: int, dense_fallback: bool) -> tuple[int, ...]:
  """Message lengths in words, increasing. Past the last one the dense exchange takes over, if allowed.

  An all-gather of W words makes each worker send (P - 1) W; a dense all-reduce of N words makes it
  send 2 N (P - 1) / P. Messages beyond the parity of the two, 2 N / P, are never worth sending.
  """
  if workers == 1:
    return (size.largest,)
  parity = max(2 * size.dense // workers, 1)
  top = min(parity, size.largest) if dense_fallback else size.largest
  if count == 1:
    return (top,) if top >= size.smallest else ()
  nominal = _generous(max(size.smallest, size.nominal)) + 1
  below = count * 3 // 8  # a schedule may start with messages far larger than later ones
  near = [nominal * f for f in NEAR[:max(0, count - 2 - below)]]
  far, above = max(near, default=nominal), max(1, count - 2 - below - len(near))
  down, up = _ratio(nominal / size.smallest, below), _ratio(top / far, above)
  steps = [nominal / down**i for i in range(below + 1)] + near + [far * up**i for i in range(1, above)] + [top]
  return tuple(sorted({min(int(s), top) for s in steps if size.smallest <= min(int(s), top)}))


def _ratio(span, steps):
  return min(max(max(span, 1.0) ** (1 / max(steps, 1)), FLATTEST), STEEPEST)


def choose(ladder: tuple[int, ...], wanted: jax.Array, dense_fallback: bool, largest: int) -> jax.Array:
  """The first rung that holds `wanted` words and a little more; len(ladder) means dense.

  No message is longer than `largest`, so that one of a fixed length is not given more.
  """
  enough = jnp.minimum(_generous(wanted), largest).astype(jnp.uint32)
  last = len(ladder) if dense_fallback else len(ladder) - 1
  return jnp.minimum(first_holding(ladder, enough), last)


def first_holding(steps: Sequence[int] | jax.Array, wanted: jax.Array) -> jax.Array:
  """The first of some increasing lengths that is at least `wanted`; their number where none is."""
  return jnp.sum(jnp.asarray(steps, jnp.uint32) < wanted, dtype=jnp.int32)


def take(rung: jax.Array, branches: Sequence[Callable[[], Any]]) -> Any:
  """What the function of a rung gives; all workers must be on the same one.

  Groups of a mesh may be on different ones, and so all of it differs between them, numbers that branches know
  beforehand included, which JAX does not see.
  """
  return axes.vary_as(lax.switch(rung, branches), (rung,)) if len(branches) > 1 else branches[0]()
