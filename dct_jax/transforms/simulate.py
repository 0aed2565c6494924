"""Workers that are simulated on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AbstractMesh, AxisType

from dct_jax.transforms.placement import state_specs, vmap_axes


def simulate(tx: optax.GradientTransformation, params: Any, workers: int,
             axis_name: str = 'data') -> tuple[Callable, Any]:
  """A chain on any number of workers, all on one device: for notebooks, tests and quick ablations.

  Args:
    tx: any chain with a compressed mean over `axis_name` in it.
    params: parameters, one copy.
    workers: how many to simulate.
    axis_name: the name under which they are mapped.

  Returns:
    `update(grads, state, params) -> (updates, state)`, jitted, for gradients with a leading axis of
    workers; its updates have none. And the first state.

  Examples:
    >>> import dct_jax, jax.numpy as jnp, optax
    >>> tx = optax.chain(dct_jax.dct_dp(0.5, axis_name='data', dense_below=0), optax.sgd(1.0))
    >>> params = jnp.zeros(2)
    >>> update, state = dct_jax.simulate(tx, params, workers=2)
    >>> updates, state = update(jnp.array([[4.0, 0.0], [0.0, 2.0]]), state, params)
    >>> updates.tolist()
    [-2.0, -1.0]
  """
  if workers < 1:
    raise ValueError(f'workers must be at least 1, got {workers=}')
  mesh = AbstractMesh((workers,), (axis_name,), axis_types=(AxisType.Auto,))  # there are no such devices
  axes = vmap_axes(state_specs(tx, params, mesh, axis_name))
  state = jax.tree.map(
      lambda x, a: jnp.stack([x] * workers) if a == 0 else x, tx.init(params), axes)
  update = jax.jit(jax.vmap(
      tx.update, in_axes=(0, axes, None), out_axes=(None, axes), axis_name=axis_name))
  return update, state
