"""A cut between two stages of a model: what of an activation crosses, and how, and its gradient back."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dct_jax.boundaries import sparse
from dct_jax.wire.activations import Parcel, unpack


class Cut(NamedTuple):
  """What `sparse_boundary` does inside a device, in two halves with a network between them.

  `leave` and `come_back` are traced where something is sent, `arrive` where it is received; what is between
  goes through `wire.activations.pack` and `read`.

  Attributes:
    sparsity: share of each row that stays behind; 0 lets everything pass as it is.
    value_codec: 'float32', 'float16' or 'int8'; of what is not dense.
  """

  sparsity: float = 0.0
  value_codec: str = 'float32'

  def check(self) -> Cut:
    """Itself, or a ValueError."""
    sparse.check(self.sparsity, self.value_codec, 'one')
    return self

  def leave(self, x: jax.Array) -> Parcel:
    """An activation, ready to cross."""
    if not self.sparsity:
      return Parcel(x, None, None)
    mask = sparse.row_mask(x, sparse.row_threshold(x, self.sparsity))
    return Parcel(*sparse.narrow_activation(jnp.where(mask, x, 0), self.value_codec), mask)

  def come_back(self, gradient: jax.Array, mask: jax.Array | None) -> Parcel:
    """The gradient of an activation that crossed where `mask` says."""
    if mask is None:
      return Parcel(gradient, None, None)
    return Parcel(*sparse.narrow_gradient(jnp.where(mask, gradient, 0), self.value_codec), mask)

  @staticmethod
  def arrive(parcel: Parcel) -> jax.Array:
    """float32 of what has crossed, zeros elsewhere (but for an int8 row with a NaN, which is NaN all over)."""
    return sparse.widen(parcel.values, parcel.scale)

  def read(self, data: bytes, mask: np.ndarray | None = None) -> tuple[Parcel, int]:
    """The parcel at the beginning of some bytes, and its length; of a gradient if there is a mask."""
    if not self.sparsity:
      return unpack(data, 'float32')
    scales = {'int8': 'rows', 'float16': 'none' if mask is None else 'one'}.get(self.value_codec, 'none')
    return unpack(data, self.value_codec, scales=scales, masked=mask is None, mask=mask)
