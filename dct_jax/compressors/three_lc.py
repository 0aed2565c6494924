"""3LC: every entry as -1, 0 or 1 of a layer's scale, in well below a bit."""

from __future__ import annotations

from dct_jax import kernels
from dct_jax.arrays import ceil_div
from dct_jax.compressors import quantizer, stream
from dct_jax.contract import Compressor
from dct_jax.wire.size import three_lc_bytes


def three_lc(
    sparsity_multiplier: float = 1.0,
    *,
    zero_runs: bool = True,
    dense_below: int = stream.DENSE_BELOW,
) -> Compressor:
  r"""3-value quantization with sparsity multiplication, base-3^5 and zero-run encoding.

  With :math:`m = s \max |x|` over a layer, an entry becomes :math:`m \cdot \mathrm{round}(x / m)`, which is one
  of :math:`-m, 0, m`; five of these fit a byte, and up to 14 bytes of nothing but zeros become one. No error is
  larger than :math:`m/2`; put it into `error_feedback`, so that errors are made up for in later steps. A larger
  :math:`s` has more zeros, and shorter messages.

  What does not fit a step's room (bytes at the end of every layer, as large a share of each) stays in the residual;
  1.6 bits an entry and two words a layer are always enough. A layer whose largest magnitude is below 1e-30 counts as
  zero.

  Args:
    sparsity_multiplier: :math:`s`, in [1, 2).
    zero_runs: False leaves out zero-run encoding: all messages then have 1.6 bits an entry.
    dense_below: layers with fewer entries travel whole, as float32.

  Returns:
    A `Compressor`.

  Examples:
    >>> import jax.numpy as jnp, dct_jax
    >>> c, layers = dct_jax.three_lc(dense_below=0), (jnp.array([0.3, 0.1, -0.4, 0.0, 0.2]),)
    >>> packed = c.compress(layers, None, c.init(layers), dct_jax.whole_room(c, layers))
    >>> c.decompress(packed.message[None], layers, None).layers[0].round(1).tolist()
    [0.4000000059604645, 0.0, -0.4000000059604645, 0.0, 0.0]

  References:
    Lim, Andersen and Kaminsky, 3LC: Lightweight and Effective Traffic Compression for Distributed Machine
    Learning, SysML 2019.
  """
  if not 1 <= sparsity_multiplier < 2:
    raise ValueError(f'sparsity_multiplier must be at least 1 and below 2, got {sparsity_multiplier=}')

  def encode(layers, residual, dense, state, room, silent):
    message, left = kernels.three_lc_encode(
        layers, residual, dense, live=room.live, silent=silent, budget=room.words, capacity=room.capacity,
        multiplier=sparsity_multiplier, zero_runs=zero_runs)
    return message, left, state

  def words(sizes):
    fixed, body = 2 * len(sizes), ceil_div(sum(three_lc_bytes(n) for n in sizes), 4)
    return fixed, fixed + (body // 4 if zero_runs else body), fixed + body

  return quantizer.quantizer(lambda: (), encode, kernels.three_lc_sum, words, dense_below)
