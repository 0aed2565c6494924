"""What an exchange takes: SparCML's latency-bandwidth model with measured compute terms.

The time of every algorithm is a sum of four products: rounds x latency, bytes x time of a byte, sparse entries
handled x time of an entry, dense coordinates handled x time of a coordinate. How many of each there are follows
from the workers P, the coordinates N, a worker's entries k and those of the union K; what each takes is
measured for each algorithm on the mesh at hand (`netlab/calibrate.py`).
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dct_jax.collectives.algorithms import ALGORITHMS
from dct_jax.wire.exchanges import DELTA

VALUE_BYTES = 4
Numbers = float | np.ndarray | jax.Array  # functions here take NumPy (xp=np) or traced numbers (xp=jnp)


class Costs(NamedTuple):
  """Seconds, by algorithm: rows in the order of `ALGORITHMS`, columns (round, byte, entry, coordinate)."""

  table: tuple[tuple[float, float, float, float], ...]
  workers: int  # of the mesh that it was measured on

  @classmethod
  def of_network(cls, workers: int, rate: float, latency: float = 1e-3) -> Costs:
    """A guess for a network of `rate` bytes a second, without a measurement."""
    return cls(((latency, 1 / rate, 10e-9, 0.3e-9),) * len(ALGORITHMS), workers)


class Instance(NamedTuple):
  """What is to be reduced. Numbers, or arrays of one shape."""

  workers: int
  size: int  # coordinates
  entries: float  # of one worker
  union: float  # of all
  message_bytes: float | None = None  # of one worker's message, where an all-gather sends it as it is
  bits: int = 0  # of QSGD in the second half of dsar
  dense_result: bool = True  # whether sparse sums are wanted as dense vectors
  delta: float = DELTA  # share of the coordinates beyond which a sum is dense, by the counts of its parts


def random_union(size: Numbers, density: Numbers, workers: int) -> Any:
  """Coordinates that some worker has, when each has random ones."""
  return size * (1 - (1 - density) ** workers)


def index_bytes(count: Numbers, size: Numbers, xp: ModuleType = np) -> Any:
  """Bytes of `count` sorted indices below `size`: Rice codes, or a bitmap when that is shorter."""
  gap = xp.log2(xp.maximum(size / xp.maximum(count, 1.0), 1.0))
  return xp.minimum(count * (gap + 1.6) / 8, size / 8)


def features(instance: Instance, xp: ModuleType = np) -> Any:
  """Rounds, bytes, entries and coordinates of every algorithm, [algorithms, 4]."""
  p, n, bits = instance.workers, float(instance.size), instance.bits
  k, union = xp.maximum(instance.entries, 1.0), xp.maximum(instance.union, 1.0)
  encoded = lambda count, size: xp.minimum(
      count * VALUE_BYTES + index_bytes(count, size, xp), size * VALUE_BYTES)
  share = (p - 1) / p
  own = encoded(k, n) if instance.message_bytes is None else instance.message_bytes
  two = 2 ** (p.bit_length() - 1)
  stages, fold = two.bit_length() - 1, int(p > two)
  grow = xp.log2(xp.maximum(union / k, 1.0)) / max(math.log2(p), 1.0)
  sizes = [xp.minimum(k * 2.0 ** (t * grow), n) for t in range(stages)]
  bounds = [0.0 * k, *(2 * s for s in sizes)]  # what a sum could have at most, by the counts of its two parts
  sent = lambda count, bound: xp.where(bound > instance.delta * n, n * VALUE_BYTES, encoded(count, n))
  doubled = sum(sent(s, b) for s, b in zip(sizes, bounds[:-1], strict=True))
  doubled += fold * (encoded(k, n) + sent(union, bounds[-1]))
  handed = fold * (k + union)
  dense_bytes = n * VALUE_BYTES * share
  second = dense_bytes * bits / 32 if bits else dense_bytes
  zero = 0.0 * k
  filled = n if instance.dense_result else zero
  rows = [
      (1, own * (p - 1), p * k, filled),
      (stages + 2 * fold, doubled, sum(2 * s for s in sizes) + handed, filled),
      (2, encoded(k * share, n) + share * sent(union, p * k), 2 * k + 2 * union, filled),
      (2, encoded(k * share, n) + second, 2 * k, n),
      (2, 2 * dense_bytes, zero, n),
  ]
  return xp.stack([xp.stack([xp.asarray(x + zero, dtype=xp.float32) for x in row]) for row in rows])


def predict(costs: Costs, instance: Instance, xp: ModuleType = np) -> Any:
  """Seconds of every algorithm, in the order of `ALGORITHMS`."""
  return xp.sum(features(instance, xp) * xp.asarray(costs.table, dtype=xp.float32), axis=1)


def cheapest(costs: Costs, instance: Instance) -> jax.Array:
  """The number of the algorithm that should be fastest; works on traced numbers."""
  return jnp.argmin(predict(costs, instance, jnp)).astype(jnp.uint32)
