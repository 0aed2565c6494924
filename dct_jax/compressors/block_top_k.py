"""Whole blocks with the largest norms: one index for many values."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from dct_jax import kernels
from dct_jax.compressors import fraction, stream
from dct_jax.compressors.top_k import TopKState
from dct_jax.contract import Compressor


def block_top_k(
    keep: fraction.Fraction,
    block: int = 256,
    *,
    index_codec: str = 'auto',
    value_codec: str = 'float32',
    dense_below: int = stream.DENSE_BELOW,
) -> Compressor:
  """Keeps the share `keep` of each layer's blocks whose sum of squares is largest.

  Args:
    keep: share of the blocks, in (0, 1], or an optax schedule; at least one block a layer.
    block: consecutive entries that travel together; a layer's last block may be shorter.
    index_codec: how block numbers travel.
    value_codec: how values travel.
    dense_below: layers with fewer entries travel whole.

  Returns:
    A `Compressor`.

  References:
    Ge et al., S2 Reducer (blocks as a source of structured sparsity); Fei et al., OmniReduce.
  """
  keep = fraction.check('keep', keep)
  if block < 1:
    raise ValueError(f'block must be at least 1, got {block=}')
  form = stream.StreamFormat(index_codec, value_codec, dense_below, unit=block)

  def count(x):
    return -(-x.size // block)

  def compress(layers, residual, state, quota):
    units = stream.as_units(layers, residual, block)
    blocks = [count(x) for x in layers]
    norms = jnp.split(jnp.sum(units * units, axis=1), np.cumsum(blocks)[:-1])
    k = jnp.maximum(fraction.floor_of(blocks, keep, state.step), 1)
    tau, ties = kernels.threshold(norms, None, jnp.array(blocks, jnp.uint32) - k + 1,
                                  refresh=quota.live)
    chosen = kernels.pack(norms, None, tau, ties, limit=quota.limit, live=quota.live,
                          capacity=quota.most)
    mine = jnp.arange(quota.most) < chosen.sent
    index = jnp.where(mine, chosen.indices, 0)
    selected = stream.pick(units, residual, index, chosen.sent, quota, value_codec, wanted=chosen.wanted)
    return selected, TopKState(state.step + 1)

  def nominal(layers):
    return sum(max(1, fraction.floor_once(count(x), keep)) for x in layers)

  return form.compressor(lambda layers: TopKState(jnp.zeros((), jnp.int32)), compress, nominal)
