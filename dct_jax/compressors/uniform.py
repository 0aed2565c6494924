"""8-bit integers: every entry as one of 255 evenly spaced levels."""

from __future__ import annotations

import jax.numpy as jnp

from dct_jax.arrays import u32, words_of
from dct_jax.compressors import quantizer, stream
from dct_jax.contract import Compressor
from dct_jax.kernels import BlockCodec, bit_packing, levels
from dct_jax.kernels.levels import MOST, TINY
from dct_jax.wire.format import INT8_CODE

LEVELS = 127  # above zero, and as many below


def int8(*, dense_below: int = stream.DENSE_BELOW) -> Compressor:
  r"""Rounds every entry to the nearest of 255 levels between plus and minus its layer's largest magnitude.

  With :math:`m = \max |x|` over a layer, an entry becomes :math:`q\,m/127`, where :math:`q` is the whole number
  nearest to :math:`127 x / m` (of two, the even one): it is off by at most :math:`m/254`, half a level.
  Nothing is random, so that the same error comes back in every step; with `error_feedback` it is made up for.

  All messages have the same length; a step without room for it sends nothing.

  Args:
    dense_below: layers with fewer entries travel whole, as float32.

  Returns:
    A `Compressor`.

  Examples:
    >>> import jax.numpy as jnp, dct_jax
    >>> c, layers = dct_jax.int8(dense_below=0), (jnp.array([127.0, -3.0, 0.7, -0.2]),)
    >>> packed = c.compress(layers, None, c.init(layers), dct_jax.whole_room(c, layers))
    >>> packed.message.size                          # a header, one scale, four entries in a word
    8
    >>> c.decompress(packed.message[None], layers, None).layers[0].tolist()
    [127.0, -3.0, 1.0, 0.0]

  References:
    Lim et al., 3LC: Lightweight and Effective Traffic Compression for Distributed Machine Learning, MLSys 2019,
    section 4.2: "8-bit int".
  """
  return quantizer.of_blocks(
      BlockCodec(INT8_CODE, _num_words, _quantize, _dequantize, num_scales=lambda n: 1, most=MOST), dense_below)


def _num_words(count: int) -> int:
  return 1 + -(-count // 4)


def _quantize(x, first_index, seed):
  del first_index, seed  # nothing is random
  m = jnp.max(jnp.abs(x), initial=0)
  m = jnp.where(m < TINY, 0, jnp.minimum(m, MOST))
  factor = jnp.where(m > 0, LEVELS / jnp.where(m > 0, m, 1), 0)
  q = jnp.clip(jnp.round(x * factor), -LEVELS, LEVELS).astype(jnp.int32)
  return jnp.concatenate([words_of(m).reshape(1), bit_packing.pack(u32(q + LEVELS), 8)])


def _dequantize(words, count: int):
  """As QSGD with 8 bits and one bucket: the two differ in how they round."""
  return levels.dequantize(words, count, 8, bucket=max(count, 1))
