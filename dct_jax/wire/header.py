"""The six words at the start of every message (docs/wire_format.md)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dct_jax.wire.format import HEADER

WORDS = HEADER
NONFINITE = 1  # flag: this worker's gradient was not finite


class Header(NamedTuple):
  """Fields of one header, or of several when the words have a leading axis."""

  length: jax.Array  # words of the message
  wanted: jax.Array  # words that everything selected would have taken
  entries: jax.Array  # indices in the message
  nonfinite: jax.Array  # 0 or 1

  @property
  def missing(self) -> jax.Array:
    """Words that did not fit."""
    return jnp.where(self.wanted > self.length, self.wanted - self.length, 0)


def read_headers(words: jax.Array) -> Header:
  """Reads headers from uint32[..., at least 6]. Trust them only where a message is intact."""
  return Header(words[..., 1], words[..., 2], words[..., 3], words[..., 4] & NONFINITE)
