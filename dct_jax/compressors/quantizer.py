"""What all quantizers share: every entry with a few bits, small layers whole, all in one message."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax

from dct_jax import axes
from dct_jax.arrays import add_residual, words_of
from dct_jax.compressors import stream
from dct_jax.contract import ROUNDING, Compressor, Packed, Size, Unpacked
from dct_jax.kernels import BlockCodec, blocks
from dct_jax.wire import header, layout_of


def quantizer(
    init: Callable[[], tuple],
    encode: Callable,
    add_up: Callable,
    words: Callable[[list[int]], tuple[int, int, int]],
    dense_below: int = stream.DENSE_BELOW,
) -> Compressor:
  """A compressor from two kernels.

  A step without room for the smallest message sends nothing, and keeps everything in the residual.

  Args:
    init: () -> state.
    encode: (layers, residual or None, dense, state, room, silent=) -> (message, residual, state), where `dense`
      are the words of the layers that travel whole.
    add_up: (messages, layers, dense) -> (intact, sums of layers and dense).
    words: sizes of the quantized layers -> smallest, nominal and largest number of words for them.
    dense_below: layers with fewer entries travel whole, as float32.
  """
  if dense_below < 0:
    raise ValueError(f'dense_below must not be negative, got {dense_below=}')

  def layout_for(layers):
    return layout_of(layers, dense_below=dense_below)

  def size(layers):
    layout = layout_for(layers)
    fixed = header.WORDS + layout.num_dense
    smallest, nominal, largest = words([layout.sizes[i] for i in layout.sparse])
    return Size(fixed + smallest, fixed + nominal, fixed + largest, sum(layout.sizes))

  def compress(layers, residual, state, room):
    layout = layout_for(layers)
    many, dense = layout.split(layers)
    old, old_dense = layout.split(residual) if residual is not None else (None, ())
    live = jnp.asarray(room.live, jnp.uint32).reshape(())
    silent = (jnp.asarray(room.words, jnp.uint32).reshape(()) < size(layers).smallest) | (live == 0)
    exact = add_residual(dense, old_dense or None)
    flat = jnp.concatenate(exact) if exact else jnp.zeros(0, jnp.float32)
    room = room._replace(live=live)
    message, left, state = encode(many, old, words_of(flat), state, room, silent=silent)
    if residual is not None:
      kept = [jnp.where(live == 0, e, jnp.where(silent, x.reshape(e.shape), 0))
              for x, e in zip(exact, old_dense, strict=True)]
      residual = layout.merge(left, kept)
    return Packed(message, residual, state)

  def decompress(messages, layers, state):
    del state  # scales and codes say it all
    layout = layout_for(layers)
    many, dense = layout.split(layers)
    intact, sums = add_up(messages, many, dense)
    said = header.read_headers(messages).length > header.WORDS
    entries = jnp.where(said, jnp.uint32(sum(layout.sizes)), 0) * intact
    return Unpacked(layout.merge(sums[:len(many)], sums[len(many):]), intact, entries)

  def settle(mode, message, residual, state):
    def take_back():
      own = decompress(message[None], residual, state).layers
      return tuple(e + x for e, x in zip(residual, own, strict=True))

    branches = (lambda: tuple(residual), lambda: tuple(map(jnp.zeros_like, residual)), take_back)
    spread = lambda branch: lambda: axes.vary_as(branch(), (message, *residual))
    return lax.switch(mode, [spread(b) for b in branches])  # in the order of KEEP, CLEAR, TAKE_BACK

  return Compressor(lambda layers: init(), compress, decompress, size, settle, conserves=ROUNDING)


def of_blocks(
    codec: BlockCodec,
    dense_below: int = stream.DENSE_BELOW,
    init: Callable[[], tuple] = tuple,
    advance: Callable = lambda state, room: (0, state),
) -> Compressor:
  """A compressor in pure JAX, for a codec that has no native kernel.

  Args:
    codec: how a layer becomes words.
    dense_below: layers with fewer entries travel whole, as float32.
    init: () -> state.
    advance: (state, room) -> the seed of this step, and the next state.
  """

  def encode(layers, residual, dense, state, room, silent):
    seed, state = advance(state, room)
    message, left = blocks.encode(codec, layers, residual, dense, seed, room.live, silent, room.capacity)
    return message, left, state

  def add_up(messages, layers, dense):
    return blocks.sum_messages(codec, messages, layers, dense)

  def words(sizes):
    return (sum(codec.num_words(n) for n in sizes),) * 3

  return quantizer(init, encode, add_up, words, dense_below)
