"""Stochastic 3-value quantization: every entry as -1, 0 or 1, at random so that the mean is right."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dct_jax.arrays import floats_of, u32, words_of
from dct_jax.compressors import quantizer, stream
from dct_jax.contract import Compressor
from dct_jax.kernels import BlockCodec, bit_packing, choices, three_values
from dct_jax.kernels.choices import Purpose
from dct_jax.kernels.hashing import noise
from dct_jax.wire.format import TERNARY_CODE
from dct_jax.wire.size import three_lc_bytes


class StochasticTernaryState(NamedTuple):
  """State of `stochastic_ternary`."""

  step: jax.Array


def stochastic_ternary(*, seed: int = 0, dense_below: int = stream.DENSE_BELOW) -> Compressor:
  r"""Sends the sign of an entry or nothing, with a chance that makes the expected value right.

  With :math:`m = \max |x|` over a layer, an entry becomes :math:`q\,m`, where

  .. math:: q = \operatorname{sign}(x) \text{ with probability } |x| / m, \text{ and otherwise } 0.

  Five of these travel in a byte, 1.6 bits an entry. This is TernGrad without its clipping, and with the packing
  of 3LC in place of 2 bits. Random numbers have 16 bits: the expected magnitude is below :math:`|x|` by up to
  :math:`2^{-16} m`.

  Use it without `error_feedback`: the authors of 3LC saw training fail with both. The error of an entry is not
  bounded by its own size, only by :math:`m`, and a residual of such errors makes the next :math:`m` larger.

  All messages have the same length; a step without room for it sends nothing.

  Args:
    seed: of the random numbers, which differ between groups of layers, workers and steps.
    dense_below: layers with fewer entries travel whole, as float32.

  Returns:
    A `Compressor`.

  Examples:
    >>> import jax.numpy as jnp, dct_jax
    >>> c, layers = dct_jax.stochastic_ternary(dense_below=0), (jnp.array([0.0, 3.0, -3.0, 0.0]),)
    >>> packed = c.compress(layers, None, c.init(layers), dct_jax.whole_room(c, layers))
    >>> packed.message.size                          # a header, one scale, a byte in a word
    8
    >>> c.decompress(packed.message[None], layers, None).layers[0].tolist()
    [0.0, 3.0, -3.0, 0.0]

  References:
    Wen et al., TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning, NeurIPS 2017;
    Lim et al., 3LC: Lightweight and Effective Traffic Compression for Distributed Machine Learning, MLSys 2019,
    section 4.2: "Stoch 3-value b-3-5".
  """

  def advance(state, room):
    here = choices.seed_of(Purpose.ROUND, seed, room.group, state.step, room.worker)
    return here, StochasticTernaryState(state.step + 1)

  codec = BlockCodec(TERNARY_CODE, _num_words, _quantize, _dequantize, num_scales=lambda n: 1, most=three_values.MOST)
  return quantizer.of_blocks(
      codec, dense_below, lambda: StochasticTernaryState(jnp.zeros((), jnp.int32)), advance)


def _num_words(count: int) -> int:
  return 1 + -(-three_lc_bytes(count) // 4)


def _quantize(x, first_index, seed):
  m = three_values.scale(x, 1)
  factor = jnp.where(m > 0, 65536 / jnp.where(m > 0, m, 1), 0)
  t = jnp.minimum(jnp.abs(x) * factor, 65536).astype(jnp.uint32)
  u = noise(seed, u32(first_index) + jnp.arange(x.size, dtype=jnp.uint32))
  q = jnp.minimum((t + u) >> 16, 1).astype(jnp.int8)
  code = three_values.fold(jnp.where(x < 0, -q, q))
  return jnp.concatenate([words_of(m).reshape(1), bit_packing.pack(u32(code), 8)])


def _dequantize(words, count: int):
  code = bit_packing.unpack(words[1:], three_lc_bytes(count), 8).astype(jnp.uint8)
  return three_values.dequantize(three_values.unfold(code, count), floats_of(words[0]))
