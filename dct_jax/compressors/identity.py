"""No compression: the layers themselves, as float32. The measure of everything else."""

from __future__ import annotations

import jax.numpy as jnp

from dct_jax import arrays
from dct_jax.arrays import add_residual
from dct_jax.compressors import linear
from dct_jax.contract import Compressor, Packed, Size, Unpacked


def identity() -> Compressor:
  """Sends everything. Linear: use it with the `psum` collective for a dense mean.

  Examples:
    >>> import jax.numpy as jnp, dct_jax
    >>> c, layers = dct_jax.identity(), (jnp.arange(3.0),)
    >>> packed = c.compress(layers, None, c.init(layers), dct_jax.whole_room(c, layers))
    >>> c.decompress(packed.message[None], layers, None).layers[0].tolist()
    [0.0, 1.0, 2.0]
  """

  def compress(layers, residual, state, room):
    sums = add_residual(layers, residual)
    if residual is not None:
      exact = tuple(x.reshape(r.shape) for x, r in zip(sums, residual, strict=True))
      residual = linear.residual_after(room, residual, exact, exact)
    return Packed(linear.write(sums, room), residual, state)

  def decompress(messages, layers, state):
    del state
    count = sum(x.size for x in layers)
    total = linear.read_sum(messages, count)
    full = jnp.full(messages.shape[0], count, jnp.uint32)
    return Unpacked(arrays.cut(total, layers), jnp.ones_like(full), full)

  def size(layers):
    count = sum(x.size for x in layers)
    words = linear.FLAG_WORDS + count
    return Size(words, words, words, count)

  return Compressor(lambda layers: (), compress, decompress, size, linear.settle_by(decompress),
                    linear=linear.parts(lambda layers: sum(x.size for x in layers)), exact=True)
