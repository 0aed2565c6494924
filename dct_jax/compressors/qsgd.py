"""QSGD: every entry as a few bits, rounded at random so that the mean is right."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dct_jax import axes, kernels
from dct_jax.compressors import stream
from dct_jax.contract import Compressor, Packed, Size, Unpacked
from dct_jax.kernels.qsgd_twin import CODECS, mix, num_words
from dct_jax.kernels.select_twin import add_residual
from dct_jax.wire import header, layout_of


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
    seed: of the random numbers, which differ between workers and steps.
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
  if bits not in CODECS:
    raise ValueError(f'bits must be one of {tuple(CODECS)}, got {bits=}')
  if bucket < 32 or bucket % 32:
    raise ValueError(f'bucket must be a multiple of 32, got {bucket=}')
  if dense_below < 0:
    raise ValueError(f'dense_below must not be negative, got {dense_below=}')

  def layout_for(layers):
    return layout_of(layers, dense_below=dense_below)

  def words(layers):
    layout = layout_for(layers)
    return header.WORDS + layout.num_dense + sum(
        num_words(layout.sizes[i], bits, bucket) for i in layout.sparse)

  def compress(layers, residual, state, room):
    layout = layout_for(layers)
    many, dense = layout.split(layers)
    old, old_dense = layout.split(residual) if residual is not None else (None, ())
    live = jnp.asarray(room.live, jnp.uint32).reshape(())
    silent = (jnp.asarray(room.words, jnp.uint32).reshape(()) < words(layers)) | (live == 0)
    exact = add_residual(dense, old_dense or None)
    flat = jnp.concatenate(exact) if exact else jnp.zeros(0, jnp.float32)
    message, left = kernels.qsgd_encode(
        many, old, lax.bitcast_convert_type(flat, jnp.uint32), live=live, silent=silent,
        seed=_seed(seed, state.step, room.worker), capacity=room.capacity, bits=bits, bucket=bucket)
    if residual is not None:
      kept = [jnp.where(live == 0, e, jnp.where(silent, x.reshape(e.shape), 0))
              for x, e in zip(exact, old_dense, strict=True)]
      residual = layout.merge(left, kept)
    return Packed(message, residual, QsgdState(state.step + 1))

  def decompress(messages, layers, state):
    del state  # scales and codes say it all
    layout = layout_for(layers)
    many, dense = layout.split(layers)
    intact, sums = kernels.qsgd_sum(messages, many, dense, bits=bits, bucket=bucket)
    said = header.read_headers(messages).length > header.WORDS
    entries = jnp.where(said, jnp.uint32(sum(layout.sizes)), 0) * intact
    return Unpacked(layout.merge(sums[:len(many)], sums[len(many):]), intact, entries)

  def settle(mode, message, residual, state):
    def take_back():
      own = decompress(message[None], residual, state).layers
      return tuple(e + x for e, x in zip(residual, own, strict=True))

    branches = (lambda: tuple(residual), lambda: tuple(map(jnp.zeros_like, residual)), take_back)
    spread = lambda branch: lambda: axes.vary_as(branch(), (message, *residual))
    return lax.switch(mode, [spread(b) for b in branches])  # in the order of KEEP, CLEAR, TAKE_BACK

  def size(layers):
    fixed = words(layers)
    return Size(fixed, fixed, fixed, sum(layout_for(layers).sizes))

  return Compressor(lambda layers: QsgdState(jnp.zeros((), jnp.int32)), compress, decompress, size, settle)


def _seed(seed, step, worker):
  """A number for this step and worker; the mixer keeps neighbours from sharing random numbers."""
  u32 = lambda x: jnp.asarray(x, jnp.uint32).reshape(())
  return mix(mix(mix(jnp.uint32(seed % 2**32)) + u32(step)) + u32(worker))
