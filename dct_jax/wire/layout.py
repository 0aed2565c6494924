"""Which layers a stream selects from and which travel whole. Static, derived from shapes alone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax

from dct_jax.wire import values

MAX_UNIVERSE = 2**30


@dataclasses.dataclass(frozen=True)
class Layout:
  """The places of a gradient's layers in a message.

  Attributes:
    sparse: positions (in the tuple of layers) of those that entries are selected from.
    dense: positions of those that travel whole, because an index would cost more than it saves.
    sizes: entries of every layer.
    unit: values an index.
  """

  sparse: tuple[int, ...]
  dense: tuple[int, ...]
  sizes: tuple[int, ...]
  unit: int

  @property
  def universe(self) -> int:
    """How many indices there are to choose from."""
    return sum(-(-self.sizes[i] // self.unit) for i in self.sparse)

  @property
  def num_dense(self) -> int:
    return sum(self.sizes[i] for i in self.dense)

  def dense_words(self, value_codec: str) -> int:
    return values.num_words(self.num_dense, value_codec)

  def split(self, layers: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The layers to select from, and those that travel whole."""
    return tuple(layers[i] for i in self.sparse), tuple(layers[i] for i in self.dense)

  def merge(self, sparse: Sequence[Any] | None, dense: Sequence[Any]) -> tuple[Any, ...]:
    """The inverse of `split`; None stands for no layers."""
    out = dict(zip(self.sparse + self.dense, (*(sparse or ()), *dense), strict=True))
    return tuple(out[i] for i in range(len(out)))


def layout_of(layers: Sequence[Any], *, dense_below: int = 0, unit: int = 1) -> Layout:
  """Layers with fewer than `dense_below` entries travel whole.

  Raises:
    ValueError: if there are more entries than an index can count.
  """
  if not isinstance(layers, (tuple, list)):
    raise ValueError('a compressor takes a tuple of arrays; for optax make a transformation of it, '
                     'dct_jax.compressed_mean(dct_jax.error_feedback(...), axis_name=...), got '
                     f'{type(layers)=}')
  sizes = tuple(math.prod(jax.numpy.shape(x)) for x in layers)
  sparse = tuple(i for i, n in enumerate(sizes) if n >= max(dense_below, 1))
  dense = tuple(i for i in range(len(sizes)) if i not in sparse)
  layout = Layout(sparse, dense, sizes, unit)
  if layout.universe > MAX_UNIVERSE:
    raise ValueError(
        f'a message addresses at most {MAX_UNIVERSE} entries, got {layout.universe}; split the '
        'parameters into groups with optax.multi_transform, each with its own compressor')
  return layout
