"""PowerSGD: every matrix as the product of two thin ones, found by one step of the power method on the sum."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dct_jax import arrays, state
from dct_jax.compressors import linear
from dct_jax.contract import ADD_F32, TOGETHER, Compressor, Layers, Part, Round, Rounds, Size
from dct_jax.kernels import choices
from dct_jax.kernels.choices import Purpose
from dct_jax.wire.layout import Layout

DEPENDENT = 1e-5  # of a column's length: what is left of it beside others is rounding


@state.own()  # all of it is equal on all workers
class PowerSgdState(NamedTuple):
  """State of `power_sgd`."""

  q: tuple[jax.Array, ...]  # float32[columns, rank] for each matrix: the last mean's right factor, near 1


@state.own(pending=state.NEVER, live=state.NEVER)
class PowerSgdCarry(NamedTuple):
  """What is known between the rounds of a step."""

  pending: Layers  # layers + residual
  live: jax.Array  # uint32[1]
  q: tuple[jax.Array, ...]  # of the last step
  p: tuple[jax.Array, ...]  # float32[rows, rank]: orthonormal columns; () before the first round
  dense: Layers  # sums of the layers that travel whole; () before the first round


def power_sgd(rank: int = 2, *, seed: int = 0) -> Compressor:
  r"""Sends every layer of two and more dimensions as two factors of rank `rank`, in two sums.

  With :math:`M_w` a worker's layer plus residual, seen as a matrix whose columns are the layer's last dimension,
  and :math:`Q` the right factor of the last step's mean (at first random, the same on all workers):

  .. math:: P = \mathrm{orthonormal}\Big(\sum_w M_w Q\Big), \qquad Q' = \frac1n \sum_w M_w^\top P,

  and the mean is read as :math:`P Q'^\top`. What it lacks stays in each worker's residual, :math:`M_w - P Q'^\top`:
  residuals make up for it together, not one by one. Layers for which two factors would not be smaller, and those
  of one dimension, travel whole with the first round.

  Use it with the `psum` collective. A layer whose sum is zero keeps its right factor: from zero there would be no
  way back.

  Args:
    rank: columns of the factors.
    seed: of the first right factors, which differ between groups of layers.

  Returns:
    A `Compressor` for `psum`. Wrap it with `error_feedback`.

  Examples:
    >>> import dct_jax, jax.numpy as jnp
    >>> tx = dct_jax.compressed_mean(dct_jax.error_feedback(dct_jax.power_sgd(1)), dct_jax.psum())
    >>> grads = jnp.outer(jnp.arange(4.0), jnp.arange(5.0))     # a matrix of rank 1
    >>> updates, _ = tx.update(grads, tx.init(grads))
    >>> bool(jnp.allclose(updates, grads, atol=1e-4))
    True

  References:
    Vogels, Karimireddy and Jaggi, PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization,
    NeurIPS 2019, Algorithms 1 and 2.
  """
  if rank < 1 or int(rank) != rank:
    raise ValueError(f'rank must be a whole number of at least 1, got {rank=}')
  return _of_group(int(rank), seed, 0)


def _of_group(rank: int, seed: int, group: int) -> Compressor:
  """The compressor of one of several groups of layers."""

  def split(layers):
    return _layout(layers, rank).split(layers)

  def init(layers):
    key = choices.key_of(Purpose.START, seed, group)
    shape = lambda x: (x.shape[-1], rank)
    return PowerSgdState(tuple(
        jax.random.normal(jax.random.fold_in(key, i), shape(x)) for i, x in enumerate(split(layers)[0])))

  def begin(layers, residual, state, room):
    live = jnp.asarray(room.live, jnp.uint32).reshape(1)
    finite = tuple(jnp.where(live[0] != 0, x, 0) for x in layers)
    flat = arrays.add_residual(finite, residual)
    pending = tuple(x.reshape(like.shape) for x, like in zip(flat, layers, strict=True))
    return PowerSgdCarry(pending, live, state.q, (), ())

  def left_factors(carry, total, workers):
    del total, workers
    matrices, dense = split(carry.pending)
    p = [_product(_matrix(m), q) for m, q in zip(matrices, carry.q, strict=True)]
    return arrays.words_of(_flat((*p, *dense))), carry

  def right_factors(carry, total, workers):
    del workers
    matrices, dense = split(carry.pending)
    shapes = [jax.ShapeDtypeStruct((_matrix(m).shape[0], rank), jnp.float32) for m in matrices]
    sums = arrays.cut(arrays.floats_of(total), (*shapes, *dense))
    p = tuple(_orthonormal(x) for x in sums[:len(shapes)])
    carry = carry._replace(p=p, dense=sums[len(shapes):])
    q = _flat([_product(_matrix(m).T, x) for m, x in zip(matrices, p, strict=True)])
    # A worker without a gradient has its residual to send; a flag tells the others.
    return jnp.concatenate([1 - carry.live, arrays.words_of(q)]), carry

  def finish(carry, total, workers, bad):
    layout = _layout(carry.pending, rank)
    matrices, dense = layout.split(carry.pending)
    q = arrays.cut(arrays.floats_of(total[linear.FLAG_WORDS:]), carry.q)
    sums = [_product(p, x.T).reshape(m.shape) for p, x, m in zip(carry.p, q, matrices, strict=True)]
    taken = layout.merge([s / workers for s in sums], dense)  # what travels whole leaves nothing
    left = tuple(jnp.where(bad > 0, x, x - t) for x, t in zip(carry.pending, taken, strict=True))
    # Only directions count of a right factor. With a length of its own it would make the next product a square.
    stays = lambda new: (bad > 0) | ~(new != 0).any()
    kept = tuple(jnp.where(stays(new), old, _near_one(new)) for old, new in zip(carry.q, q, strict=True))
    return layout.merge(sums, carry.dense), left, PowerSgdState(kept)

  def first_words(layers):
    matrices, dense = split(layers)
    return sum(rank * (x.size // x.shape[-1]) for x in matrices) + sum(x.size for x in dense)

  def second_words(layers):
    return sum(rank * x.shape[-1] for x in split(layers)[0])

  def size(layers):
    words = linear.FLAG_WORDS + first_words(layers) + second_words(layers)
    return Size(words, words, words, sum(x.size for x in layers))

  first = lambda layers, workers: (Part(ADD_F32, first_words(layers)),)
  each = (Round(first, left_factors), Round(linear.parts(second_words), right_factors))
  compressor = linear.of_rounds(init, size, Rounds(begin, each, finish), TOGETHER)
  return compressor._replace(of_group=lambda group: _of_group(rank, seed, group))


def _layout(layers, rank) -> Layout:
  """Which layers are sent as factors: those for which these are smaller."""
  thin = lambda x: x.ndim > 1 and x.size and rank * (x.size // x.shape[-1] + x.shape[-1]) < x.size
  factored = tuple(i for i, x in enumerate(layers) if thin(x))
  others = tuple(i for i in range(len(layers)) if i not in factored)
  return Layout(factored, others, tuple(x.size for x in layers), 1)


def _matrix(x):
  return x.reshape(-1, x.shape[-1])


def _product(a, b):
  return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def _flat(parts):
  return jnp.concatenate([jnp.zeros(0), *(x.reshape(-1) for x in parts)])


def _orthonormal(x):
  """Columns of length one, each at right angles to those before it, by Gram and Schmidt, twice.

  Of a column that depends on others only rounding is left, which points anywhere: it becomes zero. Lengths are
  taken of columns whose entries are near 1, so that no square is too large or too small.
  """
  columns: list[jax.Array] = []
  for i in range(x.shape[1]):
    column = _unit(_near_one(x[:, i]))
    for other in columns * 2:  # once leaves what rounding has left of the others
      column = column - jnp.dot(other, column, precision=lax.Precision.HIGHEST) * other
    columns.append(jnp.where(jnp.sum(column * column) > DEPENDENT**2, _unit(column), 0))
  return jnp.stack(columns, axis=1)


def _near_one(x):
  """Divided by its largest magnitude; zeros stay zeros."""
  largest = jnp.max(jnp.abs(x), initial=0)
  return x / jnp.where(largest > 0, largest, 1)


def _unit(x):
  length = jnp.sqrt(jnp.sum(x * x))
  return x / jnp.where(length > 0, length, 1)
