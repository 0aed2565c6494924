"""A plain sum of messages that add up: dense means, shared random picks, sketches, rounds of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dct_jax import axes
from dct_jax.collectives.accounts import whole_message
from dct_jax.collectives.parts import Summation, traffic
from dct_jax.contract import Collective, Packed, Receipt, Reduced, Unpacked
from dct_jax.transport import Transport


def psum(transport: Transport | None = None) -> Collective:
  """Adds linear messages on the way; the length of a message does not grow with the workers.

  Args:
    transport: from `dct_jax.connect`; without one sums go through XLA.

  Returns:
    A `Collective` for compressors with `linear` or `rounds`; with `identity` it is the dense mean.
  """
  add = Summation(transport)

  def prepare(compressor, layers, residual, state, room, axis_name):
    if compressor.rounds is None:
      return compressor.compress(layers, residual, state, room)
    workers = axes.axis_size(axis_name)
    carry = compressor.rounds.begin(layers, residual, state, room)
    *before, last = compressor.rounds.each
    total = None
    for one in before:
      message, carry = one.pack(carry, total, workers)
      total = add(message, one.parts(layers, workers), axis_name)
    message, carry = last.pack(carry, total, workers)
    return Packed(message, residual, carry)

  def reduce(compressor, layers, packed, old_state, state, room, axis_name):
    del room
    workers = axes.axis_size(axis_name)
    if compressor.rounds is not None:
      return _finish(compressor.rounds, layers, packed, old_state, state, axis_name, add)
    size = sum(x.size for x in layers)
    if workers == 1 and compressor.exact and packed.residual is None:  # nothing has to be written, nor read
      sums, counts = _alone(layers, packed.message, axis_name)
      unpacked = Unpacked(sums, jnp.ones(1, jnp.uint32), jnp.full(1, size, jnp.uint32))
    else:
      counts = add(packed.message, compressor.linear(layers, workers), axis_name)
      unpacked = compressor.decompress(counts[None], layers, old_state)
    density = unpacked.entries[0].astype(jnp.float32) / float(size)
    receipt = _receipt([compressor.linear(layers, workers)], add, workers, density)
    return Reduced(unpacked.layers, counts[0], jnp.uint32(0), jnp.asarray(False), receipt, state)

  def check(compressor):
    if not compressor.summed:
      raise ValueError('psum adds messages up on the way, which only linear compressors allow '
                       '(identity, random_k(shared=True)); use all_gather for this one')

  return Collective(lambda size: (), whole_message, reduce, check, prepare=prepare)


def _alone(layers, message, axis_name):
  """The layers of the only worker; a sum over its axis tells JAX that they are everybody's."""
  add = (lambda x: x) if axis_name is None else (lambda x: jax.lax.psum(x, axis_name))
  sums, counts = add((tuple(x.astype(jnp.float32) for x in layers), message[:1]))
  return sums, counts


def _finish(rounds, layers, packed, carry, state, axis_name, add) -> Reduced:
  """The last round, and what the compressor makes of its total."""
  workers = axes.axis_size(axis_name)
  every = [one.parts(layers, workers) for one in rounds.each]
  total = add(packed.message, every[-1], axis_name)
  sums, residual, new = rounds.finish(carry, total, workers, total[0])
  receipt = _receipt(every, add, workers, jnp.float32(1))
  residual = None if packed.residual is None else residual
  return Reduced(sums, total[0], jnp.uint32(0), jnp.asarray(False), receipt, state, (residual, new))


def _receipt(messages, add, workers, density) -> Receipt:
  """Of messages with such parts, one a round."""
  moved, sent = traffic(add, messages, workers)
  return Receipt(encoded_bytes=moved, moved_bytes=moved, sent_bytes=sent, overflow_bytes=jnp.uint32(0),
                 density=density)
