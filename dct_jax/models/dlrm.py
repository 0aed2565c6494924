"""DLRM: a recommender of two MLPs, embedding tables, and dot products between what they say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

Boundary = Callable[[jax.Array], jax.Array]


class Dlrm(nn.Module):
  """The model without its tables: rows are looked up before, so that their gradients never become dense.

  Attributes:
    bottom: widths of the layers for dense features, all with ReLU; the last is that of the rows.
    top: widths of the layers behind the interaction; the last is 1, without ReLU.
    boundaries: where the model is cut: 'bottom1' after the first layer of the bottom MLP (and its ReLU),
      'top2' after the second of the top MLP, ... -> function or module.

  Examples:
    >>> import jax, jax.numpy as jnp
    >>> model = Dlrm()                                                     # the DCT paper's, for Criteo
    >>> dense, rows = jnp.zeros((2, 13)), jnp.zeros((2, 26, 16))
    >>> params = model.init(jax.random.PRNGKey(0), dense, rows)
    >>> sum(x.size for x in jax.tree.leaves(params))
    508753
    >>> model.apply(params, dense, rows).shape
    (2,)

  References:
    Naumov et al., Deep Learning Recommendation Model for Personalization and Recommendation Systems, 2019.
  """

  bottom: Sequence[int] = (512, 256, 64, 16)
  top: Sequence[int] = (512, 256, 128, 1)
  boundaries: Mapping[str, Boundary] | None = None

  @nn.compact
  def __call__(self, dense, rows):
    """Logits of clicks.

    Args:
      dense: float32[batch, features]; without features there is no bottom MLP.
      rows: float32[batch, fields, width], from the tables.
    """
    self._check(dense, rows)
    if dense.shape[-1]:
      x = self._layers('bottom', dense, self.bottom, last_relu=True)
      mixed = jnp.concatenate([x, interactions(jnp.concatenate([x[:, None], rows], axis=1))], axis=1)
    else:
      mixed = interactions(rows)
    return self._layers('top', mixed, self.top, last_relu=False)[:, 0]

  def _layers(self, name, x, widths, last_relu):
    cuts = dict(self.boundaries or {})
    for i, width in enumerate(widths, 1):
      x = nn.Dense(width, kernel_init=_kernel, bias_init=_bias, name=f'{name}{i}')(x)
      if i < len(widths) or last_relu:
        x = nn.relu(x)
      x = cuts.get(f'{name}{i}', lambda x: x)(x)
    return x

  def _check(self, dense, rows):
    if dense.shape[-1] and self.bottom[-1] != rows.shape[-1]:
      raise ValueError(f'the bottom MLP ends with the width of the rows, got {self.bottom=} and {rows.shape=}')
    places = split_names(self.bottom if dense.shape[-1] else (), self.top)
    unknown = sorted(set(self.boundaries or {}) - set(places))
    if unknown:
      raise ValueError(f'boundaries are at {places}, got {unknown=}')


def split_names(bottom: Sequence[int] = Dlrm.bottom, top: Sequence[int] = Dlrm.top) -> tuple[str, ...]:
  """The places where the model can be cut: after any layer but the last."""
  return (*(f'bottom{i}' for i in range(1, len(bottom) + 1)), *(f'top{i}' for i in range(1, len(top))))


@jax.custom_vjp
def interactions(vectors: jax.Array) -> jax.Array:
  """Dot products of all pairs of vectors, float32[batch, n (n - 1) / 2]: (1, 0), (2, 0), (2, 1), (3, 0), ..."""
  products = jnp.einsum('bnd,bmd->bnm', vectors, vectors)
  first, second = np.tril_indices(vectors.shape[1], -1)
  return products[:, first, second]


def _interactions_backward(vectors, grads):
  """Of a symmetric matrix: one gather and one product, where JAX would scatter and take two."""
  n = vectors.shape[1]
  pair = np.full((n, n), grads.shape[1])  # where a pair's gradient is; the diagonal has none
  pair[np.tril_indices(n, -1)] = np.arange(grads.shape[1])
  pair = np.minimum(pair, pair.T)
  symmetric = jnp.pad(grads, ((0, 0), (0, 1)))[:, pair]
  return (jnp.einsum('bnm,bmd->bnd', symmetric, vectors),)


interactions.defvjp(lambda vectors: (interactions(vectors), vectors), _interactions_backward)


def _kernel(key, shape, dtype=jnp.float32):
  """As the public DLRM begins: normal, with variance 2 / (inputs + outputs)."""
  return jax.random.normal(key, shape, dtype) * (2 / sum(shape)) ** 0.5


def _bias(key, shape, dtype=jnp.float32):
  return jax.random.normal(key, shape, dtype) * (1 / shape[0]) ** 0.5
