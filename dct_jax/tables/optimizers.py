"""Optimizers that touch only the rows of tables that a batch has used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp


class RowOptimizer(NamedTuple):
  """An optimizer of rows.

  Attributes:
    init: tables -> state.
    update: (tables, state, ids, gradients) -> (tables, state); ids int32[n] may repeat, and gradients of the
      same row add up. Rows that are not named stay as they are, and nothing as large as a table is made.
  """

  init: Callable[[jax.Array], Any]
  update: Callable[[jax.Array, Any, jax.Array, jax.Array], tuple[jax.Array, Any]]


def sgd(learning_rate: float) -> RowOptimizer:
  """Rows minus the learning rate times their gradients."""

  def update(tables, state, ids, gradients):
    return tables.at[ids].add(-learning_rate * gradients), state

  return RowOptimizer(lambda tables: (), update)


def adagrad(learning_rate: float, eps: float = 1e-8, *, row_wise: bool = False) -> RowOptimizer:
  """Adagrad; with `row_wise`, one accumulator a row, of the mean of the squared gradients."""

  def init(tables):
    return jnp.zeros((tables.shape[0], 1 if row_wise else tables.shape[1]), jnp.float32)

  def update(tables, squares, ids, gradients):
    rows, sums = sum_duplicates(ids, gradients, tables.shape[0])
    grown = jnp.mean(sums**2, axis=1, keepdims=True) if row_wise else sums**2
    squares = squares.at[rows].add(grown, mode='drop')
    seen = squares.at[rows].get(mode='fill', fill_value=1)
    return tables.at[rows].add(-learning_rate * sums / (jnp.sqrt(seen) + eps), mode='drop'), squares

  return RowOptimizer(init, update)


def make_optimizer(name: str, learning_rate: float) -> RowOptimizer:
  """'sgd', 'adagrad' or 'row_adagrad'."""
  made = {'sgd': sgd, 'adagrad': adagrad, 'row_adagrad': lambda rate: adagrad(rate, row_wise=True)}
  if name not in made:
    raise ValueError(f'the optimizer of rows is one of {tuple(made)}, got {name=}')
  return made[name](learning_rate)


def sum_duplicates(ids: jax.Array, gradients: jax.Array, rows: int) -> tuple[jax.Array, jax.Array]:
  """Every id once, with the sum of its gradients; `rows`, which is no id, where none is left.

  Args:
    ids: int32[n].
    gradients: float32[n, width].
    rows: number of rows.

  Returns:
    int32[n] and float32[n, width].
  """
  chex.assert_shape(gradients, (ids.size, None), exception_type=ValueError,
                    custom_message='every id has one gradient, of the width of a row')
  order = jnp.argsort(ids)
  ordered = ids[order]
  first = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])
  group = jnp.cumsum(first) - 1
  sums = jax.ops.segment_sum(gradients[order], group, num_segments=ids.size, indices_are_sorted=True)
  return jnp.full(ids.size, rows, ids.dtype).at[group].set(ordered), sums
