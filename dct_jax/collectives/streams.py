"""One sparse vector a worker, reduced: SparCML's interface for data that is sparse by nature."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dct_jax import axes, kernels
from dct_jax.arrays import Stream, words_of
from dct_jax.collectives.accounts import check_size
from dct_jax.collectives.algorithms import ALGORITHMS, DENSE_RESULTS, check_algorithm, check_op, number
from dct_jax.collectives.costs import Costs, Instance, predict, random_union
from dct_jax.kernels import hashing
from dct_jax.transport import Transport, reduce_stream
from dct_jax.wire.exchanges import DELTA, Op, Settings

NO_INDEX = np.uint32(0xFFFFFFFF)


class Exchange:
  """An open channel for streams: `allreduce` with its arguments settled, for use in a traced function.

  Args:
    size: coordinates of the vectors.
    axis_name: mapped axis of the workers.
    transport: from `dct_jax.connect`; None goes through XLA, for simulations.
    algorithm: 'all_gather', 'recursive_double', 'split_all_gather', 'union' give a `Stream` of workers times
      the capacity; 'dsar' and 'dense' give an array. 'auto' is the one that should be fastest for streams as
      long as their capacity, with random indices (true lengths differ by worker: no common ground).
    op: 'sum', 'max', 'min', 'product', or 'or' (of uint32); absent coordinates are neutral.
    index_codec: as for `sparse_all_reduce`.
    delta: likewise.
    bits: of QSGD in the second half of 'dsar'; float32 sums only. Random rounding differs with and without a
      transport.
    costs: measured by `dct_jax.netlab.calibrate`; needed for 'auto' with a transport.
  """

  def __init__(self, size: int, axis_name: str, *, transport: Transport | None = None,
               algorithm: str = 'split_all_gather', op: str = 'sum', index_codec: str = 'auto',
               delta: float = DELTA, bits: int = 0, costs: Costs | None = None):
    check_algorithm(algorithm)
    if algorithm == 'auto' and transport is not None and costs is None:
      raise ValueError("'auto' chooses by measured costs: dct_jax.netlab.calibrate.calibrate(transport)")
    check_op(op)
    if not 0 < size <= 2**30:
      raise ValueError(f'size must be between 1 and 2^30, got {size=}')
    if bits and (algorithm, op) != ('dsar', 'sum'):
      raise ValueError(f"bits are for sums by 'dsar', got {bits=}, {algorithm=} and {op=}")
    self.size, self.axis_name, self.algorithm, self.op = size, axis_name, algorithm, op
    self._costs, self._transport, self._settings = costs, transport, Settings(index_codec, delta, bits).check()
    self._channel = None if transport is None else transport.open()

  def __call__(self, stream: Stream) -> tuple[Stream | jax.Array, jax.Array]:
    """Returns the reduction, equal on all workers, and the bytes that a worker has sent, on average."""
    _check(stream, self.op, self._settings.bits)
    workers = axes.axis_size(self.axis_name)
    algorithm = self.chosen(stream.indices.size, workers)
    dense = algorithm in DENSE_RESULTS
    capacity = None if dense else min(workers * stream.indices.size, self.size)
    if self._transport is None or self._channel is None:
      total, sent = _portable(stream, self.size, self.op, capacity, self.axis_name)
      return self._rounded(total) if algorithm == 'dsar' else total, sent
    check_size(self._transport, self.axis_name)
    indices, values = stream.indices, stream.values
    if algorithm == 'dense':
      values = scatter(stream, self.size, self.op)
      indices = jnp.zeros(0, jnp.uint32)
    info, out = reduce_stream(indices, values, stream.count, self.size, self._channel, self._settings,
                              algorithm=number(algorithm), op=Op[self.op.upper()], capacity=capacity,
                              seed=self._seed(values))
    return (out if dense else Stream(out[0], out[1], info[0])), info[1]

  def _seed(self, values):
    """Of random rounding. An exchange has no state: other values round otherwise."""
    return hashing.checksum(words_of(values), values.size, skip=None) if self._settings.bits else 0

  def _rounded(self, total):
    """What arrives of a sum in the second half of 'dsar'."""
    if not self._settings.bits:
      return total
    return kernels.qsgd_round_trip(total, self._settings.bits, self._settings.bucket, seed=self._seed(total))

  def chosen(self, capacity: int, workers: int) -> str:
    """The algorithm for streams of some capacity."""
    if self.algorithm != 'auto':
      return self.algorithm
    if self._costs is None:  # without a transport all sparse ones are the same
      return 'split_all_gather'
    union = random_union(self.size, min(capacity / self.size, 1.0), workers)
    seconds = predict(self._costs, Instance(workers, self.size, capacity, union, dense_result=False,
                                            delta=self._settings.delta))
    return ALGORITHMS[int(np.argmin(seconds))]


def allreduce(stream: Stream, size: int, axis_name: str, **options: Any) -> Stream | jax.Array:
  """Reduces every worker's stream; see `Exchange`, which opens a channel once instead of at each trace."""
  return Exchange(size, axis_name, **options)(stream)[0]


def allgather_disjoint(stream: Stream, size: int, axis_name: str, **options: Any) -> Stream:
  """Puts streams with disjoint indices together (SparCML's sparse AllGather)."""
  result = Exchange(size, axis_name, algorithm='all_gather', **options)(stream)[0]
  assert isinstance(result, Stream)
  return result


def _check(stream, op, bits):
  if stream.indices.dtype != jnp.uint32 or stream.indices.shape != stream.values.shape:
    raise ValueError('a stream has uint32 indices and as many values, got '
                     f'{stream.indices.dtype=}, {stream.indices.shape=}, {stream.values.shape=}')
  if stream.values.dtype not in (jnp.float32, jnp.float64, jnp.uint32):
    raise ValueError(f'values must be float32, float64 or uint32, got {stream.values.dtype=}')
  if op == 'or' and stream.values.dtype != jnp.uint32:
    raise ValueError(f"'or' is for uint32, got {stream.values.dtype=}")
  if bits and stream.values.dtype != jnp.float32:
    raise ValueError(f'bits are for float32, got {bits=} and {stream.values.dtype=}')


def neutral(op: str, dtype: Any) -> np.ndarray:
  """What an absent coordinate counts as."""
  low, high = (-np.inf, np.inf) if jnp.issubdtype(dtype, jnp.floating) else (0, 2**32 - 1)
  return np.asarray({'max': low, 'min': high, 'product': 1}.get(op, 0), dtype)


def _combine(op):
  return {'sum': jnp.add, 'max': jnp.maximum, 'min': jnp.minimum, 'product': jnp.multiply,
          'or': jnp.bitwise_or}[op]


def scatter(stream: Stream, size: int, op: str = 'sum') -> jax.Array:
  """The stream as a dense vector; one of rows as a table of `size` rows."""
  at = jnp.where(stream.used, stream.indices, jnp.uint32(size))
  empty = axes.vary_as(jnp.full((size, *stream.values.shape[1:]), neutral(op, stream.values.dtype)), stream)
  return empty.at[at].set(stream.values, mode='drop')


def _portable(stream, size, op, capacity, axis_name):
  """The same through XLA: everybody gathers everything and combines it in order."""
  workers = axes.axis_size(axis_name)
  gather = (lambda x: axes.gather(x, axis_name)) if axis_name is not None else (lambda x: x[None])
  everyone = Stream(*(gather(x) for x in stream))
  dense = [scatter(Stream(*(x[w] for x in everyone)), size, op) for w in range(workers)]
  total = dense[0]
  for vector in dense[1:]:
    total = _combine(op)(total, vector)
  sent = jnp.uint32((workers - 1) * (stream.indices.size * (4 + stream.values.dtype.itemsize) + 4))
  if capacity is None:
    return total, sent
  used = jnp.arange(stream.indices.size) < everyone.count[:, None]
  indices = jnp.unique(jnp.where(used, everyone.indices, NO_INDEX), size=capacity, fill_value=NO_INDEX)
  count = jnp.sum(indices != NO_INDEX, dtype=jnp.uint32)
  values = total.at[indices].get(mode='fill', fill_value=0)
  return Stream(indices, lax.convert_element_type(values, stream.values.dtype), count), sent
