"""Attention with several heads, of a sequence to itself or to a memory."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

Pair = tuple[jax.Array, jax.Array]  # keys and values
FORBIDDEN = -1e30  # a score whose share is exactly zero; finite, for rows in which all is forbidden


class SelfAttention(nn.Module):
  """Every position looks at those that the mask allows.

  Queries, keys and values come of one matrix product, so their weights are one parameter.

  Attributes:
    width: of positions.
    heads: divide it.
  """

  width: int
  heads: int

  def setup(self) -> None:
    self.query_key_value, self.out = projection(self.width, 3), out(self.width)

  def __call__(self, x: jax.Array, mask: jax.Array, past: Pair | None = None,
               step: jax.Array | int = 0) -> tuple[jax.Array, Pair]:
    """What each position has seen, of the shape of `x`, and the keys and values of all there is to see.

    Args:
      x: float32[batch, length, width].
      mask: bool, broadcast to [batch, heads, queries, keys].
      past: keys and values of earlier positions, each float32[batch, room, heads, width / heads], of which `x`
        is the next one (its length is 1 then).
      step: where in `past` this position belongs.
    """
    queries, keys, values = (heads(part, self.heads) for part in jnp.split(self.query_key_value(x), 3, -1))
    if past is not None:
      write = lambda old, new: lax.dynamic_update_slice_in_dim(old, new, step, axis=1)
      keys, values = write(past[0], keys), write(past[1], values)
    return self.out(attend(queries, keys, values, mask).reshape(x.shape)), (keys, values)


class CrossAttention(nn.Module):
  """Every position looks at a memory, of which keys and values are computed once.

  Attributes:
    width: of positions and of the memory.
    heads: divide it.
  """

  width: int
  heads: int

  def setup(self) -> None:
    self.query, self.key_value, self.out = projection(self.width, 1), projection(self.width, 2), out(self.width)

  def keys_and_values(self, memory: jax.Array) -> Pair:
    """Of float32[batch, positions, width]: two of float32[batch, positions, heads, width / heads]."""
    keys, values = jnp.split(self.key_value(memory), 2, -1)
    return heads(keys, self.heads), heads(values, self.heads)

  def __call__(self, x: jax.Array, memory: Pair, mask: jax.Array) -> jax.Array:
    """What each position has seen, of the shape of `x`.

    Args:
      x: float32[rows, length, width]; of rows there may be several to each of the memory, next to each other.
      memory: from `keys_and_values`.
      mask: bool, broadcast to [batch, heads, queries, keys].
    """
    keys, values = memory
    # Rows that share a memory are to attention only more queries.
    queries = self.query(x).reshape(keys.shape[0], -1, *keys.shape[2:])
    return self.out(attend(queries, keys, values, mask).reshape(x.shape))


def attend(queries: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array) -> jax.Array:
  """Values weighted by a softmax of scaled dot products; all are [batch, positions, heads, width of a head]."""
  scores = jnp.einsum('bqhd,bkhd->bhqk', queries * queries.shape[-1] ** -0.5, keys)
  weights = jax.nn.softmax(jnp.where(mask, scores, FORBIDDEN), -1)
  return jnp.einsum('bhqk,bkhd->bqhd', weights, values)


def heads(x: jax.Array, number: int) -> jax.Array:
  """[..., width] -> [..., heads, width of a head]."""
  return x.reshape(*x.shape[:-1], number, -1)


def projection(width: int, parts: int) -> nn.Dense:
  """`parts` square matrices in one, each uniform as Xavier's, scaled by sqrt(1/2) as in fairseq."""
  init = nn.initializers.variance_scaling((1 + parts) / 4, 'fan_avg', 'uniform')
  return nn.Dense(parts * width, kernel_init=init)


def out(width: int) -> nn.Dense:
  """Mixes what the heads have seen."""
  return nn.Dense(width, kernel_init=nn.initializers.xavier_uniform())
