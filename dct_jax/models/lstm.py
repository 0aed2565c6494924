"""A stack of LSTM layers for language models, made to be quick on processors with few cores."""

from __future__ import annotations

import chex
import flax.linen as nn
import jax

from dct_jax.models.dropout import Dropout
from dct_jax.models.lstm_layer import LstmLayer


class Lstm(nn.Module):
  """The model between its tables: rows of words are looked up before, and compared with after.

  Every sequence begins from a zero state. Dropout is on what enters the first layer and on what leaves every layer,
  not between time steps.

  Attributes:
    width: of rows, and of every layer's state.
    layers: how many.
    dropout: share of entries that are dropped.

  Examples:
    >>> import jax, jax.numpy as jnp
    >>> model = Lstm(width=8, layers=2)
    >>> params = model.init(jax.random.key(0), jnp.zeros((1, 5, 8)))
    >>> model.apply(params, jnp.zeros((3, 7, 8))).shape
    (3, 7, 8)

  References:
    Zaremba et al., Recurrent Neural Network Regularization, 2014.
  """

  width: int
  layers: int = 1
  dropout: float = 0.0

  @nn.compact
  def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
    """Hidden states of the last layer, float32[batch, time, width].

    Args:
      x: float32[batch, time, width], rows of words.
      train: whether to drop.
    """
    if self.layers < 1 or self.width < 1 or not 0 <= self.dropout < 1:
      raise ValueError('there must be layers, and dropout is a share below 1, got '
                       f'{self.layers=}, {self.width=}, {self.dropout=}')
    chex.assert_shape(x, (None, None, self.width), exception_type=ValueError,
                      custom_message='rows of words are float[batch, time, width]')
    x = Dropout(self.dropout)(x.swapaxes(0, 1), train)  # time first: a step of the recurrence reads what is together
    for i in range(1, self.layers + 1):
      x = Dropout(self.dropout)(LstmLayer(self.width, name=f'layer{i}')(x), train)
    return x.swapaxes(0, 1)
