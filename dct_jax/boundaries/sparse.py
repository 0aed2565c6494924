"""DCT-MP: only the largest activations of each row cross a cut (Algorithm 2 of the DCT paper)."""

from __future__ import annotations

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from dct_jax import kernels
from dct_jax.compressors import fraction
from dct_jax.wire import values

MASKS = ('one', 'apart')
VALUE_BYTES = {'float32': 4, 'float16': 2, 'int8': 1}
SCALE_BYTES = 4


def sparse_boundary(x: jax.Array, sparsity: float, *, value_codec: str = 'float32',
                    masks: str = 'one') -> jax.Array:
  """Keeps the largest entries of each row (the last axis); their gradients alone come back.

  With tau the entry at floor(d * sparsity) of a row's sorted magnitudes, entries of at least tau pass. Zeros
  are no payload, even where tau is 0, as it often is after a ReLU. NaN and infinity always pass, and count among
  the largest entries of their row, so that a model that diverges is seen to do so on the other side. They arrive
  as what they are, but for int8, where all of a row that has a NaN arrives as NaN.

  Args:
    x: float32, bfloat16 or float16 [..., d]; the result and the gradient have its type.
    sparsity: share of a row that stays behind, in [0, 1]; 0 lets everything pass as it is.
    value_codec: how values cross, both ways: 'float32', 'float16' (gradients with a scale for all of them) or
      'int8' (with one scale a row).
    masks: 'one' for both passes, as in the paper; 'apart' lets the gradient choose its own largest entries, the
      naive way that the paper warns of.

  Returns:
    `x` as it is on the other side.

  Examples:
    >>> import jax, jax.numpy as jnp
    >>> x = jnp.array([[1.0, -4.0, 0.0, 3.0]])
    >>> sparse_boundary(x, 0.75).tolist()               # tau is the third of four: 3
    [[0.0, -4.0, 0.0, 3.0]]
    >>> jax.grad(lambda x: jnp.sum(sparse_boundary(x, 0.75) * 7))(x).tolist()
    [[0.0, 7.0, 0.0, 7.0]]

  References:
    Gupta et al., Training Recommender Systems at Scale, KDD 2021.
  """
  check(sparsity, value_codec, masks)
  return x if sparsity == 0 else _boundary(x, row_threshold(x, sparsity), sparsity, value_codec, masks)


def check(sparsity: float, value_codec: str, masks: str) -> None:
  """Raises ValueError for arguments that cannot work."""
  fraction.check('sparsity', sparsity, zero=True)
  if callable(sparsity):
    raise ValueError('the sparsity of a boundary is a number, got a schedule')
  if value_codec not in VALUE_BYTES:
    raise ValueError(f'value_codec must be one of {tuple(VALUE_BYTES)}, got {value_codec=}')
  if masks not in MASKS:
    raise ValueError(f'masks must be one of {MASKS}, got {masks=}')


def row_threshold(x: jax.Array, sparsity: float) -> jax.Array:
  """tau of each row, float32[...]: the entry at floor(d * sparsity) of its sorted magnitudes, from 1.

  NaN is as large as infinity.
  """
  width = x.shape[-1]
  rows = x.size // width
  rank = max(fraction.floor_once(width, sparsity), 1)
  ranks = jnp.full(rows, rank, jnp.uint32)
  ordered = jnp.where(jnp.isnan(x), jnp.inf, jax.lax.stop_gradient(x)).reshape(-1)
  tau, _ = kernels.threshold((ordered,), None, ranks, segment=width)
  return tau.reshape(x.shape[:-1])


def row_mask(x: jax.Array, tau: jax.Array) -> jax.Array:
  """Which entries cross, for a threshold of each row; NaN, which is not below it, does."""
  return ~(jnp.abs(x) < tau[..., None]) & (x != 0)


def crossing_bytes(mask: jax.Array, value_codec: str = 'float32') -> tuple[jax.Array, jax.Array]:
  """Bytes of an activation on its way forward and of its gradient on its way back, float32.

  Forward goes a bitmap of the mask with the values; the gradient's values alone come back, in the same places.
  """
  width = mask.shape[-1]
  rows = mask.size // width
  crossing = VALUE_BYTES[value_codec] * jnp.sum(mask, dtype=jnp.float32)
  crossing += rows * SCALE_BYTES * (value_codec == 'int8')
  return crossing + rows * -(-width // 8), crossing + SCALE_BYTES * (value_codec == 'float16')


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _boundary(x, tau, sparsity, value_codec, masks):
  return _forward(x, tau, sparsity, value_codec, masks)[0]


def _forward(x, tau, sparsity, value_codec, masks):
  mask = row_mask(x, tau)
  kept = jnp.where(mask, x, 0).astype(jnp.float32)
  return widen(*narrow_activation(kept, value_codec)).astype(x.dtype), (mask, tau)


def _backward(sparsity, value_codec, masks, kept, gradient):
  mask, tau = kept
  if masks == 'apart':
    mask = row_mask(gradient, row_threshold(gradient, sparsity))
  kept = jnp.where(mask, gradient, 0).astype(jnp.float32)
  return widen(*narrow_gradient(kept, value_codec)).astype(gradient.dtype), jnp.zeros_like(tau)


_boundary.defvjp(_forward, _backward)


def narrow_activation(x: jax.Array, value_codec: str) -> tuple[jax.Array, jax.Array | None]:
  """What crosses of an activation: values in their codec's type, and what to multiply them with."""
  if value_codec == 'int8':
    return values.int8_rows(x)
  return values.narrow(x, value_codec, keep_infinity=True), None


def narrow_gradient(x: jax.Array, value_codec: str) -> tuple[jax.Array, jax.Array | None]:
  """The same of a gradient, which may be too small for a float16: the whole of it has a scale."""
  return values.scaled(x, value_codec) if value_codec == 'float16' else narrow_activation(x, value_codec)


def widen(x: jax.Array, scale: jax.Array | None) -> jax.Array:
  """What the other side reads."""
  wide = x.astype(jnp.float32)
  return wide if scale is None else wide * scale


class SparseBoundary(nn.Module):
  """`sparse_boundary` as a module that tells its traffic.

  With `mutable=['traffic']` in `apply`, it leaves `forward_bytes`, `backward_bytes` and `dense_bytes` (of one
  pass), and `threshold`, the mean of tau over rows.

  Attributes:
    sparsity: as of `sparse_boundary`; 0 lets everything pass, and measures it.
    value_codec: likewise.
    masks: likewise.
    watch: measure thresholds for this sparsity where nothing is left out (the solid lines of Figure 5).
  """

  sparsity: float
  value_codec: str = 'float32'
  masks: str = 'one'
  watch: float = 0.0

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    dense = jnp.float32(4 * x.size)
    report = {'forward_bytes': dense, 'backward_bytes': dense, 'dense_bytes': dense}
    out = x
    check(self.sparsity, self.value_codec, self.masks)
    if self.sparsity or self.watch:
      tau = row_threshold(x, self.sparsity or self.watch)
      report['threshold'] = jnp.mean(tau)
    if self.sparsity:
      out = _boundary(x, tau, self.sparsity, self.value_codec, self.masks)
      report['forward_bytes'], report['backward_bytes'] = crossing_bytes(row_mask(x, tau), self.value_codec)
    for name, value in report.items():
      self.sow('traffic', name, value, reduce_fn=lambda _, new: new, init_fn=lambda: jnp.float32(0))
    return out
