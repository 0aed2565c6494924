"""A multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Sequence

import flax.linen as nn
import jax


class Mlp(nn.Module):
  """Dense layers with ReLU between them.

  Attributes:
    hidden: widths of the hidden layers.
    outputs: width of the last layer, which has no ReLU.

  Examples:
    >>> import jax
    >>> model = Mlp(hidden=(4096, 4096), outputs=10)    # SparCML's for MNIST
    >>> shapes = jax.eval_shape(model.init, jax.random.PRNGKey(0), jax.numpy.zeros((1, 784)))
    >>> sum(x.size for x in jax.tree.leaves(shapes))
    20037642
  """

  hidden: Sequence[int]
  outputs: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    for width in self.hidden:
      x = nn.relu(nn.Dense(width)(x))
    return nn.Dense(self.outputs)(x)
