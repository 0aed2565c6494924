"""Moving averages of batch normalization that travel with the gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def follow_first_worker(loss: jax.Array, old: Any, new: Any, axis_name: str | None = None) -> jax.Array:
  """A loss whose gradient with respect to the moving averages is how the first worker's have changed.

  Every worker normalizes by its own images, and so moves its averages elsewhere; all shall go on with those
  of one of them. A step that knows only losses and gradients does that, too, if the averages are parameters:
  the loss gets a term whose value is 0 and whose gradient is

      workers * (old - new) on worker 0, and 0 on all others

  so that the mean over workers is old - new of worker 0, and `optax.sgd(1.0)` turns its old into its new (to
  rounding). No momentum, weight decay or lossy compressor must come in between.

  Args:
    loss: of this worker. It must not depend on `old`, as it does not while training.
    old: averages before the step; what is differentiated.
    new: the same tree, after this worker's images.
    axis_name: mapped axis of the workers; None is one worker.

  Returns:
    The loss, of the same value.

  Examples:
    >>> import jax.numpy as jnp
    >>> old, new = {'mean': jnp.array([1.0, 2.0])}, {'mean': jnp.array([1.5, 0.0])}
    >>> jax.grad(lambda old: follow_first_worker(jnp.array(3.0), old, new))(old)['mean'].tolist()
    [-0.5, 2.0]

  References:
    Goyal et al., Accurate, Large Minibatch SGD, 2017; 3LC (Lim et al., 2018), section 4.3.
  """
  share = jnp.float32(1)
  if axis_name is not None:
    share = jnp.where(lax.axis_index(axis_name) == 0, lax.axis_size(axis_name), 0).astype(jnp.float32)

  def term(old, new):
    fixed = lax.stop_gradient(old)
    return jnp.sum((old - fixed) * lax.stop_gradient(share.astype(old.dtype) * (fixed - new)))

  return loss + sum(jax.tree.leaves(jax.tree.map(term, old, new)))
