"""The k largest magnitudes, of each layer or of each bucket of a layer."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dct_jax import kernels
from dct_jax.compressors import fraction, stream
from dct_jax.contract import Compressor


class TopKState(NamedTuple):
  """State of `top_k` and `bucket_top_k`."""

  step: jax.Array


def top_k(
    keep: fraction.Fraction,
    *,
    index_codec: str = 'auto',
    value_codec: str = 'float32',
    dense_below: int = stream.DENSE_BELOW,
) -> Compressor:
  """Keeps exactly the share `keep` of each layer that is largest in magnitude.

  `k = max(1, floor(keep * size))`; of equal magnitudes the first go; zeros never travel.

  Args:
    keep: in (0, 1], or an optax schedule.
    index_codec: how indices travel.
    value_codec: how values travel.
    dense_below: layers with fewer entries travel whole.

  Returns:
    A `Compressor`.

  Examples:
    >>> import jax.numpy as jnp, dct_jax
    >>> c = dct_jax.top_k(0.5, dense_below=0)
    >>> layers = (jnp.array([1.0, -4.0, 2.0, 2.0]),)
    >>> packed = c.compress(layers, None, c.init(layers), dct_jax.whole_room(c, layers))
    >>> c.decompress(packed.message[None], layers, None).layers[0].tolist()
    [0.0, -4.0, 2.0, 0.0]

  References:
    Aji and Heafield, Sparse Communication for Distributed Gradient Descent, EMNLP 2017.
  """
  keep = fraction.check('keep', keep)

  def ranks(layers, step):
    sizes = jnp.array([x.size for x in layers], jnp.uint32)
    k = jnp.maximum(fraction.floor_of([x.size for x in layers], keep, step), 1)
    return sizes - k + 1

  def nominal(layers):
    return sum(max(1, fraction.floor_once(x.size, keep)) for x in layers)

  return _ranked(ranks, nominal, 0, index_codec, value_codec, dense_below)


def bucket_top_k(
    k: int,
    bucket: int = 512,
    *,
    index_codec: str = 'auto',
    value_codec: str = 'float32',
    dense_below: int = stream.DENSE_BELOW,
) -> Compressor:
  """Keeps the `k` largest magnitudes of every `bucket` consecutive entries of a layer.

  Args:
    k: entries kept in a bucket; a last, shorter bucket keeps at most that many.
    bucket: its length.
    index_codec: how indices travel.
    value_codec: how values travel.
    dense_below: layers with fewer entries travel whole.

  Returns:
    A `Compressor`.

  References:
    Renggli et al., SparCML, SC 2019, section 8: top-k per bucket of 512.
  """
  if bucket < 1:
    raise ValueError(f'bucket must be at least 1, got {bucket=}')
  if not 1 <= k <= bucket:
    raise ValueError(f'k must be between 1 and the bucket of {bucket}, got {k=}')

  def lengths(layers):
    return [min(bucket, x.size - at) for x in layers for at in range(0, x.size, bucket)]

  def ranks(layers, step):
    del step
    return jnp.array([max(1, n - k + 1) for n in lengths(layers)], jnp.uint32)

  def nominal(layers):
    return sum(min(k, n) for n in lengths(layers))

  return _ranked(ranks, nominal, bucket, index_codec, value_codec, dense_below)


def _ranked(ranks, nominal, segment, index_codec, value_codec, dense_below) -> Compressor:
  """A selection by rank: `ranks(layers, step)` has one for each segment of each layer."""
  form = stream.StreamFormat(index_codec, value_codec, dense_below)

  def compress(layers, residual, state, quota):
    tau, ties = kernels.threshold(layers, residual, ranks(layers, state.step), segment=segment,
                                  refresh=quota.live)
    selected = stream.pack(layers, residual, tau, ties, quota, value_codec, segment)
    return selected, TopKState(state.step + 1)

  return form.compressor(lambda layers: TopKState(jnp.zeros((), jnp.int32)), compress, nominal)
