"""Linear models on sparse rows: their gradient is a sparse stream from the start.

Nothing here has the size of the model but the weights themselves: a batch names the weights that it reads, and
its gradient is made for these alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dct_jax.arrays import Stream
from dct_jax.models import penalty as penalties
from dct_jax.models.penalty import Debt, Penalty


class Loss(NamedTuple):
  """A loss of margin m = <w, x> and label y; y = 0 marks padding, and is masked by those who call this."""

  value: Callable  # (margins, labels) -> losses
  slope: Callable  # (margins, labels) -> d loss / d margin
  curvature: float | None  # bound of the second derivative; None where there is none
  vanishes: bool  # whether slopes are exactly 0 for many rows


def _hinge_slope(m, y):
  return jnp.where(y * m < 1, -y, 0)


LOSSES = {
    'logistic': Loss(lambda m, y: jax.nn.softplus(-y * m), lambda m, y: -y * jax.nn.sigmoid(-y * m), 0.25,
                     False),
    'hinge': Loss(lambda m, y: jnp.maximum(0, 1 - y * m), _hinge_slope, None, True),
    'squared': Loss(lambda m, y: jnp.square(m - y) / 2, lambda m, y: m - y, 1.0, False),
}


def find_loss(loss: str) -> Loss:
  """The loss of that name.

  Raises:
    ValueError: if there is none.
  """
  if loss not in LOSSES:
    raise ValueError(f'loss must be one of {tuple(LOSSES)}, got {loss=}')
  return LOSSES[loss]


class Batch(NamedTuple):
  """Sparse rows as entries in ascending order of their indices, padded to a static size."""

  rows: jax.Array  # int32[entries]: number of the row; the number of rows for padding
  indices: jax.Array  # uint32[entries]: feature; the size of the model for padding
  values: jax.Array  # float32[entries]; 0 for padding
  labels: jax.Array  # float32[rows]: -1 or +1; 0 for padding


def sort_batch(batch: Batch) -> Batch:
  """Brings entries into order. Do it on the host if you can: see `dct_jax.data.entries`."""
  indices, rows, values = jax.lax.sort((batch.indices, batch.rows, batch.values), num_keys=1)
  return Batch(rows, indices, values, batch.labels)


def margins(weights: jax.Array | Callable, batch: Batch) -> jax.Array:
  """<w, x> of each row.

  Args:
    weights: float32[size], or indices -> weights with 0 beyond the last one (`penalty.read`).
    batch: rows.
  """
  read = weights if callable(weights) else lambda i: jnp.asarray(weights).at[i].get(mode='fill', fill_value=0)
  return jnp.zeros_like(batch.labels).at[batch.rows].add(read(batch.indices) * batch.values, mode='drop')


def measure(loss: str, weights: jax.Array | Callable, batch: Batch) -> dict[str, jax.Array]:
  """Sums over the rows of a batch: `loss`, `accuracy` (margins with the label's sign) and `rows`."""
  m, live = margins(weights, batch), batch.labels != 0
  total = lambda x: jnp.sum(jnp.where(live, x, 0).astype(jnp.float32))
  correct = (m > 0) == (batch.labels > 0)
  losses = find_loss(loss).value(m, batch.labels)
  return {'loss': total(losses), 'accuracy': total(correct), 'rows': total(live)}


def batch_gradient(loss: str, weights: jax.Array | Callable, batch: Batch,
                   capacity: int | None = None) -> tuple[Stream, jax.Array]:
  """The gradient of the mean loss over a batch, as a stream.

  Args:
    loss: one of `LOSSES`.
    weights: as for `margins`.
    batch: rows, sorted by index.
    capacity: of the stream; at least as many as the batch has distinct features, or the last ones are lost.
      As many as entries unless given.

  Returns:
    The stream, and the mean loss. Indices whose gradient is exactly 0 are left out for the hinge loss, where
    rows with a large margin have none.
  """
  kind, live = find_loss(loss), batch.labels != 0
  m = margins(weights, batch)
  rows = jnp.maximum(jnp.sum(live, dtype=jnp.float32), 1)
  slopes = jnp.where(live, kind.slope(m, batch.labels), 0) / rows
  parts = batch.values * slopes.at[batch.rows].get(mode='fill', fill_value=0)
  stream = _sum_sorted(batch, parts, capacity or batch.indices.size)
  mean = jnp.sum(jnp.where(live, kind.value(m, batch.labels), 0)) / rows
  return (_without_zeros(stream) if kind.vanishes else stream), mean


def _unused(size):
  """Indices for the places after the last entry: they still increase, and no model is that large."""
  return jnp.uint32(2**32 - 1 - size) + jnp.arange(size, dtype=jnp.uint32)


def _sum_sorted(batch, parts, capacity):
  """Adds up the parts of each index."""
  indices = batch.indices
  first = jnp.concatenate([jnp.ones(1, bool), indices[1:] != indices[:-1]]) & (batch.rows < batch.labels.size)
  at = jnp.cumsum(first.astype(jnp.int32)) - 1
  at = jnp.where(batch.rows < batch.labels.size, at, capacity)
  return Stream(_unused(capacity).at[at].set(indices, mode='drop', indices_are_sorted=True),
                jnp.zeros(capacity, jnp.float32).at[at].add(parts, mode='drop', indices_are_sorted=True),
                jnp.sum(first, dtype=jnp.uint32))


def _without_zeros(stream):
  keep = stream.values != 0
  at = jnp.where(keep, jnp.cumsum(keep.astype(jnp.int32)) - 1, keep.size)
  return Stream(_unused(keep.size).at[at].set(stream.indices, mode='drop'),
                jnp.zeros_like(stream.values).at[at].set(stream.values, mode='drop'),
                jnp.sum(keep, dtype=jnp.uint32))


def live_indices(stream: Stream, size: int) -> jax.Array:
  """A stream's indices, and `size`, `size` + 1, ... after the last one: distinct, and dropped by scatters."""
  places = jnp.arange(stream.indices.size, dtype=jnp.uint32)
  return jnp.where(places < stream.count, stream.indices, jnp.uint32(size) + places)


def sgd_update(weights: jax.Array, debt: Debt, gradient: Stream | jax.Array, rate: jax.Array | float,
               penalty: Penalty = Penalty(), scale: float = 1.0) -> tuple[jax.Array, Debt]:  # noqa: B008
  """One step, in place if the weights are donated.

  Args:
    weights: float32[size].
    debt: of the weights.
    gradient: of the loss alone, sparse or dense (from a collective that ends dense).
    rate: of this step.
    penalty: of the weights; see `penalty.py` for those that the gradient does not touch.
    scale: of the gradient; 1 / workers makes a sum over workers their mean.

  Returns:
    Weights and debt.
  """
  clock = debt.clock + rate
  if not isinstance(gradient, Stream):
    now = penalties.settle(penalty, weights, debt)
    return (penalties.pay(penalty, now - rate * scale * gradient, rate),
            Debt(clock, jnp.full_like(debt.paid, clock)))
  at = live_indices(gradient, weights.size)
  now = penalties.read(penalty, weights, debt, at)
  put = lambda x, y: x.at[at].set(y, mode='drop', indices_are_sorted=True, unique_indices=True)
  weights = put(weights, penalties.pay(penalty, now - rate * scale * gradient.values, rate))
  return weights, Debt(clock, debt.paid if penalty.kind == 'none' else put(debt.paid, clock))
