"""A plain psum of messages that add up: dense means, shared random picks, sketches."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from dct_jax import axes
from dct_jax.contract import Collective, Receipt, Reduced, Room, Unpacked, as_bytes


def psum() -> Collective:
  """Adds linear messages on the way; the length of a message does not grow with the workers.

  Returns:
    A `Collective` for compressors with `linear` set; with `identity` it is the dense mean.
  """

  def room(state, size, workers):
    del state, workers
    return Room(words=size.largest, live=1, capacity=size.largest)

  def reduce(compressor, layers, packed, old_state, state, room, axis_name):
    del room
    workers, cut = axes.axis_size(axis_name), compressor.linear
    counts = packed.message[:cut]
    add = (lambda x: x) if axis_name is None else (lambda x: lax.psum(x, axis_name))
    if workers == 1 and compressor.exact and packed.residual is None:  # nothing has to be written, nor read
      counts, own = add((counts, tuple(x.astype(jnp.float32) for x in layers)))
      unpacked = Unpacked(own, jnp.ones(1, jnp.uint32), jnp.full(1, sum(x.size for x in layers), jnp.uint32))
    else:
      counts, numbers = add((counts, lax.bitcast_convert_type(packed.message[cut:], jnp.float32)))
      summed = jnp.concatenate([counts, lax.bitcast_convert_type(numbers, jnp.uint32)])
      unpacked = compressor.decompress(summed[None], layers, old_state)
    moved = 4 * packed.message.size
    total = sum(x.size for x in layers)
    receipt = Receipt(
        encoded_bytes=as_bytes(moved), moved_bytes=as_bytes(moved),
        sent_bytes=as_bytes(2 * moved * (workers - 1) // workers),
        overflow_bytes=jnp.uint32(0),
        density=unpacked.entries[0].astype(jnp.float32) / float(total))
    return Reduced(unpacked.layers, counts[0], jnp.uint32(0), jnp.asarray(False), receipt, state)

  def check(compressor):
    if compressor.linear is None:
      raise ValueError('psum adds messages up on the way, which only linear compressors allow '
                       '(identity, random_k(shared=True)); use all_gather for this one')

  return Collective(lambda size: (), room, reduce, check)
