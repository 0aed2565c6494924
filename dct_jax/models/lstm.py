"""A stack of LSTM layers for language models, made to be quick on processors with few cores."""

from __future__ import annotations

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from dct_jax.models.dropout import Dropout


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


class LstmLayer(nn.Module):
  """One layer, for sequences float32[time, batch, inputs] -> float32[time, batch, width].

  The four gates are one product: columns of both kernels are those of the input gate, the forget gate, the candidate
  and the output gate. The forget gate's bias begins at 1, so that states last from the start.

  Attributes:
    width: of the state.
  """

  width: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    inputs = self.param('inputs', nn.initializers.lecun_normal(), (x.shape[-1], 4 * self.width))
    recurrent = self.param('recurrent', nn.initializers.lecun_normal(), (self.width, 4 * self.width))
    bias = self.param('bias', _bias, (4 * self.width,))
    return recurrence(x @ inputs + bias, recurrent)


def _bias(key, shape, dtype=jnp.float32):
  return jnp.zeros(shape, dtype).at[shape[0] // 4:shape[0] // 2].set(1)


@jax.custom_vjp
def recurrence(inputs: jax.Array, kernel: jax.Array) -> jax.Array:
  """What an LSTM makes of the products of its inputs, which do not depend on the state and are known before.

  The gradient of the kernel is one product over all time steps, where that of a scan would be added up step by step.

  Args:
    inputs: float32[time, batch, 4 * width], before the gates' functions, without what comes from the state.
    kernel: float32[width, 4 * width], that the state before is multiplied with.

  Returns:
    float32[time, batch, width], states from the first to the last step; the one before is zero.
  """
  return _forward(inputs, kernel)[0]


def _forward(inputs, kernel):
  def step(carry, entering):
    hidden, cell = carry
    i, f, g, o = gates = _gates(entering + hidden @ kernel)
    cell = f * cell + i * g
    hidden = o * jnp.tanh(cell)
    return (hidden, cell), (hidden, cell, gates)

  nothing = jnp.zeros_like(inputs[0, :, :kernel.shape[0]])
  _, (hidden, cells, gates) = lax.scan(step, (nothing, nothing), inputs)
  return hidden, (hidden, cells, gates, kernel)


def _gates(x):
  i, f, g, o = jnp.split(x, 4, axis=-1)
  return jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)


def _backward(saved, grads):
  hidden, cells, gates, kernel = saved
  before = lambda x: jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]])

  def step(carry, at):
    from_next, d_cell = carry
    grad, cell, cell_before, (i, f, g, o) = at
    squashed = jnp.tanh(cell)
    d_hidden = grad + from_next
    d_cell = d_cell + d_hidden * o * (1 - squashed**2)
    d_inputs = jnp.concatenate([d_cell * g * i * (1 - i), d_cell * cell_before * f * (1 - f),
                                d_cell * i * (1 - g**2), d_hidden * squashed * o * (1 - o)], axis=-1)
    return (d_inputs @ kernel.T, d_cell * f), d_inputs

  nothing = jnp.zeros_like(grads[0])
  _, d_inputs = lax.scan(step, (nothing, nothing), (grads, cells, before(cells), gates), reverse=True)
  return d_inputs, jnp.einsum('tbh,tbg->hg', before(hidden), d_inputs)


recurrence.defvjp(_forward, _backward)
