"""A layer of an LSTM, over whole sequences or a time step further, made to be quick on processors with few cores."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

Carry = tuple[jax.Array, jax.Array]  # state and cell, float32[batch, width] each
SHUT = -1e9  # before a gate's function, what makes it zero whatever the state adds


class LstmLayer(nn.Module):
  """One layer, for sequences float32[time, batch, inputs] -> float32[time, batch, width].

  The four gates are one product: columns of both kernels are those of the input gate, the forget gate, the candidate
  and the output gate. The forget gate's bias begins at 1, so that states last from the start.

  Attributes:
    width: of the state.
    reverse: whether time goes from the last step to the first.
    gain: factor of the first kernels. At 1 a layer halves what enters it twice at first, by its input and its
      output gate, so that little of it is left behind several layers.

  Examples:
    >>> import jax, jax.numpy as jnp
    >>> layer, x = LstmLayer(3), jnp.ones((2, 5, 7))
    >>> params = layer.init(jax.random.key(0), x)
    >>> states = layer.apply(params, x)

    The same, a time step after the other:

    >>> carry = (jnp.zeros((5, 3)),) * 2
    >>> carry = layer.apply(params, x[0], carry, method='advance')
    >>> state, _ = layer.apply(params, x[1], carry, method='advance')
    >>> bool(jnp.allclose(state, states[1]))
    True
  """

  width: int
  reverse: bool = False
  gain: float = 1.0

  def __call__(self, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """States of all time steps; the one before is zero.

    Args:
      x: float32[time, batch, inputs].
      mask: bool[time, batch]; behind a step that is False, the state is zero again.
    """
    inputs, kernel, bias = self._parameters(x.shape[-1])
    entering = x @ inputs + bias
    if mask is not None:
      entering = jnp.where(mask[..., None], entering, SHUT)
    if self.reverse:
      return recurrence(entering[::-1], kernel)[::-1]
    return recurrence(entering, kernel)

  def advance(self, x: jax.Array, carry: Carry) -> Carry:
    """State and cell behind one more time step, of its inputs float32[batch, inputs]."""
    inputs, kernel, bias = self._parameters(x.shape[-1])
    return _step(x @ inputs + bias, carry, kernel)[:2]

  @nn.compact
  def _parameters(self, size):
    draw = nn.initializers.variance_scaling(self.gain**2, 'fan_in', 'truncated_normal')
    return (self.param('inputs', draw, (size, 4 * self.width)),
            self.param('recurrent', draw, (self.width, 4 * self.width)), self.param('bias', _bias, (4 * self.width,)))


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
    hidden, cell, gates = _step(entering, carry, kernel)
    return (hidden, cell), (hidden, cell, gates)

  nothing = jnp.zeros_like(inputs[0, :, :kernel.shape[0]])
  _, (hidden, cells, gates) = lax.scan(step, (nothing, nothing), inputs)
  return hidden, (hidden, cells, gates, kernel)


def _step(entering, carry, kernel):
  """State, cell and gates behind a time step."""
  i, f, g, o = jnp.split(entering + carry[0] @ kernel, 4, axis=-1)
  i, f, g, o = gates = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
  cell = f * carry[1] + i * g
  return o * jnp.tanh(cell), cell, gates


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
