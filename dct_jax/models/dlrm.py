"""DLRM: a recommender of two MLPs, embedding tables, and dot products between what they say."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import chex
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
  def __call__(self, x: jax.Array, rows: jax.Array | None, section: DlrmSection | None = None) -> jax.Array:
    """Logits of clicks; or what a section of the model makes of what comes before it.

    Args:
      x: float32[batch, features], the dense features; without features there is no bottom MLP. For a section,
        what the one before it gives.
      rows: float32[batch, fields, width], from the tables; unused by sections without the interaction.
      section: from `sections`; all of the model unless given.
    """
    section = section or sections('', self.bottom if x.shape[-1] else (), self.top)[0]
    self._check(section, rows)
    cuts = dict(self.boundaries or {})
    for name, width in section.layers:
      if name == 'top1':
        x = _mix(x, rows)
      x = nn.Dense(width, kernel_init=_kernel, bias_init=_bias, name=name)(x)
      if name != f'top{len(self.top)}':
        x = nn.relu(x)
      x = cuts.get(name, lambda x: x)(x)
    return x[:, 0] if section.is_last else x

  def _check(self, section, rows):
    names = [name for name, _ in section.layers]
    if 'top1' in names:
      chex.assert_rank(rows, 3, exception_type=ValueError, custom_message='rows are float[batch, fields, width]')
    if {f'bottom{len(self.bottom)}', 'top1'} <= set(names) and self.bottom[-1] != rows.shape[-1]:
      raise ValueError(f'the bottom MLP ends with the width of the rows, got {self.bottom=} and {rows.shape=}')
    unknown = sorted(set(self.boundaries or {}) - set(names[:-1] if section.is_last else names))
    if unknown:
      raise ValueError(f'boundaries are at {tuple(names)} but not the end, got {unknown=}')


class DlrmSection(NamedTuple):
  """Layers of a model between two cuts."""

  layers: tuple[tuple[str, int], ...]  # names and widths
  is_last: bool

  @property
  def has_rows(self) -> bool:
    """Whether the interaction, and so the tables, are here."""
    return 'top1' in dict(self.layers)

  def params(self, whole: Mapping) -> dict:
    """This section's part of a model's variables."""
    return {'params': {name: whole['params'][name] for name, _ in self.layers}}


def sections(splits: str, bottom: Sequence[int] = Dlrm.bottom, top: Sequence[int] = Dlrm.top) -> list[DlrmSection]:
  """The model in pieces.

  Args:
    splits: names of places to cut it at, with commas and in order, as 'bottom2,top2'; nothing for one piece.
    bottom: as of `Dlrm`; () for data without dense features.
    top: as of `Dlrm`.

  Raises:
    ValueError: for a place that does not exist, or places out of order.
  """
  layers = [(f'bottom{i}', w) for i, w in enumerate(bottom, 1)] + [(f'top{i}', w) for i, w in enumerate(top, 1)]
  places = split_names(bottom, top)
  names = [name for name in splits.split(',') if name]
  if [p for p in places if p in names] != names:
    raise ValueError(f'a model is cut at some of {places}, in this order, got {splits=}')
  ends = [places.index(name) + 1 for name in names]
  edges = [0, *ends, len(layers)]
  return [DlrmSection(tuple(layers[a:b]), b == len(layers)) for a, b in itertools.pairwise(edges)]


def split_names(bottom: Sequence[int] = Dlrm.bottom, top: Sequence[int] = Dlrm.top) -> tuple[str, ...]:
  """The places where the model can be cut: after any layer but the last."""
  return (*(f'bottom{i}' for i in range(1, len(bottom) + 1)), *(f'top{i}' for i in range(1, len(top))))


def _mix(x, rows):
  """The input of the top MLP."""
  if not x.shape[-1]:
    return interactions(rows)
  return jnp.concatenate([x, interactions(jnp.concatenate([x[:, None], rows], axis=1))], axis=1)


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
