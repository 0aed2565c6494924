"""Zero-run encoding of 3LC: runs of bytes that say nothing but zeros become one byte each."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

ZERO = 121  # a byte of five zeros
FIRST_RUN, LONGEST_RUN = 243, 14  # codes 243 to 255 stand for 2 to 14 such bytes


def encode(code: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Zero-run encoding: bytes in a buffer of the same size, how many of them mean something, and, for each, how
  many bytes of `code` it and those before it stand for."""
  n = code.size
  at = jnp.arange(n)
  zero = code == ZERO
  last_other = lax.cummax(jnp.where(zero, -1, at))
  next_other = lax.cummin(jnp.where(zero, n, at), reverse=True)
  begins = ~zero | ((at - last_other - 1) % LONGEST_RUN == 0)
  run = jnp.minimum(next_other - at, LONGEST_RUN)
  symbol = jnp.where(zero & (run > 1), FIRST_RUN - 2 + run, code).astype(jnp.uint8)
  place = jnp.where(begins, jnp.cumsum(begins) - 1, n)
  put = lambda x: jnp.zeros(n, x.dtype).at[place].set(x, mode='drop')
  return put(symbol), jnp.sum(begins, dtype=jnp.uint32), put(at + jnp.where(zero, run, 1))


def decode(symbols: jax.Array, length: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
  """The inverse; what is missing at the end is zero. Also how many bytes the symbols stand for."""
  used = jnp.arange(symbols.size) < length
  is_run = symbols >= FIRST_RUN
  run = jnp.where(used, jnp.where(is_run, symbols.astype(jnp.int32) - (FIRST_RUN - 2), 1), 0)
  ends = jnp.cumsum(run)
  place = jnp.where(used & ~is_run, ends - run, size)
  code = jnp.full(size, ZERO, jnp.uint8).at[place].set(symbols, mode='drop')
  return code, ends[-1] if symbols.size else jnp.int32(0)
