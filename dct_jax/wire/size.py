"""How many words a stream takes, and how many entries a number of words surely holds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dct_jax.arrays import ceil_div
from dct_jax.wire import values
from dct_jax.wire.format import HEADER, INDEX_CODES, VALUE_CODES
from dct_jax.wire.layout import Layout

INDEX_CODECS = ('auto', *INDEX_CODES)
VALUE_CODECS = tuple(VALUE_CODES)
ROUNDING_WORDS = 3  # what rounding three sections up to words can cost


def check_codecs(index_codec: str, value_codec: str) -> None:
  if index_codec not in INDEX_CODECS:
    raise ValueError(f'index_codec must be one of {INDEX_CODECS}, got {index_codec=}')
  if value_codec not in VALUE_CODECS:
    raise ValueError(f'value_codec must be one of {VALUE_CODECS}, got {value_codec=}')


def index_bound(count: int, universe: int, codec: str) -> int:
  """Words that any `count` indices fit into; for planning, in plain Python."""
  if not count and codec != 'bitmap':
    return 0
  ratio = max(1, universe // max(count, 1))
  b0 = ratio.bit_length() - 1
  tried = range(max(0, b0 - 2), b0 + 2)
  words = {
      'int32': count,
      'gap16': -(-(count + universe // 65535) // 2),
      'bitmap': -(-universe // 32),
      'rice': min(-(-(count + (universe >> b)) // 32) + -(-count * b // 32) for b in tried),
  }
  return min(words.values()) if codec == 'auto' else words[codec]


def stream_words(count: int, layout: Layout, index_codec: str, value_codec: str) -> int:
  """Words of a whole message that any `count` entries fit into."""
  return (HEADER + layout.dense_words(value_codec)
          + index_bound(count, layout.universe, index_codec)
          + values.num_words(count * layout.unit, value_codec))


def entry_limit(words: ArrayLike, layout: Layout, index_codec: str, value_codec: str) -> jax.Array:
  """How many entries surely fit into `words` (a run-time number), whatever their indices are.

  Every codec promises a number of bits for an index plus a fixed part; with Rice each parameter is a
  promise of its own. The best promise wins.
  """
  universe, bits = layout.universe, values.BITS[value_codec] * layout.unit
  promises = {  # (bits for each entry, words once)
      'int32': [(32, 0)],
      'gap16': [(16, universe // 65535 // 2 + 1)],
      'bitmap': [(0, -(-universe // 32))],
      'rice': [(1 + b, -(-(universe >> b) // 32)) for b in range(31)],
  }
  chosen = [p for codec, some in promises.items() if index_codec in ('auto', codec) for p in some]
  each = jnp.array([bits + b for b, _ in chosen], jnp.int32)
  fixed = HEADER + layout.dense_words(value_codec) + ROUNDING_WORDS
  once = jnp.array([fixed + w for _, w in chosen], jnp.int32)
  left = jnp.maximum(jnp.asarray(words).astype(jnp.int32) - once, 0)
  entries = left // each * 32 + left % each * 32 // each  # 32 * left // each without overflow
  return jnp.minimum(jnp.max(entries), universe).astype(jnp.uint32)


def qsgd_words(count: int, bits: int, bucket: int) -> int:
  """Words of a QSGD block of `count` entries: scales of buckets, then codes."""
  return ceil_div(count, bucket) + ceil_div(count * bits, 32)


def three_lc_bytes(count: int) -> int:
  """Bytes of `count` 3-values before zero-run encoding, which never makes them more."""
  return ceil_div(count, 5)
