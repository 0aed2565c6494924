"""An optimizer that each worker has for itself, before anything is averaged."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dct_jax import kernels, state


@state.own(inner=state.MERGE)
class PerWorkerState(NamedTuple):
  """State of `per_worker`."""

  inner: Any  # arrays differ by worker; numbers, which count steps, do not


def per_worker(inner: optax.GradientTransformation) -> optax.GradientTransformation:
  """Applies `inner` to local gradients, so that what a compressed mean behind it sees are its updates.

  For Adam and its kin in front of a lossy mean. Behind one that sends few entries, Adam sees an entry of the
  gradient rarely, and then with the sum of many steps, which its moments take for one. In front of it, error
  feedback adds up steps of the usual size; where many wait for long, they come as a large one (take a lower
  learning rate then).

  A chain of `inner` and the mean would do the same until one worker's gradient is not finite: NaN would stay in
  that worker's moments, and all later steps be skipped. Here its moments stay as they were, and the mean is
  handed a NaN to decide by its own `nonfinite`. In a checkpoint for another number of workers moments are
  averaged, and workers that are new have copies.

  Args:
    inner: any transformation whose state has arrays of the parameters' shapes. Scalar parameters need the shape
      (1,).

  Returns:
    An `optax.GradientTransformation`, to be chained in front of `dct_dp` or `compressed_mean`.

  Examples:
    >>> import dct_jax, jax.numpy as jnp, optax
    >>> adam = dct_jax.per_worker(optax.scale_by_adam())
    >>> tx = optax.chain(adam, dct_jax.dense_mean('data'), optax.scale(-0.1))
    >>> params = jnp.zeros(2)
    >>> update, state = dct_jax.simulate(tx, params, workers=2)
    >>> updates, state = update(jnp.array([[1.0, 100.0], [1.0, 1.0]]), state, params)
    >>> updates.round(3).tolist()                   # both workers' Adams take steps of 0.1
    [-0.10000000149011612, -0.10000000149011612]
  """

  def init(params):
    return PerWorkerState(inner.init(params))

  def update(updates, old, params=None):
    moved, new = inner.update(updates, old.inner, params)
    sound = kernels.all_finite((*jax.tree.leaves(updates), *jax.tree.leaves(moved))).reshape(()) > 0
    keep = lambda before, now: jnp.where(sound, now, before) if jnp.ndim(before) else now
    told = lambda x: jnp.where(sound, x, jnp.nan).astype(x.dtype)
    return jax.tree.map(told, moved), PerWorkerState(jax.tree.map(keep, old.inner, new))

  return optax.GradientTransformation(init, update)
