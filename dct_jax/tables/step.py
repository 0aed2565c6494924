"""Training with embedding tables: everything else by an optax optimizer, rows by one of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dct_jax import kernels
from dct_jax.tables.exchange import RowsState
from dct_jax.tables.layout import Dealing, TableLayout
from dct_jax.tables.optimizers import RowOptimizer
from dct_jax.train import step as steps
from dct_jax.transforms import local_value_and_grad


class RowSource(Protocol):
  """Where rows come from and their gradients go to: a `RowExchange`, or `ReplicatedRows`."""

  replicated: bool  # whether every worker has all tables

  @property
  def workers(self) -> int: ...

  def wanted(self, batch: Mapping[str, Any]) -> Any: ...

  def fetch(self, tables: Any, ids: Any) -> tuple[Any, Any]: ...

  def absorb(self, optimizer: RowOptimizer, state: Any, gradients: Any, asked: Any) -> tuple[Any, Any]: ...


def init_rows(optimizer: RowOptimizer, tables: jax.Array, opt_state: Any, specs: Any, mesh: Mesh,
              axis_name: str = 'data', layout: TableLayout | None = None) -> tuple[RowsState, RowsState]:
  """Puts tables beside an optimizer's state.

  Args:
    optimizer: a `RowOptimizer`.
    tables: float32[workers * rows, width]; every process passes the same.
    opt_state: of everything else, from `dct_jax.init`.
    specs: likewise.
    mesh: from `make_mesh`.
    axis_name: axis of the workers.
    layout: of the tables; with it, a checkpoint of them can be restored onto another number of workers.

  Returns:
    The state and its specs.
  """
  shard = PartitionSpec(axis_name)
  place = lambda x: jax.make_array_from_callback(
      x.shape, NamedSharding(mesh, shard), lambda index: np.asarray(x)[index])
  rows = optimizer.init(tables)
  dealing = None if layout is None else Dealing(tuple(layout.vocabularies))
  return (RowsState(opt_state, place(tables), jax.tree.map(place, rows), dealing),
          RowsState(specs, shard, jax.tree.map(lambda _: shard, rows), dealing))


def make_row_step(loss_fn: Callable, tx: optax.GradientTransformation, optimizer: RowOptimizer, exchange: RowSource,
                  mesh: Mesh, specs: Any, axis_name: str = 'data') -> Callable:
  """One training step on all workers, as `make_step` makes it, with tables.

  Args:
    loss_fn: (params, rows, batch) -> (loss of this worker's part of the batch, dict of scalars).
    tx: a chain with a compressed mean over `axis_name` in it, for the parameters.
    optimizer: a `RowOptimizer`. It sees the mean over workers, as `tx` does.
    exchange: where rows come from: a `RowExchange`, or `ReplicatedRows`.
    mesh: from `make_mesh`.
    specs: from `init_rows`, or `ReplicatedRows.init`.
    axis_name: axis of the workers.

  Returns:
    step(params, state, batch) -> (params, state, metrics); the batch has the ids of its rows in the
    column that `exchange` was given.
    Metrics are those of `make_step`, and `row_bytes`, what a worker sends for its rows.
  """
  whole, shard = PartitionSpec(), PartitionSpec(axis_name)
  value_and_grad = local_value_and_grad(lambda both, batch: loss_fn(*both, batch), axis_name, has_aux=True)
  mean = steps.mean_over(axis_name)

  def step(params, state, batch):
    rows, asked = exchange.fetch(state.tables, exchange.wanted(batch))
    (loss, aux), (grads, row_grads) = value_and_grad((params, rows), batch)
    params, state, account = update_all(tx, optimizer, exchange, params, state, grads, row_grads, asked)
    scalars = {'loss': loss, **steps.check_aux(aux)}
    metrics = steps.metric_means(scalars, mean, (params, state.tables))
    return params, state, metrics | account

  return jax.jit(
      jax.shard_map(step, mesh=mesh, in_specs=(whole, specs, shard), out_specs=(whole, specs, whole)),
      donate_argnums=(0, 1))


def update_all(tx: optax.GradientTransformation, optimizer: RowOptimizer, exchange: RowSource, params: Any,
               state: Any, grads: Any, row_grads: Any, asked: Any) -> tuple[Any, Any, dict]:
  """Parameters and tables after a step, from this worker's gradients; and what was sent for them."""
  updates, inner = tx.update(grads, state.inner, params)
  # As in a compressed mean: what is not a number never enters, and a step that it skips is skipped here, too.
  good = (kernels.all_finite(tuple(jax.tree.leaves(row_grads))).reshape(()) != 0) & (
      steps.skipped_steps(inner) == steps.skipped_steps(state.inner))
  given = jax.tree.map(lambda g: jnp.where(good, g / exchange.workers, 0), row_grads)
  state, sent = exchange.absorb(optimizer, state._replace(inner=inner), given, asked)
  account = steps.accounts(state) | {'row_bytes': jnp.float32(sent)}
  return optax.apply_updates(params, updates), state, account


def make_row_predictor(apply_fn: Callable, exchange: RowSource, mesh: Mesh,
                       axis_name: str = 'data') -> Callable:
  """(params, state, batch) -> NumPy outputs for all workers' examples, in order.

  Args:
    apply_fn: (params, rows, batch) -> float[n], for one worker's part.
    exchange: where rows come from.
    mesh: from `make_mesh`.
    axis_name: axis of the workers.
  """
  whole, shard = PartitionSpec(), PartitionSpec(axis_name)

  def predict(params, tables, batch):
    rows, _ = exchange.fetch(tables, exchange.wanted(batch))
    return apply_fn(params, rows, batch)

  where = whole if exchange.replicated else shard
  compiled = jax.jit(jax.shard_map(predict, mesh=mesh, in_specs=(whole, where, shard), out_specs=shard))
  return lambda params, state, batch: steps.gathered(compiled(params, state.tables, batch))
