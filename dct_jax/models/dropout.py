"""Dropout that asks for few random bits."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

LEVELS = 2**16


class Dropout(nn.Module):
  """Sets a share of the entries to zero, and scales the others so that the mean stays.

  Random bits are most of what dropout costs on a CPU. flax asks for 32 of them for each entry; here it is 16,
  so the share is rounded to a multiple of 2^-16, and the scale fits the rounded one. What the bits themselves
  cost is up to the key: `jax.random.key(seed, impl='rbg')` draws them faster than JAX's default.

  Masks depend on the key and on the path of this module in the model, on nothing else.

  Attributes:
    rate: share of entries to drop, in [0, 1).

  Examples:
    >>> import jax, jax.numpy as jnp
    >>> x = jnp.ones(10_000)
    >>> y = Dropout(0.25).apply({}, x, True, rngs={'dropout': jax.random.key(0, impl='rbg')})
    >>> sorted(set(y.tolist())), round(float(jnp.mean(y == 0)), 1)
    ([0.0, 1.3333333730697632], 0.2)
    >>> bool(jnp.all(Dropout(0.25).apply({}, x, False) == x))
    True
  """

  rate: float

  @nn.compact
  def __call__(self, x, train):
    kept = max(round(LEVELS * (1 - self.rate)), 1)
    if not train or kept == LEVELS:
      return x
    bits = jax.random.bits(self.make_rng('dropout'), x.shape, jnp.uint16)
    return jnp.where(bits < kept, x * (LEVELS / kept), 0)
