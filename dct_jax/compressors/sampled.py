"""The largest magnitudes by a threshold that a sample of the entries gives."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dct_jax import kernels
from dct_jax.arrays import u32
from dct_jax.compressors import fraction, stream
from dct_jax.contract import Compressor
from dct_jax.kernels import choices
from dct_jax.kernels.choices import Purpose
from dct_jax.kernels.hashing import GOLDEN, mix


class SampledTopKState(NamedTuple):
  """State of `sampled_top_k`."""

  step: jax.Array


def sampled_top_k(
    keep: fraction.Fraction = 0.05,
    sample: float = 0.01,
    *,
    least: int = 1000,
    seed: int = 0,
    index_codec: str = 'bitmap',
    value_codec: str = 'float32',
    dense_below: int = stream.DENSE_BELOW,
) -> Compressor:
  r"""Keeps about the share `keep` of each layer that is largest in magnitude, without looking at all of it.

  Of a layer with N entries, n are looked at: the share `sample`, but at least `least`, and at most N. With
  :math:`w_1 \le \dots \le w_n` their sorted magnitudes, residual included, and
  :math:`k = \max(1, \lfloor \text{keep} \cdot n \rfloor)`, all entries of the layer travel that have

  .. math:: |x| \ge w_{n - k + 1}, \quad x \ne 0.

  Their share has a standard deviation of about :math:`\sqrt{\text{keep}\,(1 - \text{keep}) / n}`. All entries
  that equal the threshold travel; of a layer that is mostly zeros, all others do.

  The sample is drawn anew in every step: the layer is cut into n equal stretches, and a cheap hash of seed,
  step, worker and position says which entry of each is looked at. No entry is looked at twice, and no pattern
  in the layer lines up with the sample, as it could with a constant stride.

  Args:
    keep: in (0, 1], or an optax schedule.
    sample: share of a layer that is looked at, in (0, 1].
    least: entries that are looked at in any case. A layer with no more than that is looked at whole; but for
      ties, this is `top_k` then.
    seed: of the sample.
    index_codec: how indices travel; 3LC's comparison has a bitmap, `'auto'` takes the smallest.
    value_codec: how values travel.
    dense_below: layers with fewer entries travel whole.

  Returns:
    A `Compressor`. Wrap it with `error_feedback`.

  Examples:
    >>> import jax.numpy as jnp, dct_jax
    >>> c = dct_jax.sampled_top_k(0.5, dense_below=0)
    >>> layers = (jnp.array([1.0, -4.0, 2.0, 2.0]),)
    >>> packed = c.compress(layers, None, c.init(layers), dct_jax.whole_room(c, layers))
    >>> c.decompress(packed.message[None], layers, None).layers[0].tolist()
    [0.0, -4.0, 2.0, 2.0]

  References:
    Aji and Heafield, Sparse Communication for Distributed Gradient Descent, EMNLP 2017;
    Lim et al., 3LC: Lightweight and Effective Traffic Compression for Distributed Machine Learning, MLSys 2019,
    section 4.2: "5% sparsification".
  """
  keep = fraction.check('keep', keep)
  fraction.check('sample', sample)
  if callable(sample):
    raise ValueError(f'sample must be a number, not a schedule, got {sample=}')
  if least < 1:
    raise ValueError(f'least must be at least 1, got {least=}')
  form = stream.StreamFormat(index_codec, value_codec, dense_below)

  def looked_at(x):
    return min(x.size, max(least, fraction.floor_once(x.size, sample)))

  def draw(layers, seed_here):
    """Positions in each layer; None for all of them."""
    out, at = [], 0
    for x in layers:
      edges = np.arange(looked_at(x) + 1) * x.size // looked_at(x)
      first, length = u32(edges[:-1]), u32(np.diff(edges))
      random = mix(u32(at) + first ^ mix(seed_here + u32(GOLDEN)))
      out.append(None if looked_at(x) == x.size else first + random % length)
      at += x.size
    return out

  def compress(layers, residual, state, quota):
    places = draw(layers, choices.seed_of(
        Purpose.SAMPLE, seed, quota.room.group, state.step, quota.room.worker))
    look = lambda arrays: tuple(
        x if at is None else x.reshape(-1)[at] for x, at in zip(arrays, places, strict=True))
    counts = [looked_at(x) for x in layers]
    rank = u32(counts) - jnp.maximum(fraction.floor_of(counts, keep, state.step), 1) + 1
    tau, _ = kernels.threshold(
        look(layers), None if residual is None else look(residual), rank, refresh=quota.live)
    selected = stream.pack(layers, residual, tau, None, quota, value_codec)
    return selected, SampledTopKState(state.step + 1)

  def nominal(layers):
    return sum(max(1, fraction.floor_once(x.size, keep)) for x in layers)

  return form.compressor(lambda layers: SampledTopKState(jnp.zeros((), jnp.int32)), compress, nominal)
