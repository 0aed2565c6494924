"""The one place that chooses between a native kernel and its pure-JAX twin.

The native kernels are used on a CPU when they were built. `DCT_JAX_NATIVE=0` in the environment, or
`use_native(False)` around the tracing of a function, chooses the twins; results are the same bits.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dct_jax import native
from dct_jax.kernels import (
    blocks,
    levels,
    qsgd_twin,
    select_twin,
    shared_twin,
    sketch_twin,
    stream_twin,
    three_lc_twin,
)
from dct_jax.kernels.blocks import Layers, Shapes
from dct_jax.kernels.select_twin import NO_QUOTA
from dct_jax.wire.format import VALUE_CODES, index_code

_wanted = os.environ.get('DCT_JAX_NATIVE', '1') != '0'


def native_in_use() -> bool:
  """Whether functions traced now use the native kernels."""
  return _wanted and native.AVAILABLE and jax.default_backend() == 'cpu'


@contextlib.contextmanager
def use_native(on: bool) -> Iterator[None]:
  """Within it, newly traced functions use native kernels (if there are any) or the twins."""
  global _wanted
  before, _wanted = _wanted, on
  try:
    yield
  finally:
    _wanted = before


def _shape(shape, dtype):
  return jax.ShapeDtypeStruct(shape, dtype)


def _control(*scalars):
  return jnp.stack([jnp.asarray(s, jnp.uint32).reshape(()) for s in scalars])


def _layers_and_residual(layers, residual):
  return (*layers, *(residual or ()))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _no_gradient(name, arrays):
  """The same arrays, which a twin then reads. What it does with them is made of bits and has no gradient; JAX would
  take that for zero, where it refuses to differentiate a native kernel."""
  del name
  return arrays


@_no_gradient.defjvp
def _refuse(name, primals, tangents):
  raise ValueError(f'{name} has no gradient: what is compressed, or comes out of a mean of compressed messages, cannot '
                   'be differentiated (take gradients first, and hand them to the transformation)')


def _encode_natively(name, control, dense, layers, residual, capacity, **attributes):
  """A message and the new residual (in place if donated), of a kernel that makes both."""
  results = [_shape((capacity,), jnp.uint32), *(_shape(e.shape, jnp.float32) for e in residual or ())]
  args = [control, dense, *_layers_and_residual(layers, residual)]
  n = len(layers)
  aliases = {2 + n + i: 1 + i for i in range(n)} if residual is not None else {}
  words, *left = native.call(name, results, args, aliases, feedback=residual is not None, **attributes)
  return words, tuple(left) if residual is not None else None


def _sum_natively(name, words, layers, dense, **attributes):
  """Which messages are intact, and their sums, of a kernel that decodes them."""
  results = [_shape(words.shape[:1], jnp.uint32)]
  results += [_shape(x.shape, jnp.float32) for x in (*layers, *dense)]
  intact, *sums = native.call(name, results, [words], dense_layers=len(dense), **attributes)
  return intact, tuple(sums)


def all_finite(layers: Layers) -> jax.Array:
  """uint32[1]: 1 when no entry of any layer is NaN or infinite."""
  if native_in_use():
    return native.call('all_finite', [_shape((1,), jnp.uint32)], layers)[0]
  return select_twin.all_finite(_no_gradient('all_finite', layers))


def threshold(layers: Layers, residual: Layers | None, rank: jax.Array, *, old_tau: jax.Array | None = None,
              refresh: ArrayLike = 1, segment: int = 0) -> tuple[jax.Array, jax.Array]:
  """Exact order statistics of `|layers + residual|`, one for each layer or each segment of a layer.

  Args:
    layers: float32, bfloat16 or float16 arrays.
    residual: float32 arrays of the same shapes, or None.
    rank: uint32[segments], from 1 in ascending order, at most the size of the segment.
    old_tau: float32[segments], returned when `refresh` is 0.
    refresh: scalar; 0 does no work.
    segment: entries that share a threshold; 0 means a whole layer.

  Returns:
    `tau`, float32[segments], and `ties`, uint32[segments]: how many of the entries equal to tau
    belong to the `size - rank + 1` largest ones (all of them when nothing was computed).
  """
  old_tau = jnp.zeros(rank.shape, jnp.float32) if old_tau is None else old_tau
  if native_in_use():
    results = [_shape(rank.shape, jnp.float32), _shape(rank.shape, jnp.uint32)]
    args = [_control(refresh), old_tau, rank, *_layers_and_residual(layers, residual)]
    tau, ties = native.call('threshold', results, args, segment=segment, feedback=residual is not None)
    return tau, ties
  layers, residual = _no_gradient('threshold', (tuple(layers), residual))
  return select_twin.threshold(layers, residual, rank, old_tau, jnp.asarray(refresh), segment)


class Selected(NamedTuple):
  """Packed entries. Only the first `sent` ones of `indices` and `value` mean anything."""

  indices: jax.Array  # uint32[capacity], into all layers laid end to end
  value: jax.Array  # float32[capacity]
  wanted: jax.Array  # uint32 scalar: entries that were selected
  wanted_by_layer: jax.Array | None  # uint32[layers]: the same, apart
  sent: jax.Array  # uint32 scalar: entries that fitted
  residual: tuple[jax.Array, ...] | None


def pack(layers: Layers, residual: Layers | None, tau: jax.Array, ties: jax.Array | None = None, *, limit: ArrayLike,
         live: ArrayLike = 1, capacity: int, segment: int = 0, value_codec: str = 'float32') -> Selected:
  """One pass: add the residual, select by threshold, pack, write the new residual (in place if donated).

  Selected is what has a magnitude of at least its `tau` and is not zero; of entries equal to tau only
  the first `ties` of the segment. Beyond `limit` entries nothing is packed. What is not packed stays in
  the residual whole, what is packed leaves there what `value_codec` rounds away. With `live` 0 nothing
  is selected and the residual stays as it was.
  """
  ties = jnp.full(tau.shape, jnp.uint32(NO_QUOTA)) if ties is None else ties
  if native_in_use():
    results = [_shape((capacity,), jnp.uint32), _shape((capacity,), jnp.float32),
               _shape((1 + len(layers),), jnp.uint32)]
    results += [_shape(e.shape, jnp.float32) for e in residual or ()]
    args = [_control(limit, live), tau, ties, *_layers_and_residual(layers, residual)]
    n = len(layers)
    aliases = {3 + n + i: 3 + i for i in range(n)} if residual is not None else {}
    index, value, counts, *new = native.call(
        'pack', results, args, aliases, segment=segment, feedback=residual is not None,
        value_codec=VALUE_CODES[value_codec])
    left = tuple(new) if residual is not None else None
  else:
    layers, residual = _no_gradient('pack', (tuple(layers), residual))
    index, value, counts, left = select_twin.pack(
        layers, residual, tau, ties, jnp.asarray(limit, jnp.uint32), jnp.asarray(live), capacity,
        segment, value_codec)
  wanted = jnp.sum(counts[1:], dtype=jnp.uint32)
  return Selected(index, value, wanted, counts[1:], counts[0], left)


def encode(index: jax.Array, value: jax.Array, dense: jax.Array, *, count: ArrayLike, wanted: ArrayLike,
           flags: ArrayLike = 0, empty: ArrayLike = 0, budget: ArrayLike, capacity: int, universe: int,
           unit: int = 1, index_codec: str = 'auto', value_codec: str = 'float32') -> jax.Array:
  """A message of `count` entries (docs/wire_format.md), zero from its end up to `budget` words.

  Args:
    index: uint32, the first `count` are strictly increasing and below `universe`.
    value: float32, `unit` for each index.
    dense: uint32 words of the dense section.
    count: entries to send.
    wanted: entries that were selected, for the header.
    flags: bit 0 says that this worker's gradient was not finite.
    empty: not 0 makes a message of nothing but a header.
    budget: words that will travel.
    capacity: static length of the result.
    universe: static number of units.
    unit: values an index.
    index_codec: 'auto', 'int32', 'gap16', 'bitmap' or 'rice'.
    value_codec: 'float32', 'float16' or 'bfloat16'.
  """
  if native_in_use():
    args = [_control(count, wanted, flags, empty, budget), index, value, dense]
    return native.call(
        'encode', [_shape((capacity,), jnp.uint32)], args, universe=universe, unit=unit,
        index_codec=index_code(index_codec), value_codec=VALUE_CODES[value_codec])[0]
  count, wanted, flags, empty = (jnp.asarray(s, jnp.uint32) for s in (count, wanted, flags, empty))
  value = _no_gradient('encode', value)
  return stream_twin.encode(index, value, dense, count, wanted, flags, empty, capacity, universe, unit,
                            index_codec, value_codec)


def unpack_sum(words: jax.Array, sparse: Shapes, dense: Shapes, *, unit: int = 1,
               value_codec: str = 'float32') -> tuple[jax.Array, tuple[jax.Array, ...]]:
  """Decodes messages and adds them up in their order.

  Args:
    words: uint32[messages, words].
    sparse: the layers (or their shapes) that were selected from.
    dense: the layers that travelled whole.
    unit: values an index.
    value_codec: as in `encode`.

  Returns:
    uint32[messages], 0 where a message failed its checks and was left out; and the float32 sums,
    first of the sparse layers, then of the dense ones.
  """
  if native_in_use():
    return _sum_natively('unpack_sum', words, sparse, dense, unit=unit, value_codec=VALUE_CODES[value_codec])
  return stream_twin.unpack_sum(words, sparse, dense, unit, value_codec)


def settle(mode: ArrayLike, words: jax.Array, residual: Layers, *, dense_layers: int = 0, unit: int = 1,
           value_codec: str = 'float32') -> tuple[jax.Array, ...]:
  """Leaves the residual alone (0), clears it (1) or adds the worker's own message back to it (2)."""
  if native_in_use():
    results = [_shape(e.shape, jnp.float32) for e in residual]
    aliases = {2 + i: i for i in range(len(residual))}
    return native.call(
        'settle', results, [_control(mode), words, *residual], aliases,
        dense_layers=dense_layers, unit=unit, value_codec=VALUE_CODES[value_codec])
  residual = _no_gradient('settle', tuple(residual))
  return stream_twin.settle(jnp.asarray(mode), words, residual, dense_layers, unit, value_codec)


def qsgd_encode(layers: Layers, residual: Layers | None, dense: jax.Array, *, seed: ArrayLike, live: ArrayLike = 1,
                silent: ArrayLike = 0, capacity: int, bits: int,
                bucket: int) -> tuple[jax.Array, tuple[jax.Array, ...] | None]:
  """A message of QSGD blocks (docs/wire_format.md), zero from its end on, and the new residual.

  Args:
    layers: float32, bfloat16 or float16 arrays.
    residual: float32 arrays of the same shapes (in place if donated), or None.
    dense: uint32 words of the layers that travel whole.
    seed: uint32 that decides how entries are rounded.
    live: 0 sends an empty message that says so, and leaves the residual as it was.
    silent: not 0 sends an empty message and keeps everything in the residual.
    capacity: static length of the message's buffer.
    bits: 2, 4 or 8 for each entry.
    bucket: entries that share a scale, a multiple of 32.
  """
  if native_in_use():
    return _encode_natively('qsgd_encode', _control(seed, live, silent), dense, layers, residual, capacity,
                            bits=bits, bucket=bucket)
  layers, residual = _no_gradient('qsgd_encode', (tuple(layers), residual))
  return blocks.encode(qsgd_twin.codec(bits, bucket), layers, residual, dense, seed, jnp.asarray(live),
                           jnp.asarray(silent), capacity)


def qsgd_sum(words: jax.Array, layers: Shapes, dense: Shapes, *, bits: int,
             bucket: int) -> tuple[jax.Array, tuple[jax.Array, ...]]:
  """Decodes messages of `qsgd_encode` and adds them up in their order.

  Args:
    words: uint32[messages, words].
    layers: the layers (or their shapes) that were quantized.
    dense: the layers that travelled whole.
    bits: as in `qsgd_encode`.
    bucket: as in `qsgd_encode`.

  Returns:
    uint32[messages], 0 where a message failed its checks and was left out; and the float32 sums,
    first of the quantized layers, then of the dense ones.
  """
  if native_in_use():
    return _sum_natively('qsgd_sum', words, layers, dense, bits=bits, bucket=bucket)
  return blocks.sum_messages(qsgd_twin.codec(bits, bucket), words, layers, dense)


def qsgd_round_trip(flat: jax.Array, bits: int, bucket: int, *, seed: ArrayLike) -> jax.Array:
  """What arrives when a flat float32 array is quantized; pure JAX, for simulations of a second half."""
  words = qsgd_twin.quantize(flat, 0, seed, bits, bucket)
  return levels.dequantize(words, flat.size, bits, bucket)


def three_lc_encode(layers: Layers, residual: Layers | None, dense: jax.Array, *, live: ArrayLike = 1,
                    silent: ArrayLike = 0, budget: ArrayLike, capacity: int, multiplier: float,
                    zero_runs: bool = True) -> tuple[jax.Array, tuple[jax.Array, ...] | None]:
  """A message of 3LC (docs/wire_format.md), zero from its end on, and the new residual.

  Args:
    layers: float32, bfloat16 or float16 arrays.
    residual: float32 arrays of the same shapes (in place if donated), or None.
    dense: uint32 words of the layers that travel whole.
    live: 0 sends an empty message that says so, and leaves the residual as it was.
    silent: not 0 sends an empty message and keeps everything in the residual.
    budget: words that the message may have; what is beyond stays in the residual.
    capacity: static length of the message's buffer.
    multiplier: of the largest magnitude of a layer; together they are its scale.
    zero_runs: whether runs of zeros are shortened.
  """
  if native_in_use():
    return _encode_natively('three_lc_encode', _control(live, silent, budget), dense, layers, residual,
                            capacity, multiplier=np.float32(multiplier), zero_runs=zero_runs)
  layers, residual = _no_gradient('three_lc_encode', (tuple(layers), residual))
  return three_lc_twin.encode(layers, residual, dense, jnp.asarray(live), jnp.asarray(silent), budget, capacity,
                              multiplier, zero_runs)


def three_lc_sum(words: jax.Array, layers: Shapes,
                 dense: Shapes) -> tuple[jax.Array, tuple[jax.Array, ...]]:
  """Decodes messages of `three_lc_encode` and adds them up in their order; see `qsgd_sum`."""
  if native_in_use():
    return _sum_natively('three_lc_sum', words, layers, dense)
  return three_lc_twin.sum_messages(words, layers, dense)


def sketch_insert(ids: jax.Array, count: ArrayLike, values: jax.Array, keys: jax.Array, *, buckets: int,
                  by_id: bool = False) -> jax.Array:
  """A count-sketch of blocks: every entry is added, with a sign, to one bucket of each row.

  Args:
    ids: uint32, numbers of the blocks; the first `count` mean something.
    count: uint32.
    values: float32[blocks, unit], in the order of `ids`; with `by_id`, block i is row i.
    keys: uint32[r] of the hash functions, from `hashing.keys`.
    buckets: of a row.
    by_id: see `values`.

  Returns:
    float32[r, buckets]. Sketches add up to the sketch of the sum.
  """
  if native_in_use():
    return native.call('sketch_insert', [_shape((keys.size, buckets), jnp.float32)],
                       [_control(count), ids, values, keys], by_id=by_id)[0]
  return sketch_twin.insert(ids, jnp.asarray(count), _no_gradient('sketch_insert', values), keys, buckets, by_id)


def sketch_query(ids: jax.Array, count: ArrayLike, table: jax.Array, keys: jax.Array, *, unit: int,
                 rows: int = 0) -> jax.Array:
  """What a sketch says about blocks: the median over its rows, of an even number the mean of the middle two.

  Args:
    ids: as in `sketch_insert`.
    count: likewise.
    table: float32[r, buckets].
    keys: as it was made with.
    unit: entries of a block.
    rows: not 0 puts block i into row i of float32[rows, unit], zero elsewhere.

  Returns:
    float32[ids, unit], zero from `count` on; or see `rows`.
  """
  if native_in_use():
    return native.call('sketch_query', [_shape((rows or ids.size, unit), jnp.float32)],
                       [_control(count), ids, table, keys], by_id=bool(rows))[0]
  return sketch_twin.query(ids, jnp.asarray(count), _no_gradient('sketch_query', table), keys, unit, rows)


def shared_read(shared: np.ndarray) -> np.ndarray:
  """A copy of memory that other threads may write at the same time: no number in it is half written."""
  if not _shared_natively(shared):
    return shared_twin.read(shared)
  copy = np.empty_like(shared)
  native.module().shared_read(copy, shared)
  return copy


def shared_write(shared: np.ndarray, before: np.ndarray, after: np.ndarray) -> None:
  """Makes of `before` `after`, in memory that other threads write at the same time, without a lock.

  Alone, the result is `after` to the bit. A number that others have changed since it was read is changed by the
  difference; one that is to stay is not touched. Types other than float32, int32 and uint32 are written over.

  Args:
    shared: contiguous, and changed in place.
    before: what was read.
    after: what it would be now if nobody else had written.
  """
  after, before = np.asarray(after, order='C'), np.asarray(before, order='C')
  if not shared.shape == before.shape == after.shape or not shared.dtype == before.dtype == after.dtype:
    raise ValueError(f'shapes and types must be equal, got {shared.dtype}{shared.shape}, {before.dtype}{before.shape} '
                     f'and {after.dtype}{after.shape}')
  if shared.dtype not in _SHARED:
    shared[...] = after
  elif not _shared_natively(shared):
    shared_twin.write(shared.reshape(-1), before.reshape(-1), after.reshape(-1))
  else:
    write = native.module().shared_write_float32 if shared.dtype == np.float32 else native.module().shared_write_int32
    write(shared, before, after)


_SHARED = (np.float32, np.int32, np.uint32)


def _shared_natively(shared: np.ndarray) -> bool:
  return native_in_use() and shared.dtype in _SHARED and shared.flags.c_contiguous
