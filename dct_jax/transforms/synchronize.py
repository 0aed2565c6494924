"""Replicas of groups on a mesh, pulled together every so often: EASGD, model averaging, BMUF."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from dct_jax import axes, kernels
from dct_jax.contract import Receipt, Stats, as_bytes
from dct_jax.state import own
from dct_jax.transforms import averaging, checks
from dct_jax.transforms.compressed_mean import no_receipt, no_stats


@own()  # all groups agree on all of it, so that it goes to any number of groups as it is
class SynchronizeState(NamedTuple):
  """State of `synchronize`."""

  since: jax.Array  # steps since the last synchronization
  center: averaging.Center
  stats: Stats  # `nonfinite` counts replicas that were left out of a synchronization


def synchronize(method: averaging.Method, every: int = 1,
                axis_name: axes.AxisName | None = 'group') -> optax.GradientTransformation:
  """Pulls the replicas of groups together after every `every` steps; it goes last in a chain.

  What is synchronized is parameters + updates: with the updates that come back, `optax.apply_updates` makes
  replicas that are. In the steps between nothing travels and updates pass as they are.

  A replica with a NaN or an infinity takes no part: it stays as it is, the others synchronize without it, and it is
  counted in `Stats.nonfinite`.

  Args:
    method: of `dct_jax.transforms.averaging`.
    every: steps for one synchronization.
    axis_name: mapped axis of the groups; None is a single group.

  Returns:
    An `optax.GradientTransformation`, whose `update` needs the parameters. `dct_jax.init_groups` places its state.

  Raises:
    ValueError: for arguments that cannot work; from `update`, for an axis that is not mapped, for too many groups, and
      without parameters.
  """
  if not every >= 1 or int(every) != every:
    raise ValueError(f'every must be a whole number of at least 1, got {every=}')

  def init(params):
    checks.check_layers([jnp.asarray(x) for x in jax.tree.leaves(params)], 'parameters')
    return SynchronizeState(jnp.zeros((), jnp.int32), method.init(params), no_stats())

  def update(updates, state, params=None):
    if params is None:
      raise ValueError('a synchronization acts on parameters + updates: give update() the parameters, got params=None')
    method.check(axes.axis_size(axis_name))
    params, updates = _of_group((params, updates), axis_name)

    def together(center, stats):
      replica = jax.tree.map(jnp.add, averaging.wide(params), averaging.wide(updates))
      change, center, stats = _round(method, replica, center, stats, axis_name)
      moved = jax.tree.map(lambda u, c: (u.astype(jnp.float32) + c).astype(u.dtype), updates, change)
      return moved, center, stats

    def apart(center, stats):
      return updates, center, stats._replace(receipt=no_receipt())

    due = state.since >= every - 1
    moved, center, stats = lax.cond(due, together, apart, state.center, state.stats)
    return moved, SynchronizeState(jnp.where(due, 0, state.since + 1), center, stats)

  return optax.GradientTransformation(init, update)


def easgd(alpha: float, every: int = 1, axis_name: axes.AxisName | None = 'group') -> optax.GradientTransformation:
  """Elastic averaging: d = alpha * (x - center), x -= d, center += the sum over groups of d.

  The sum of all replicas and the center is unchanged by it.

  Args:
    alpha: in (0, 1], and at most 1 / groups: beyond that the center would jump past the mean of the replicas.
    every: steps for one synchronization; nothing travels in between.
    axis_name: mapped axis of the groups; None is a single group.

  Returns:
    An `optax.GradientTransformation` that goes last in a chain; see `synchronize`.

  Examples:
    >>> import dct_jax, jax, jax.numpy as jnp
    >>> tx = dct_jax.easgd(alpha=0.25, axis_name='group')
    >>> replicas, state = jnp.array([[4.0], [8.0]]), tx.init(jnp.zeros(1))
    >>> update = jax.vmap(tx.update, in_axes=(0, None, 0), out_axes=(0, None), axis_name='group')
    >>> updates, state = update(jnp.zeros((2, 1)), state, replicas)
    >>> (replicas + updates).tolist(), state.center.center.tolist()
    ([[3.0], [6.0]], [3.0])

  References:
    Zhang, Choromanska and LeCun, Deep learning with Elastic Averaging SGD, NeurIPS 2015.
    Zheng et al., ShadowSync: Performing Synchronization in the Background for Highly Scalable Distributed Training,
    2020.
  """
  return synchronize(averaging.elastic(alpha), every, axis_name)


def model_averaging(alpha: float = 1.0, every: int = 1,
                    axis_name: axes.AxisName | None = 'group') -> optax.GradientTransformation:
  """Model averaging: x = (1 - alpha) * x + alpha * mean(x).

  With alpha = 1 this is local SGD: groups train for `every` steps, and go on from their mean.

  Args:
    alpha: in (0, 1].
    every: steps for one synchronization; nothing travels in between.
    axis_name: mapped axis of the groups; None is a single group.

  Returns:
    An `optax.GradientTransformation` that goes last in a chain; see `synchronize`.

  Examples:
    >>> import dct_jax, jax, jax.numpy as jnp
    >>> tx = dct_jax.model_averaging(alpha=0.5)
    >>> replicas, state = jnp.array([[4.0], [8.0]]), tx.init(jnp.zeros(1))
    >>> update = jax.vmap(tx.update, in_axes=(0, None, 0), out_axes=(0, None), axis_name='group')
    >>> updates, state = update(jnp.zeros((2, 1)), state, replicas)
    >>> (replicas + updates).tolist()
    [[5.0], [7.0]]
  """
  return synchronize(averaging.mean(alpha), every, axis_name)


def bmuf(momentum: float, step_size: float = 1.0, alpha: float = 1.0, every: int = 1,
         axis_name: axes.AxisName | None = 'group', *, nesterov: bool = False) -> optax.GradientTransformation:
  """Blockwise model-update filtering: the mean of the replicas moves a center with momentum, which replicas follow.

  velocity = momentum * velocity + step_size * (mean(x) - center); center += velocity;
  x = (1 - alpha) * x + alpha * center.

  Args:
    momentum: in [0, 1); 1 - 1 / groups is what its authors take.
    step_size: larger than 0.
    alpha: in (0, 1].
    every: steps for one synchronization; nothing travels in between.
    axis_name: mapped axis of the groups; None is a single group.
    nesterov: pulls replicas towards center + momentum * velocity instead.

  Returns:
    An `optax.GradientTransformation` that goes last in a chain; see `synchronize`.

  Examples:
    >>> import dct_jax, jax, jax.numpy as jnp
    >>> tx = dct_jax.bmuf(momentum=0.5, step_size=0.5)
    >>> replicas, state = jnp.array([[4.0], [8.0]]), tx.init(jnp.zeros(1))
    >>> update = jax.vmap(tx.update, in_axes=(0, None, 0), out_axes=(0, None), axis_name='group')
    >>> updates, state = update(jnp.zeros((2, 1)), state, replicas)
    >>> (replicas + updates).tolist(), state.center.velocity.tolist()
    ([[3.0], [3.0]], [3.0])

  References:
    Chen and Huo, Scalable training of deep learning machines by incremental block training with intra-block parallel
    optimization and blockwise model-update filtering, ICASSP 2016.
  """
  return synchronize(averaging.block_momentum(momentum, step_size, alpha, nesterov), every, axis_name)


def _round(method, replica, center, stats, axis_name):
  """One synchronization in one collective: the change of this group's replica, and the center and stats of all."""
  share = method.share(center, replica)
  leaves, structure = jax.tree.flatten(share)
  live = kernels.all_finite(tuple(leaves)).reshape(()) > 0
  said = (live.astype(jnp.float32).reshape(1), *(jnp.where(live, x, 0) for x in leaves))
  count, *total = said if axis_name is None else axes.sum_together(said, axis_name)
  count, groups = count.reshape(()), axes.axis_size(axis_name)
  after, answer = method.absorb(center, jax.tree.unflatten(structure, total), jnp.maximum(count, 1))
  after = jax.tree.map(lambda new, old: jnp.where(count > 0, new, old), after, center)
  change = method.change(replica, method.correction(share, answer))
  stats = stats._replace(receipt=_receipt(sum(x.size for x in leaves), groups),
                         nonfinite=stats.nonfinite + (groups - count).astype(jnp.uint32))
  return jax.tree.map(lambda x: jnp.where(live, x, 0), change), after, stats


def _receipt(size, groups):
  """Of one group: a number for each parameter, and one that says whether it takes part. Alone it says nothing."""
  if groups == 1:
    return no_receipt()
  return Receipt(as_bytes(4 * size), as_bytes(4 * (size + 1)), as_bytes(8 * (size + 1) * (groups - 1) // groups),
                 jnp.uint32(0), jnp.float32(1))


def _of_group(tree, axis_name):
  """Parameters and updates, known to differ between groups; refuses those that differ inside a group as well."""
  tree = jax.tree.map(jnp.asarray, tree)
  if axis_name is None or not axes.tracked(axis_name):
    return tree
  inside = frozenset().union(*(axes.varying_axes(x) for x in jax.tree.leaves(tree))) - axes.names(axis_name)
  if inside:
    raise ValueError(f'a group has one replica, but parameters or updates differ over {sorted(inside)} as well: '
                     f'average gradients inside the group before (dct_dp with that axis), got {axis_name=}')
  return jax.tree.map(lambda x: axes.make_varying(x, axes.names(axis_name)), tree)
