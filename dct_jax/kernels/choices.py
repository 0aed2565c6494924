"""Where random choices come from: each purpose, group of layers, step and worker has numbers of its own.

Two choices that share a key are the same choice: what one worker drains another drains as well, or what is picked
today was picked yesterday. Layers within a message differ by their places, which whoever draws adds.
"""

from __future__ import annotations

import enum
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dct_jax.arrays import u32
from dct_jax.kernels.hashing import mix


class Purpose(enum.IntEnum):
  """What is chosen."""

  ROUND = 1  # up or down, by a quantizer
  SAMPLE = 2  # entries that are looked at
  PICK = 3  # entries that travel
  DRAIN = 4  # entries of a residual that are forgotten
  START = 5  # the first factors of a matrix
  SKETCH = 6  # buckets and signs
  ROUND_SKETCH = 7
  ROUND_SUM = 8  # the second half of DSAR


def seed_of(purpose: Purpose, seed: int | jax.Array, group: ArrayLike = 0, step: ArrayLike = 0,
            worker: ArrayLike = 0) -> jax.Array:
  """A uint32 to draw by, for cheap hashes (`hashing.noise`); the mixer keeps neighbours apart."""
  out = mix(u32(int(purpose)))
  for number in (seed % 2**32 if isinstance(seed, int) else seed, group, step, worker):
    out = mix(out + jnp.asarray(number).astype(jnp.uint32).reshape(()))
  return out


def key_of(purpose: Purpose, seed: int, group: ArrayLike = 0, step: ArrayLike = 0, worker: ArrayLike = 0) -> Any:
  """The same as a key of `jax.random`."""
  key = jax.random.PRNGKey(seed)
  for number in (int(purpose), group, step, worker):
    key = jax.random.fold_in(key, number)
  return key
