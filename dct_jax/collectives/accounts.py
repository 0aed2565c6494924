"""What several collectives count in the same way."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dct_jax import axes
from dct_jax.contract import Room, Size
from dct_jax.transport import Transport
from dct_jax.wire.exchanges import FRAME_BYTES

FRAME_HEAD = FRAME_BYTES  # bytes that a transport puts around a message
STREAM_HEAD = FRAME_BYTES + 96  # and around a stream or vector, which also says what it is


def whole_message(state: Any, size: Size, workers: int) -> Room:
  """Room for all that a compressor has to say, whatever it is: for collectives that carry messages of one length, or
  only what is in them.
  """
  del state, workers
  return Room(words=size.largest, live=1, capacity=size.largest)


def mean_words(words: jax.Array) -> jax.Array:
  """Over workers, rounded up, without a sum that could overflow."""
  workers = words.size
  rest = jnp.sum(words % workers, dtype=jnp.uint32)
  return jnp.sum(words // workers, dtype=jnp.uint32) + (rest + workers - 1) // workers


def check_size(transport: Transport, axis_name: axes.AxisName | None) -> None:
  """Refuses a transport that connects another number of workers than an axis has."""
  if axes.axis_size(axis_name) != transport.size:
    raise ValueError(f'the transport connects {transport.size} workers, but {axis_name=} has '
                     f'{axes.axis_size(axis_name)}; simulated workers need no transport')
