"""Embedding tables: where their rows live, and optimizers that touch only the rows that a batch has used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Layout(NamedTuple):
  """Tables dealt out over workers, equally many slots to each; static."""

  slots: np.ndarray  # int32[workers, slots]: the field of each slot, -1 where there is none
  begin: np.ndarray  # int32[fields]: where a field's rows begin on its worker
  rows: int  # of every worker, the longest one's
  vocabularies: tuple[int, ...]

  @property
  def place(self) -> np.ndarray:
    """int32[fields]: number of each field's slot, all workers' slots in a row."""
    flat = self.slots.reshape(-1)
    place = np.zeros(len(self.vocabularies), np.int32)
    place[flat[flat >= 0]] = np.flatnonzero(flat >= 0)
    return place


def deal(vocabularies: Sequence[int], workers: int = 1) -> Layout:
  """Deals tables out over workers: the largest first, each to the worker with the fewest rows so far.

  Raises:
    ValueError: for an empty vocabulary, or no workers.
  """
  if workers < 1 or not vocabularies or min(vocabularies) < 1:
    raise ValueError(f'every table needs a row and there must be workers, got {vocabularies=} and {workers=}')
  most = -(-len(vocabularies) // workers)
  hands: list[list[int]] = [[] for _ in range(workers)]
  rows, begin = [0] * workers, np.zeros(len(vocabularies), np.int32)
  for field in sorted(range(len(vocabularies)), key=lambda f: -vocabularies[f]):
    owner = min((w for w in range(workers) if len(hands[w]) < most), key=lambda w: rows[w])
    begin[field] = rows[owner]
    hands[owner].append(field)
    rows[owner] += vocabularies[field]
  slots = np.array([hand + [-1] * (most - len(hand)) for hand in hands], np.int32)
  return Layout(slots, begin, max(rows), tuple(vocabularies))


def init_tables(key: jax.Array, layout: Layout, width: int) -> jax.Array:
  """float32[workers * rows, width]: uniform within 1 / sqrt(vocabulary), as the public DLRM begins.

  A table's numbers depend on its field alone, not on how many workers there are.
  """
  tables = np.zeros((len(layout.slots), layout.rows, width), np.float32)
  for field, size in enumerate(layout.vocabularies):
    owner = int(layout.place[field]) // layout.slots.shape[1]
    bound = size ** -0.5
    values = jax.random.uniform(jax.random.fold_in(key, field), (size, width), minval=-bound, maxval=bound)
    tables[owner, layout.begin[field]:layout.begin[field] + size] = np.asarray(values)
  return jnp.asarray(tables.reshape(-1, width))


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
  order = jnp.argsort(ids)
  ordered = ids[order]
  first = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])
  group = jnp.cumsum(first) - 1
  sums = jax.ops.segment_sum(gradients[order], group, num_segments=ids.size, indices_are_sorted=True)
  return jnp.full(ids.size, rows, ids.dtype).at[group].set(ordered), sums
