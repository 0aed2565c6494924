"""Sparse allreduce: streams are added up on the way instead of being gathered by everybody.

SparCML's algorithms, and one that needs no more than an OR and a plain sum.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dct_jax import arrays, kernels
from dct_jax.collectives.accounts import check_size
from dct_jax.collectives.algorithms import check_algorithm, number
from dct_jax.collectives.all_gather import all_gather
from dct_jax.collectives.costs import Costs, Instance, cheapest
from dct_jax.contract import Collective, Receipt, Reduced, Room, Unpacked
from dct_jax.kernels import choices
from dct_jax.kernels.choices import Purpose
from dct_jax.transport import Transport, is_bulk, reduce_messages, start_messages, wait_messages
from dct_jax.wire.exchanges import DELTA, Algorithm, Settings

DENSE = int(Algorithm.DENSE)


class SparseAllReduceState(NamedTuple):
  """State of `sparse_all_reduce`, equal on all workers."""

  step: jax.Array  # uint32: seeds the rounding of QSGD
  wanted: jax.Array  # uint32: words of the longest message wanted in the last step
  entries: jax.Array  # uint32: of a message in the last step, on average
  union: jax.Array  # uint32: coordinates that somebody sent in the last step


def sparse_all_reduce(algorithm: str = 'auto', transport: Transport | None = None, *,
                      costs: Costs | None = None, bits: int = 0, bucket: int = 1024, delta: float = DELTA,
                      index_codec: str = 'auto', dense_fallback: bool = True, rungs: int = 16) -> Collective:
  """The sum of sparse messages by one of SparCML's algorithms, by that of their union, or by the fastest.

  - `'all_gather'`: everybody's message to everybody. Best for disjoint indices and few workers.
  - `'recursive_double'` (SSAR_Recursive_Double): log2 P rounds with ever denser sums. Best for tiny messages.
  - `'split_all_gather'` (SSAR_Split_AllGather): every worker adds up a slice of the coordinates, then all
    slices are gathered. Best when indices overlap.
  - `'dsar'` (DSAR_Split_AllGather): the same, the slices dense; with `bits` they are quantized by QSGD, which
    is unbiased and not fed back; its random rounding differs with and without a transport.
  - `'union'`: bitmaps of the units (entries, or blocks of `block_top_k`) that workers have are OR-ed, one bit a
    unit, and a plain allreduce adds up the values of the union. Best for blocks that workers choose alike: no
    indices travel.
  - `'auto'`: by the cost model, from what the last step's messages were like; the dense exchange included.

  Sums become dense on the way when they have more than `delta` of a range's coordinates.

  Args:
    algorithm: one of the above, or 'dense'.
    transport: from `dct_jax.connect`. Without one, the messages are gathered through XLA and every worker adds
      them up in the algorithm's order: the same result, for simulations and several devices in one process; the
      bytes in the receipt are then those of that all-gather.
    costs: measured by `dct_jax.netlab.calibrate`; needed for 'auto' with a transport.
    bits: 2, 4 or 8: QSGD in the second half of 'dsar'; 0 sends float32.
    bucket: values that share a scale in QSGD.
    delta: share of the coordinates beyond which a vector is dense.
    index_codec: how indices travel between workers: 'auto' is the shortest; 'int32', 'gap16', 'rice', 'bitmap'.
    dense_fallback: whether everything pending is summed densely when messages outgrow that (and, with 'auto',
      when it should be faster).
    rungs: of the all-gather without a transport.

  Returns:
    A `Collective` for compressors whose messages are sparse streams.
  """
  _check_arguments(algorithm, bits, costs, transport)
  settings = Settings(index_codec, delta, bits, bucket).check()
  if transport is None:
    portable = all_gather(rungs, dense_fallback, decode=partial(_replay, algorithm, settings))
    return portable._replace(check=_check_stream)
  channel = transport.open()

  def init(size):
    # A message's words are its entries and their indices; the first step has nothing better to go by.
    usual = lambda: jnp.asarray(size.nominal, jnp.uint32)
    return SparseAllReduceState(jnp.zeros((), jnp.uint32), usual(), usual(),
                                jnp.asarray(min(size.nominal * transport.size, size.dense), jnp.uint32))

  def choose(state, size, workers):
    """The number of this step's algorithm, equal on all workers."""
    if costs is not None and algorithm == 'auto':
      instance = Instance(workers, size.dense, state.entries.astype(jnp.float32),
                          state.union.astype(jnp.float32), 4.0 * state.wanted.astype(jnp.float32), bits,
                          delta=delta, unit=size.unit)
      chosen = cheapest(costs, instance)
      # Where everything pending must not be sent, DSAR makes a dense sum of what is in the messages.
      return chosen if dense_fallback else jnp.where(chosen == DENSE, jnp.uint32(Algorithm.DSAR), chosen)
    fixed = jnp.uint32(number(algorithm))
    return jnp.where(dense_fallback & (state.wanted > size.dense), jnp.uint32(DENSE), fixed)

  def room(state, size, workers):
    capacity = max(min(size.largest, size.dense), size.smallest)
    words = jnp.where(choose(state, size, workers) == DENSE, jnp.uint32(0), jnp.uint32(capacity))
    return Room(words=words, live=1, capacity=capacity)

  def arguments(compressor, layers, packed, state, room):
    """What `reduce_messages` and `start_messages` take."""
    layout = compressor.stream.layout(layers)
    pending = packed.residual
    if pending is None:
      pending = tuple(jnp.where(room.live != 0, x, 0).astype(jnp.float32) for x in layers)
    sparse, dense = layout.split(pending)
    chosen = choose(state, compressor.size(layers), transport.size)
    return (packed.message, (*sparse, *dense), channel, settings), {
        'algorithm': chosen, 'seed': choices.seed_of(Purpose.ROUND_SUM, 0, room.group, state.step),
        'bulk': is_bulk(state.wanted), 'pending': (*sparse, *dense),
        'dense_layers': len(dense), 'unit': compressor.stream.unit,
        'value_codec': compressor.stream.value_codec}

  def reduce(compressor, layers, packed, old_state, state, room, axis_name):
    del old_state
    check_size(transport, axis_name)
    positional, named = arguments(compressor, layers, packed, state, room)
    return finish(compressor, layers, state, named['algorithm'], *reduce_messages(*positional, **named))

  def start(compressor, layers, packed, old_state, state, room, axis_name):
    del old_state
    check_size(transport, axis_name)
    positional, named = arguments(compressor, layers, packed, state, room)
    return start_messages(*positional, **named)

  def wait(handle, compressor, layers, packed, old_state, state, room, axis_name):
    del old_state, axis_name
    positional, named = arguments(compressor, layers, packed, state, room)
    return finish(compressor, layers, state, named['algorithm'], *wait_messages(handle, *positional, **named))

  def finish(compressor, layers, state, chosen, info, sums):
    layout = compressor.stream.layout(layers)
    cut = len(layout.sparse)
    total = sum(x.size for x in layers)
    receipt = Receipt(
        encoded_bytes=4 * info.encoded, moved_bytes=info.sent // max(transport.size - 1, 1),
        sent_bytes=info.sent, overflow_bytes=4 * info.missing,
        density=info.entries.astype(jnp.float32) / float(total))
    # A worker without a gradient wanted nothing, and an empty message has no entries: neither says anything
    # about the next step.
    known = (info.nonfinite == 0) & (chosen != DENSE)
    new = SparseAllReduceState(
        state.step + 1, jnp.where(info.nonfinite > 0, state.wanted, info.wanted),
        jnp.where(known, info.entries, state.entries), jnp.where(known, info.union, state.union))
    merged = layout.merge(sums[:cut], sums[cut:])
    return Reduced(merged, info.nonfinite, info.corrupt, chosen == DENSE, receipt, new)

  return Collective(init, room, reduce, _check_stream, start=start, wait=wait)


def _check_arguments(algorithm, bits, costs, transport):
  check_algorithm(algorithm)
  if bits and algorithm not in ('auto', 'dsar'):
    raise ValueError(f"bits are for 'dsar' and 'auto', got {bits=} and {algorithm=}")
  if algorithm == 'auto' and transport is not None:
    if costs is None:
      raise ValueError("'auto' chooses by measured costs: dct_jax.netlab.calibrate.calibrate(transport), or "
                       'Costs.of_network for a guess')
    if costs.workers != transport.size:
      raise ValueError(f'the costs were measured with {costs.workers} workers, got {transport.size=}')


def _check_stream(compressor):
  if compressor.stream is None:
    raise ValueError('sparse_all_reduce adds up sparse streams (top_k, dct_threshold, ...); use all_gather or '
                     'psum for this compressor')


def _replay(algorithm, settings, compressor, gathered, layers, state) -> Unpacked:
  """What the algorithm's order of additions makes of everybody's messages."""
  if algorithm == 'recursive_double':
    alone = lax.map(lambda message: compressor.decompress(message[None], layers, state), gathered)
    vectors = [tuple(x[i] for x in alone.layers) for i in range(gathered.shape[0])]
    return Unpacked(_butterfly(vectors), alone.intact.reshape(-1), alone.entries.reshape(-1))
  unpacked = compressor.decompress(gathered, layers, state)
  if algorithm != 'dsar' or not settings.bits:
    return unpacked
  layout = compressor.stream.layout(layers)
  sparse, dense = layout.split(unpacked.layers)
  flat = jnp.concatenate([x.reshape(-1) for x in (*sparse, *dense)])
  rounded = kernels.qsgd_round_trip(flat, settings.bits, settings.bucket, seed=gathered[0, 5])
  parts = arrays.cut(rounded, (*sparse, *dense))
  return unpacked._replace(layers=layout.merge(parts[:len(sparse)], parts[len(sparse):]))


def _butterfly(vectors):
  """Pairs at distance 1, 2, 4, ...; workers beyond a power of two fold in first."""
  two = 2 ** (len(vectors).bit_length() - 1)
  add = lambda a, b: tuple(x + y for x, y in zip(a, b, strict=True))
  state = [add(vectors[i], vectors[i + two]) if i + two < len(vectors) else vectors[i] for i in range(two)]
  while len(state) > 1:
    state = [add(state[i], state[i + 1]) for i in range(0, len(state), 2)]
  return state[0]
