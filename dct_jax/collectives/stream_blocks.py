"""Messages that are sparse streams, as blocks for collectives that add up blocks instead of messages."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dct_jax import arrays
from dct_jax.collectives.blocks import InPlace
from dct_jax.compressors import stream
from dct_jax.contract import Compressor, Layers, Receipt, Reduced
from dct_jax.wire import header


class Own(NamedTuple):
  """What a worker's own message says."""

  blocks: InPlace
  rest: jax.Array  # float32: the layers that travel whole
  notes: jax.Array  # uint32[2]: whether the gradient was not finite, and the number of blocks


def check(compressor: Compressor) -> None:
  """Refuses what has no blocks."""
  if compressor.stream is None:
    raise ValueError('this collective adds up blocks of sparse streams (block_top_k, top_k, dct_threshold, ...); use '
                     'all_gather or psum for this compressor')


def read(compressor: Compressor, message: jax.Array, layers: Layers, state: Any) -> Own:
  """The blocks of a worker's own message."""
  sparse, dense = compressor.stream.layout(layers).split(compressor.decompress(message[None], layers, state).layers)
  head = header.read_headers(message)
  units = stream.as_units(sparse, None, compressor.stream.unit) if sparse else jnp.zeros((1, 1), jnp.float32)
  rest = jnp.concatenate([x.reshape(-1) for x in dense]) if dense else jnp.zeros(0, jnp.float32)
  return Own(InPlace(units), rest, jnp.stack([head.nonfinite, head.entries]))


def joined(blocks: InPlace, rest: jax.Array, compressor: Compressor, layers: Layers) -> Layers:
  """The inverse of `read`: layers of blocks and what travels whole."""
  layout = compressor.stream.layout(layers)
  sparse, dense = layout.split(layers)
  return layout.merge(stream.cut_units(blocks.units, sparse), arrays.cut(rest, dense))


def reduced(own: Own, total: Any, compressor: Compressor, layers: Layers, state: Any, sums: Layers | None = None,
            absorbed: Any = None) -> Reduced:
  """The result of a collective, from what was summed: blocks, rest, notes, moved, sent."""
  nonfinite, count = total.notes[:, 0], total.notes[:, 1]
  size = sum(x.size for x in layers)
  entries = jnp.mean(count.astype(jnp.float32)) * own.blocks.unit + own.rest.size
  receipt = Receipt(encoded_bytes=total.moved, moved_bytes=total.moved, sent_bytes=total.sent,
                    overflow_bytes=jnp.uint32(0), density=entries / float(size))
  sums = joined(total.blocks, total.rest, compressor, layers) if sums is None else sums
  return Reduced(sums, jnp.sum(nonfinite, dtype=jnp.uint32), jnp.uint32(0), jnp.asarray(False), receipt, state,
                 absorbed)
