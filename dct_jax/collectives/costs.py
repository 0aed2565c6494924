"""What an exchange takes: SparCML's latency-bandwidth model with measured compute terms.

The time of every algorithm is a sum of four products: rounds x latency, bytes x time of a byte, sparse entries
handled x time of an entry, dense coordinates handled x time of a coordinate. How many of each there are follows
from the workers P, the coordinates N, a worker's entries k and those of the union K; what each takes is
measured for each algorithm on the mesh at hand (`netlab/calibrate.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dct_jax.collectives.algorithms import ALGORITHMS
from dct_jax.wire.exchanges import DELTA, ONE_ROUND_BYTES

VALUE_BYTES = 4
HEAD_BYTES = 4  # of a block or row that travels with its number
Numbers = float | np.ndarray | jax.Array  # functions here take NumPy (xp=np) or traced numbers (xp=jnp)


class Costs(NamedTuple):
  """Seconds, by algorithm: rows in the order of `ALGORITHMS`, columns (round, byte, entry, coordinate)."""

  table: tuple[tuple[float, float, float, float], ...]
  workers: int  # of the mesh that it was measured on

  @classmethod
  def of_network(cls, workers: int, rate: float, latency: float = 1e-3) -> Costs:
    """A guess for a network of `rate` bytes a second, without a measurement."""
    if workers < 1 or not rate > 0 or not latency >= 0:
      raise ValueError(f'workers, a rate above 0 and a latency of 0 or more make a network, got {workers=}, {rate=} '
                       f'and {latency=}')
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
  unit: int = 1  # values that an index of a message, or a bit of a bitmap, speaks of
  summed_unit: int = 1  # the same for sums on the way, in which our transport writes an index for every value


def random_union(size: Numbers, density: Numbers, workers: int) -> Any:
  """Coordinates that some worker has, when each has random ones."""
  return size * (1 - (1 - density) ** workers)


def index_bytes(count: Numbers, size: Numbers, xp: ModuleType = np) -> Any:
  """Bytes of `count` sorted indices below `size`: Rice codes, or a bitmap when that is shorter."""
  gap = xp.log2(xp.maximum(size / xp.maximum(count, 1.0), 1.0))
  return xp.minimum(count * (gap + 1.6) / 8, size / 8)


def stream_bytes(count: Numbers, size: Numbers, unit: int = 1, xp: ModuleType = np) -> Any:
  """Bytes of `count` values of a vector and of an index for each `unit` of them, or of the dense vector."""
  indices = index_bytes(count / unit, size / unit, xp)
  return xp.minimum(count * VALUE_BYTES + indices, size * VALUE_BYTES)


def features(instance: Instance, xp: ModuleType = np) -> Any:
  """Rounds, bytes, entries and coordinates of every algorithm, [algorithms, 4]."""
  p, n, bits = instance.workers, float(instance.size), instance.bits
  k, union = _entries(instance, xp)
  encoded = lambda count: stream_bytes(count, n, instance.summed_unit, xp)
  share = (p - 1) / p
  own = stream_bytes(k, n, instance.unit, xp) if instance.message_bytes is None else instance.message_bytes
  two = 2 ** (p.bit_length() - 1)
  stages, fold = two.bit_length() - 1, int(p > two)
  grow = xp.log2(xp.maximum(union / k, 1.0)) / max(math.log2(p), 1.0)
  sizes = [xp.minimum(k * 2.0 ** (t * grow), n) for t in range(stages)]
  bounds = [0.0 * k, *(2 * s for s in sizes)]  # what a sum could have at most, by the counts of its two parts
  sent = lambda count, bound: xp.where(bound > instance.delta * n, n * VALUE_BYTES, encoded(count))
  doubled = sum(sent(s, b) for s, b in zip(sizes, bounds[:-1], strict=True))
  doubled += fold * (encoded(k) + sent(union, bounds[-1]))
  handed = fold * (k + union)
  dense_bytes = n * VALUE_BYTES * share
  second = dense_bytes * bits / 32 if bits else dense_bytes
  filled = _filled(instance)
  bitmap = bitmap_exchange(instance)
  return _stack(k, [
      (1, own * (p - 1), p * k, filled),
      (stages + 2 * fold, doubled, sum(2 * s for s in sizes) + handed, filled),
      (2, encoded(k * share) + share * sent(union, p * k), 2 * k + 2 * union, filled),
      (2, encoded(k * share) + second, 2 * k, n),
      (2, 2 * dense_bytes, 0.0, n),
      (2 + bitmap[0], bitmap[1] + 2 * share * union * VALUE_BYTES, 2 * k + 2 * union, filled),
  ], xp)


def _entries(instance, xp):
  """A worker's entries and the union's, at least one each."""
  return xp.maximum(instance.entries, 1.0), xp.maximum(instance.union, 1.0)


def _stack(k, rows, xp):
  """Rows of numbers and of arrays like k as one array."""
  return xp.stack([xp.stack([xp.asarray(x + 0.0 * k, dtype=xp.float32) for x in row]) for row in rows])


def bitmap_exchange(instance: Instance) -> tuple[int, float]:
  """Rounds and bytes of the OR of all workers' bitmaps, one bit a unit: gathered while that is little."""
  p, words = instance.workers, math.ceil(math.ceil(instance.size / instance.unit) / 32)
  if 4 * words * p <= ONE_ROUND_BYTES:
    return 1, 4.0 * words * (p - 1)
  return 2, 8.0 * words * (p - 1) / p


def predict(costs: Costs, instance: Instance, xp: ModuleType = np) -> Any:
  """Seconds of every algorithm, in the order of `ALGORITHMS`."""
  return xp.sum(features(instance, xp) * xp.asarray(costs.table, dtype=xp.float32), axis=1)


def cheapest(costs: Costs, instance: Instance) -> jax.Array:
  """The number of the algorithm that should be fastest; works on traced numbers."""
  return jnp.argmin(predict(costs, instance, jnp)).astype(jnp.uint32)


# Rivals that have no algorithm in our transport, for comparisons; each a row as in `features`.


def s2_features(instance: Instance, lam: float, rows: int = 1, xp: ModuleType = np) -> Any:
  """S2 Reducer: a bitmap, and a sketch of `lam` times a worker's entries in `rows` rows, by plain allreduces."""
  k, union = _entries(instance, xp)
  p, bitmap = instance.workers, bitmap_exchange(instance)
  sketch = 2 * (p - 1) / p * lam * k * VALUE_BYTES
  return _stack(k, [(2 + bitmap[0], bitmap[1] + sketch, rows * (k + union), _filled(instance))], xp)[0]


def omni_features(instance: Instance, xp: ModuleType = np) -> Any:
  """OmniReduce: blocks go to owners who take turns, with a head of four bytes each, and their sums to all others."""
  k, union = _entries(instance, xp)
  p, each = instance.workers, VALUE_BYTES + HEAD_BYTES / instance.unit
  return _stack(k, [(2, (k + union) * (p - 1) / p * each, 2 * k + 2 * union, _filled(instance))], xp)[0]


def parallax_features(instance: Instance, xp: ModuleType = np) -> Any:
  """Parallax: rows are pushed to servers, each a share of a host, and those that a worker needs asked for and pulled.

  A worker gets its own rows only; the others compute the sum of all of them for everybody.
  """
  k, _ = _entries(instance, xp)
  p, each = instance.workers, VALUE_BYTES + HEAD_BYTES / instance.unit
  return _stack(k, [(3, 2 * k * (p - 1) / p * each, 4 * k, 0.0)], xp)[0]


def _filled(instance):
  return float(instance.size) if instance.dense_result else 0.0


def union_crossover(size: int, entries: float, union_of: Callable[[int], float], *, unit: int = 1,
                    most: int = 4096) -> int | None:
  """The number of workers from which 'union' sends fewer bytes than an all-gather of messages.

  The union must grow slower than half the workers: that is where 2 K (P - 1) / P < k (P - 1).

  Args:
    size: coordinates.
    entries: of one worker.
    union_of: workers -> coordinates that one of them has.
    unit: values that an index or a bit speaks of.
    most: workers up to which it is looked for.

  Returns:
    The smallest such number, or None.
  """
  gather, union = ALGORITHMS.index('all_gather'), ALGORITHMS.index('union')
  for workers in range(2, most + 1):
    sent = features(Instance(workers, size, entries, union_of(workers), unit=unit))[:, 1]
    if sent[union] < sent[gather]:
      return workers
  return None
