"""QSGD: every entry as a few bits, rounded at random so that the mean is right."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dct_jax import kernels
from dct_jax.compressors import quantizer, stream
from dct_jax.contract import Compressor
from dct_jax.kernels import choices
from dct_jax.kernels.choices import Purpose
from dct_jax.wire.format import QSGD_CODES
from dct_jax.wire.size import qsgd_words


class QsgdState(NamedTuple):
  """State of `qsgd`."""

  step: jax.Array


def qsgd(
    bits: int = 4,
    bucket: int = 1024,
    *,
    seed: int = 0,
    dense_below: int = stream.DENSE_BELOW,
) -> Compressor:
  r"""Quantizes every bucket of a layer to :math:`s = 2^{b-1} - 1` levels of its largest magnitude.

  With :math:`m = \max |x|` over a bucket, an entry becomes :math:`q\,m/s`, where :math:`q` is one of the two
  whole numbers next to :math:`x s / m`, at random such that the expected value is :math:`x`. No error
  feedback is needed for that reason; with it (`error_feedback`) the error of a step, at most
  :math:`m/s` an entry, is made up for in the next. The scale is the largest magnitude, as in the paper's
  experiments; its theorem has the 2-norm. Random numbers have 16 bits: the expected magnitude is below
  :math:`|x|` by up to :math:`2^{-16} m/s`.

  All messages have the same length; a step without room for it sends nothing.

  Args:
    bits: 2, 4 or 8 for each entry.
    bucket: entries that share a scale, a multiple of 32. None reaches from one layer into the next.
    seed: of the random numbers, which differ between groups of layers, workers and steps.
    dense_below: layers with fewer entries travel whole, as float32.

  Returns:
    A `Compressor`.

  Examples:
    >>> import jax.numpy as jnp, dct_jax
    >>> c, layers = dct_jax.qsgd(2, dense_below=0), (jnp.array([0.0, 3.0, -3.0, 0.0]),)
    >>> packed = c.compress(layers, None, c.init(layers), dct_jax.whole_room(c, layers))
    >>> packed.message.size                          # a header, one scale, four entries in a word
    8
    >>> c.decompress(packed.message[None], layers, None).layers[0].tolist()
    [0.0, 3.0, -3.0, 0.0]

  References:
    Alistarh et al., QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding, NeurIPS 2017;
    Renggli et al., SparCML, SC 2019, section 5.
  """
  if bits not in QSGD_CODES:
    raise ValueError(f'bits must be one of {tuple(QSGD_CODES)}, got {bits=}')
  if bucket < 32 or bucket % 32:
    raise ValueError(f'bucket must be a multiple of 32, got {bucket=}')

  def encode(layers, residual, dense, state, room, silent):
    seed_here = choices.seed_of(Purpose.ROUND, seed, room.group, state.step, room.worker)
    message, left = kernels.qsgd_encode(
        layers, residual, dense, live=room.live, silent=silent, seed=seed_here, capacity=room.capacity,
        bits=bits, bucket=bucket)
    return message, left, QsgdState(state.step + 1)

  def words(sizes):
    return (sum(qsgd_words(n, bits, bucket) for n in sizes),) * 3

  return quantizer.quantizer(
      lambda: QsgdState(jnp.zeros((), jnp.int32)), encode,
      functools.partial(kernels.qsgd_sum, bits=bits, bucket=bucket), words, dense_below)
