"""Stochastic coordinate descent, each worker on its own slice of the model.

The distributed form that SparCML names after Liu and Wright's asynchronous one leaves details open. "The values
calculated by each node lie in different slices of the entire model vector", and a node contributes 100 indices
an iteration and nothing else. We read it so: every node holds all columns of the data, all weights and all
rows' margins; it picks coordinates at random from the slice that it owns; the new values travel by an
all-gather of disjoint streams; then every node applies all of them to weights and margins. (If a node had its
own slice's columns only, changes of margins would have to travel, a dense vector of the rows.) There is no
asynchrony here, as in SparCML's experiment.

A step is w_j <- prox(w_j - d / L_j * gradient_j), with L_j the coordinate's own bound of the curvature, for all
picks at once; d keeps simultaneous steps from overshooting, see `damping`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dct_jax.arrays import Stream
from dct_jax.models.linear import find_loss, live_indices
from dct_jax.models.penalty import Penalty


class Picks(NamedTuple):
  """Coordinates and their columns; one worker's, or all workers' with one more dimension in front."""

  coordinates: jax.Array  # uint32[picks], ascending; the size of the model for padding
  slots: jax.Array  # int32[entries]: which of the picks; their number for padding
  rows: jax.Array  # int32[entries]; the number of rows for padding
  values: jax.Array  # float32[entries]; 0 for padding


class ScdState(NamedTuple):
  """The same on every worker."""

  margins: jax.Array  # float32[rows]: <w, x>, kept up to date
  labels: jax.Array  # float32[rows]: -1 or +1


def damping(picks: int, features: int, row_entries: int) -> float:
  """How much of a step alone each of many simultaneous steps may be.

  1 / (1 + (row_entries - 1) (picks - 1) / (features - 1)), which makes the objective fall in expectation
  for uniform picks, and is close to 1 for sparse data (Richtarik and Takac, Parallel coordinate descent
  methods for big data optimization, 2016). Picks that are uniform in every slice are close to that.

  Args:
    picks: of all workers together.
    features: that they are picked from.
    row_entries: of the longest row.

  Examples:
    >>> damping(picks=800, features=1_000_000, row_entries=100) > 0.9
    True
    >>> damping(picks=123, features=123, row_entries=14) == 1 / 14
    True
  """
  picks, rest = min(picks, features), max(features - 1, 1)
  return 1 / (1 + max(row_entries - 1, 0) * max(picks - 1, 0) / rest)


def coordinate_steps(loss: str, penalty: Penalty, weights: jax.Array, state: ScdState, picks: Picks,
                     factor: float = 1.0) -> Stream:
  """One worker's changes of its coordinates.

  Args:
    loss: one of `LOSSES` with a curvature: not hinge.
    penalty: of the weights; the others do not change, there is nothing lazy about it here.
    weights: all.
    state: margins and labels.
    picks: this worker's.
    factor: of the step, from `damping`.

  Returns:
    A stream of all picks, also of those that do not change.

  Raises:
    ValueError: for a loss that has no curvature.
  """
  kind = find_loss(loss)
  if kind.curvature is None:
    raise ValueError(f'coordinate descent needs a smooth loss, got {loss=}')
  take = lambda x: x.at[picks.rows].get(mode='fill', fill_value=0)
  add = lambda x: jnp.zeros(picks.coordinates.size, jnp.float32).at[picks.slots].add(x, mode='drop')
  rows = state.labels.size
  slope = add(picks.values * kind.slope(take(state.margins), take(state.labels))) / rows
  curvature = kind.curvature * add(jnp.square(picks.values)) / rows
  now = weights.at[picks.coordinates].get(mode='fill', fill_value=0)
  if penalty.kind == 'l2':
    slope, curvature = slope + penalty.strength * now, curvature + penalty.strength
  step = factor / jnp.maximum(curvature, 1e-20)
  new = now - step * slope
  if penalty.kind == 'l1':
    new = jnp.sign(new) * jnp.maximum(jnp.abs(new) - step * penalty.strength, 0)
  return Stream(picks.coordinates, new - now, jnp.sum(picks.coordinates < weights.size, dtype=jnp.uint32))


def apply_steps(weights: jax.Array, state: ScdState, picks: Picks,
                steps: Stream | jax.Array) -> tuple[jax.Array, ScdState]:
  """Applies all workers' changes to weights and margins.

  Args:
    weights: all.
    state: margins and labels.
    picks: all workers'.
    steps: their changes, gathered; sparse, or dense as float32[size].
  """
  if isinstance(steps, Stream):
    at = live_indices(steps, weights.size)
    weights = weights.at[at].add(steps.values, mode='drop', indices_are_sorted=True, unique_indices=True)
    place = jnp.searchsorted(at, picks.coordinates)
    found = at.at[place].get(mode='fill', fill_value=0) == picks.coordinates
    changes = jnp.where(found, steps.values.at[place].get(mode='fill', fill_value=0), 0)
  else:
    weights = weights + steps
    changes = steps.at[picks.coordinates].get(mode='fill', fill_value=0)
  of_entry = jax.vmap(lambda c, s: c.at[s].get(mode='fill', fill_value=0))(changes, picks.slots)
  margins = state.margins.at[picks.rows].add(of_entry * picks.values, mode='drop')
  return weights, state._replace(margins=margins)
