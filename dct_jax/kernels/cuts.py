"""Cuts that take the same share from every stretch. The native kernels have the same ones (common/integers.h: Cut)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from dct_jax import axes
from dct_jax.arrays import u32


class Share(NamedTuple):
  """What stays of some things, cut to fewer; from `even`."""

  whole: jax.Array  # bool: all of them stay
  step: jax.Array  # uint32: what one thing is worth, in parts of 2^32

  def at(self, n: jax.Array) -> jax.Array:
    """How many of the first n stay, uint32."""
    return jnp.where(self.whole, n, high_product(u32(n), self.step))

  def keeps(self, i: jax.Array) -> jax.Array:
    """Whether thing number i stays."""
    return self.at(i + 1) > self.at(i)


def even(keep: ArrayLike, have: ArrayLike) -> Share:
  """A cut of `have` things (up to 2^30) to exactly `keep` of them, or to all, evenly.

  Every stretch of them loses the same share, whatever it belongs to: of a message that does not fit every layer
  sends its part, and every part of a layer.
  """
  keep, have = u32(keep), u32(have)

  def divide(_, state):  # long division: XLA may have 32 bits only
    quotient, rest = state
    rest = rest << 1
    fits = rest >= have
    return quotient << 1 | u32(fits), jnp.where(fits, rest - have, rest)

  first = axes.vary_as((u32(0), jnp.minimum(keep, have)), (keep, have))
  quotient, rest = lax.fori_loop(0, 32, divide, first)
  return Share(keep >= have, quotient + (rest > 0))


def high_product(a: jax.Array, b: jax.Array) -> jax.Array:
  """The upper word of a 64-bit product: a uniform number below b if a is any word."""
  a1, a0, b1, b0 = a >> 16, a & 0xFFFF, b >> 16, b & 0xFFFF
  low = (a0 * b0 >> 16) + (a1 * b0 & 0xFFFF) + (a0 * b1 & 0xFFFF)
  return a1 * b1 + (a1 * b0 >> 16) + (a0 * b1 >> 16) + (low >> 16)
