"""1-bit SGD: every entry as its sign, with the two values a layer that make the squared error smallest."""

from __future__ import annotations

import jax.numpy as jnp

from dct_jax.arrays import floats_of, u32, words_of
from dct_jax.compressors import quantizer, stream
from dct_jax.contract import Compressor
from dct_jax.kernels import BlockCodec, bit_packing
from dct_jax.kernels.levels import TINY
from dct_jax.wire.format import ONE_BIT_CODE

MOST = float(jnp.finfo(jnp.float32).max)
NORMAL = float(jnp.finfo(jnp.float32).tiny)
HUGE, SHRINK = 2.0**64, 2.0**-32  # entries beyond HUGE are shrunk before 2^30 of them are added up


def one_bit(*, dense_below: int = stream.DENSE_BELOW) -> Compressor:
  r"""Sends one bit an entry, and for each layer the mean of its negative and the mean of its other entries.

  .. math:: x \mapsto \begin{cases} \operatorname{mean}\{x_i : x_i \ge 0\} & x \ge 0 \\
    \operatorname{mean}\{x_i : x_i < 0\} & x < 0 \end{cases}

  For these two sets of entries no other values have a smaller sum of squared errors. The result is biased and
  coarse: it is meant for `error_feedback`, as in the paper. The paper has two values for each column of a
  weight matrix; here a whole layer shares them, as where 3LC is compared with it.

  All messages have the same length; a step without room for it sends nothing.

  Args:
    dense_below: layers with fewer entries travel whole, as float32.

  Returns:
    A `Compressor`. Wrap it with `error_feedback`.

  Examples:
    >>> import jax.numpy as jnp, dct_jax
    >>> c, layers = dct_jax.one_bit(dense_below=0), (jnp.array([1.0, -4.0, 3.0, -2.0]),)
    >>> packed = c.compress(layers, None, c.init(layers), dct_jax.whole_room(c, layers))
    >>> packed.message.size                          # a header, two means, up to 32 entries in a word
    9
    >>> c.decompress(packed.message[None], layers, None).layers[0].tolist()
    [2.0, -3.0, 2.0, -3.0]

  References:
    Seide et al., 1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of
    Speech DNNs, Interspeech 2014.
  """
  return quantizer.of_blocks(
      BlockCodec(ONE_BIT_CODE, _num_words, _quantize, _dequantize, num_scales=lambda n: 2, most=MOST), dense_below)


def _num_words(count: int) -> int:
  return 2 + -(-count // 32)


def _tree_sum(x):
  """A sum in an order of its own: XLA's depends on the platform and on what is fused, and all workers and our
  oracle have to agree on the bits. It is also more exact."""
  while x.size > 1:
    half = -(-x.size // 2)
    x = x[:half] + jnp.pad(x[half:], (0, 2 * half - x.size))
  return jnp.sum(x)


def _mean(x, count):
  """Of `count` magnitudes, those of `x` that are not zero and others that are; never denormal or infinite."""
  huge = jnp.max(x, initial=0) > HUGE
  mean = _tree_sum(x * jnp.where(huge, SHRINK, 1)) / jnp.maximum(count, 1).astype(jnp.float32)
  mean = jnp.minimum(mean * jnp.where(huge, 1 / SHRINK, 1), MOST)
  return jnp.where(mean < TINY, 0, mean)


def _quantize(x, first_index, seed):
  del first_index, seed  # nothing is random
  # A denormal number is zero on some platforms and in some programs; here it always is.
  positive, negative = x >= NORMAL, x <= -NORMAL
  below = jnp.sum(negative, dtype=jnp.int32)
  # Both as magnitudes: receivers refuse a scale with a sign.
  means = jnp.stack([
      _mean(jnp.where(positive, x, 0), x.size - below), _mean(jnp.where(negative, -x, 0), below)])
  return jnp.concatenate([words_of(means), bit_packing.pack(u32(negative), 1)])


def _dequantize(words, count: int):
  means = floats_of(words[:2])
  return jnp.where(bit_packing.unpack(words[2:], count, 1) == 1, -means[1], means[0])
