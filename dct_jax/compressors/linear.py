"""What all linear compressors share: a message that a plain psum adds up.

Word 0 counts the workers whose gradient was not finite; all further words are float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dct_jax.contract import (
    ADD_F32,
    ADD_U32,
    CLEAR,
    TAKE_BACK,
    Compressor,
    Layers,
    Part,
    Parts,
    Room,
    Rounds,
    Size,
    Unpacked,
)

FLAG_WORDS = 1


def parts(count: Callable[[Layers], int]) -> Parts:
  """Of messages with so many float32 numbers."""
  return lambda layers, workers: (Part(ADD_U32, FLAG_WORDS), Part(ADD_F32, count(layers)))


def write(parts: Sequence[jax.Array], room: Room) -> jax.Array:
  """A message of float32 numbers, flat arrays of them; of zeros when this worker has nothing to say."""
  silent = (jnp.asarray(room.words) == 0) | (jnp.asarray(room.live) == 0)
  # Part by part: where only they are read again, XLA sees that they need not be joined.
  bits = [lax.bitcast_convert_type(jnp.where(silent.reshape(()), 0, x), jnp.uint32) for x in parts]
  flag = (1 - jnp.asarray(room.live, jnp.uint32)).reshape(1)
  rest = room.capacity - FLAG_WORDS - sum(x.size for x in bits)
  return jnp.concatenate([flag, *bits, jnp.zeros(rest, jnp.uint32)])


def read_sum(messages: jax.Array, count: int) -> jax.Array:
  """The float32 numbers of several messages, added in their order."""
  # One message at a time: XLA sees that a slice of one is what it was joined from, and joins nothing.
  read = lambda message: lax.bitcast_convert_type(message[FLAG_WORDS:FLAG_WORDS + count], jnp.float32)
  total = read(messages[0])
  for i in range(1, messages.shape[0]):
    total += read(messages[i])
  return total


def of_rounds(init: Callable[[Layers], Any], size: Callable[[Layers], Size], rounds: Rounds,
              conserves: str) -> Compressor:
  """A compressor that talks in rounds; it has no message that could be made or read alone."""

  def refuse(*args):
    raise ValueError('this compressor needs what other workers say, in several rounds or in one: use it in '
                     'compressed_mean with the psum collective')

  return Compressor(init, refuse, refuse, size, refuse, rounds=rounds, conserves=conserves)


def residual_after(room: Room, residual: Layers, exact: Layers, sent: Layers) -> Layers:
  """exact - sent, except where nothing was sent or the layers were dropped."""
  words, live = jnp.asarray(room.words).reshape(()), jnp.asarray(room.live).reshape(())
  left = lambda e, x, s: jnp.where(live == 0, e, jnp.where(words == 0, x, x - s))
  return jax.tree.map(left, tuple(residual), tuple(exact), tuple(sent))


def settle_by(decompress: Callable[[jax.Array, Layers, Any], Unpacked]) -> Callable[..., Layers]:
  """`settle` for any compressor, by reading the worker's own message."""

  def settle(mode, message, residual, state):
    own = decompress(message[None], residual, state).layers
    taken = lambda e, x: jnp.where(mode == CLEAR, 0, jnp.where(mode == TAKE_BACK, e + x, e))
    return jax.tree.map(taken, tuple(residual), own)

  return settle
