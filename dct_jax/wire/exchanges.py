"""Numbers of exchanges, which all workers agree on, and what an exchange may be told.

The native code has the same numbers (native/src/common/wire.h); their names are in `collectives/algorithms.py`.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np

from dct_jax.wire.format import INDEX_CODES, index_code


class Algorithm(enum.IntEnum):
  """How messages become a sum."""

  ALL_GATHER = 0
  RECURSIVE_DOUBLE = 1
  SPLIT_ALL_GATHER = 2
  DSAR = 3
  DENSE = 4
  UNION = 5


class Op(enum.IntEnum):
  """What an exchange of streams does with values of the same coordinate."""

  SUM = 0
  MAX = 1
  MIN = 2
  PRODUCT = 3
  OR = 4


# Beyond this share of a range's coordinates a sum is dense. By bytes it is 0.97 with our index
# codecs (0.5 with the paper's 32-bit indices), and a smaller value saves no time (docs/transport.md).
DELTA = 0.97


# Up to so many bytes of all workers' bitmaps together, 'union' gathers them in one round: a second one would cost
# more than the bytes that it saves.
ONE_ROUND_BYTES = 16384


# Frames of a channel: bytes before a body, behind it, and both (docs/wire_format.md).
FRAME_MAGIC = 0xDC7F0002
FRAME_HEAD = 24
FRAME_TAIL = 4
FRAME_BYTES = FRAME_HEAD + FRAME_TAIL


class Settings(NamedTuple):
  """What a reduction may be told; static.

  Attributes:
    index_codec: how indices travel between workers: 'auto' (the shortest), 'int32', 'gap16', 'rice', 'bitmap'.
    delta: share of a range's coordinates beyond which it travels dense.
    bits: of QSGD in the second half of 'dsar'; 0 sends float32.
    bucket: of QSGD.
  """

  index_codec: str = 'auto'
  delta: float = DELTA
  bits: int = 0
  bucket: int = 1024

  def check(self) -> Settings:
    """Itself, or a ValueError."""
    if self.index_codec != 'auto' and self.index_codec not in INDEX_CODES:
      raise ValueError(f"index_codec must be 'auto' or one of {tuple(INDEX_CODES)}, got {self.index_codec=}")
    if not 0 < self.delta <= 1:
      raise ValueError(f'delta must be above 0 and at most 1, got {self.delta=}')
    if self.bits not in (0, 2, 4, 8):
      raise ValueError(f'bits must be 0, 2, 4 or 8, got {self.bits=}')
    if self.bucket < 32 or self.bucket % 32:
      raise ValueError(f'bucket must be a multiple of 32, got {self.bucket=}')
    return self

  def attributes(self) -> dict[str, np.generic]:
    """As a native exchange takes them."""
    return {'index_codec': np.int64(index_code(self.index_codec)), 'delta': np.float64(self.delta),
            'bits': np.int64(self.bits), 'bucket': np.int64(self.bucket)}
