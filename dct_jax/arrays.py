"""Small functions of arrays that every room uses: shapes, bits, and sums that stay finite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

Count = TypeVar('Count', int, jax.Array)


class Stream(NamedTuple):
  """A sparse vector: the first `count` indices are strictly increasing; what follows means nothing."""

  indices: jax.Array  # uint32[capacity]
  values: jax.Array  # float32, float64 or uint32 [capacity]; of rows, [capacity, width]
  count: jax.Array  # type: ignore[assignment]  # uint32 scalar

  @property
  def used(self) -> jax.Array:
    """bool[capacity]: which places mean something."""
    return jnp.arange(self.indices.size, dtype=jnp.uint32) < self.count


def u32(x: Any) -> jax.Array:
  """Anything as uint32."""
  return jnp.asarray(x, jnp.uint32)


def ceil_div(a: Count, b: int) -> Count:
  """a / b, rounded up."""
  return (a + (b - 1)) // b


def words_of(x: jax.Array) -> jax.Array:
  """The bits of float32 numbers, as uint32."""
  return lax.bitcast_convert_type(x, jnp.uint32)


def floats_of(words: jax.Array) -> jax.Array:
  """The inverse of `words_of`."""
  return lax.bitcast_convert_type(words, jnp.float32)


def cut(flat: jax.Array, like: Sequence[Any]) -> tuple[jax.Array, ...]:
  """A flat array in the shapes of others that it holds end to end."""
  out, at = [], 0
  for x in like:
    out.append(flat[at:at + x.size].reshape(x.shape))
    at += x.size
  return tuple(out)


def add_residual(layers: Sequence[jax.Array], residual: Sequence[jax.Array] | None) -> list[jax.Array]:
  """float32 layers with the residual added, flat.

  Two finite numbers may add up to infinity, which no residual could get rid of again: the largest finite
  number is as good.
  """
  flat = [g.astype(jnp.float32).reshape(-1) for g in layers]
  if residual is None:
    return flat
  most = float(jnp.finfo(jnp.float32).max)
  return [jnp.clip(g + e.reshape(-1), -most, most) for g, e in zip(flat, residual, strict=True)]
