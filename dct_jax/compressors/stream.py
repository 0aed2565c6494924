"""What all selections share: packed entries + dense layers -> one message, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dct_jax import kernels
from dct_jax.arrays import add_residual
from dct_jax.contract import Compressor, Layers, Packed, Room, Size, Unpacked
from dct_jax.kernels import cuts
from dct_jax.wire import header, values
from dct_jax.wire import layout as layouts
from dct_jax.wire import size as sizes

DENSE_BELOW = 1024  # below this an index costs more attention than it saves


class Quota(NamedTuple):
  """What a selection may send in this step, in units."""

  limit: jax.Array  # uint32: at most so many
  most: int  # static: no step ever sends more
  live: jax.Array  # uint32: 0 when this worker has nothing to say
  room: Room  # of the whole message; worker and group are for random choices


class StreamFormat:
  """Static choices of a sparse stream, and the functions of the contract that follow from them."""

  def __init__(self, index_codec: str, value_codec: str, dense_below: int, unit: int = 1):
    sizes.check_codecs(index_codec, value_codec)
    if dense_below < 0:
      raise ValueError(f'dense_below must not be negative, got {dense_below=}')
    self.index_codec, self.value_codec = index_codec, value_codec
    self.dense_below, self.unit = dense_below, unit

  def layout(self, layers: Layers) -> layouts.Layout:
    return layouts.layout_of(layers, dense_below=self.dense_below, unit=self.unit)

  def words(self, count: int, layout: layouts.Layout) -> int:
    return sizes.stream_words(count, layout, self.index_codec, self.value_codec)

  def size(self, layers: Layers, nominal_units: int) -> Size:
    """Message sizes when about `nominal_units` indices are sent."""
    layout = self.layout(layers)
    slack = sizes.ROUNDING_WORDS
    return Size(self.words(0, layout), self.words(nominal_units, layout) + slack,
                self.words(layout.universe, layout) + slack, sum(layout.sizes), self.unit)

  def quota(self, room: Room, layout: layouts.Layout) -> Quota:
    """This step's room, in units."""
    bits = values.BITS[self.value_codec] * self.unit
    return Quota(
        limit=sizes.entry_limit(room.words, layout, self.index_codec, self.value_codec),
        most=max(1, min(layout.universe, room.capacity * 32 // bits)),
        live=jnp.asarray(room.live, jnp.uint32).reshape(()),
        room=room)

  def finish(self, layers: Layers, residual: Layers | None, selected: kernels.Selected,
             room: Room) -> tuple[jax.Array, Layers | None]:
    """Adds the dense layers, encodes, and returns the message and the whole residual."""
    layout = self.layout(layers)
    _, dense = layout.split(layers)
    words = jnp.asarray(room.words, jnp.uint32)
    live = jnp.asarray(room.live, jnp.uint32).reshape(())
    empty = (words == 0) | (live == 0)
    _, old = layout.split(residual) if residual is not None else (None, None)
    dense_words, left = self._dense(dense, old, empty, live)
    message = kernels.encode(
        selected.indices, selected.value, dense_words, count=selected.sent, wanted=selected.wanted,
        flags=1 - live, empty=empty, budget=words, capacity=room.capacity,
        universe=layout.universe, unit=self.unit, index_codec=self.index_codec,
        value_codec=self.value_codec)
    if residual is None:
      return message, None
    return message, layout.merge(selected.residual, left)

  def _dense(self, dense, residual, empty, live):
    """Words of the dense section, and what it leaves in the residual."""
    if not dense:
      return jnp.zeros(0, jnp.uint32), ()
    exact = add_residual(dense, residual)
    flat = jnp.concatenate(exact)
    if residual is None:
      return values.to_words(flat, self.value_codec), None
    left = []
    for x, e in zip(exact, residual, strict=True):
      sent = jnp.where(empty, 0, values.round_trip(x, self.value_codec))
      left.append(jnp.where(live == 0, e, (x - sent).reshape(e.shape)))
    return values.to_words(flat, self.value_codec), tuple(left)

  def decompress(self, messages: jax.Array, layers: Layers, state: Any = None) -> Unpacked:
    del state  # a stream explains itself
    layout = self.layout(layers)
    sparse, dense = layout.split(layers)
    intact, sums = kernels.unpack_sum(
        messages, sparse, dense, unit=self.unit, value_codec=self.value_codec)
    head = header.read_headers(messages)
    entries = jnp.where(head.length > header.WORDS, head.entries * self.unit + layout.num_dense, 0)
    return Unpacked(layout.merge(sums[:len(sparse)], sums[len(sparse):]), intact, intact * entries)

  def settle(self, mode: jax.Array, message: jax.Array, residual: Layers, state: Any = None) -> Layers:
    del state
    layout = self.layout(residual)
    sparse, dense = layout.split(residual)
    out = kernels.settle(mode, message, (*sparse, *dense), dense_layers=len(dense),
                         unit=self.unit, value_codec=self.value_codec)
    return layout.merge(out[:len(sparse)], out[len(sparse):])

  def compressor(self, init: Callable[[Layers], Any],
                 compress: Callable[[Layers, Layers | None, Any, Quota], tuple[kernels.Selected, Any]] | None,
                 nominal: Callable[[Layers], int]) -> Compressor:
    """A compressor from what differs: state, selection, and the usual number of units sent.

    Args:
      init: layers that entries are selected from -> state.
      compress: (the same layers, their residual, state, Quota) -> (Selected, state); None if all layers travel whole.
      nominal: the same layers -> expected number of units.
    """

    def whole_compress(layers, residual, state, room) -> Packed:
      layout = self.layout(layers)
      sparse, _ = layout.split(layers)
      old = layout.split(residual)[0] if residual is not None else None
      if sparse and compress is not None:
        selected, state = compress(sparse, old, state, self.quota(room, layout))
      else:
        selected = nothing(old)
      message, left = self.finish(layers, residual, selected, room)
      return Packed(message, left, state)

    return Compressor(
        init=lambda layers: init(self.layout(layers).split(layers)[0]),
        compress=whole_compress,
        decompress=self.decompress,
        size=lambda layers: self.size(layers, nominal(self.layout(layers).split(layers)[0])),
        settle=self.settle,
        stream=self)


def nothing(residual: Layers | None) -> kernels.Selected:
  """No layer is large enough to select from."""
  zero = jnp.zeros((), jnp.uint32)
  return kernels.Selected(jnp.zeros(1, jnp.uint32), jnp.zeros(1, jnp.float32), zero, None, zero, residual)


def pack(layers: Layers, residual: Layers | None, tau: jax.Array, ties: jax.Array | None, quota: Quota,
         value_codec: str, segment: int = 0) -> kernels.Selected:
  """Selects by thresholds: the fused kernel."""
  return kernels.pack(
      layers, residual, tau, ties, limit=quota.limit, live=quota.live, capacity=quota.most,
      segment=segment, value_codec=value_codec)


def as_units(layers: Layers, residual: Layers | None, unit: int) -> jax.Array:
  """layers + residual as float32[units, unit], the last unit of each layer padded with zeros."""
  sums = add_residual(layers, residual)
  # Joined before it is cut into units: XLA copies every layer that becomes a column.
  return jnp.concatenate([jnp.pad(x, (0, -x.size % unit)) for x in sums]).reshape(-1, unit)


def pick(units: jax.Array, residual: Layers | None, index: jax.Array, count: jax.Array, quota: Quota, value_codec: str,
         wanted: jax.Array | None = None) -> kernels.Selected:
  """Packs the units at `index`, or as many of them as there is room for, every layer cut alike.

  Args:
    units: from `as_units`.
    residual: of the layers, or None.
    index: strictly increasing; the first `count` mean something.
    count: see `index`.
    quota: this step's.
    value_codec: how values travel.
    wanted: how many were selected, if more than `count`.
  """
  here = lambda n: jnp.where(quota.live == 0, 0, n).astype(jnp.uint32)
  wanted, count = here(count if wanted is None else wanted), jnp.minimum(here(count), index.size)
  sent = jnp.minimum(count, quota.limit).astype(jnp.uint32)
  cut, places = cuts.even(sent, count), jnp.arange(index.size, dtype=jnp.uint32)
  place = jnp.where((places < count) & cut.keeps(places), cut.at(places), index.size)
  index = jnp.zeros_like(index).at[place].set(index, mode='drop')
  value = units[index]
  if residual is not None:
    at = jnp.where(jnp.arange(index.size) < sent, index.astype(jnp.int32), units.shape[0])
    left = units.at[at].set(value - values.round_trip(value, value_codec), mode='drop')
    residual = tuple(
        jnp.where(quota.live == 0, e, x) for e, x in
        zip(residual, cut_units(left, residual), strict=True))
  return kernels.Selected(index, value.reshape(-1), wanted, None, sent, residual)


def cut_units(units: jax.Array, like: Layers) -> list[jax.Array]:
  """The inverse of `as_units`, in the shapes of `like`."""
  out, at = [], 0
  for x in like:
    rows = -(-x.size // units.shape[1])
    out.append(units[at:at + rows].reshape(-1)[:x.size].reshape(x.shape))
    at += rows
  return out
