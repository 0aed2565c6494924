"""Where replicas of groups live on a mesh with a `group` axis: what every group has for itself, stacked in front.

A model that two groups of two workers train, each group with DCT over its `data` axis, and elastic averaging between
them over `group` (on eight host devices):

    >>> import dct_jax, jax, jax.numpy as jnp, optax
    >>> mesh = dct_jax.make_mesh(2, groups=2)
    >>> tx = optax.chain(dct_jax.dct_dp(0.5, axis_name='data', dense_below=0), optax.sgd(0.1),
    ...                  dct_jax.easgd(alpha=0.5, every=4, axis_name='group'))
    >>> params, state, specs = dct_jax.init_groups(tx, {'w': jnp.zeros((4, 1))}, mesh)
    >>> params['w'].shape                                                # a replica for each group
    (2, 4, 1)
    >>> def loss_fn(params, batch):
    ...   return jnp.mean((batch @ params['w'] - batch.sum(1, keepdims=True)) ** 2)
    >>> def step(params, state, batch):                                  # on a worker, with its group's replica
    ...   loss, grads = dct_jax.local_value_and_grad(loss_fn, 'data')(params, batch)
    ...   updates, state = tx.update(grads, state, params)
    ...   return optax.apply_updates(params, updates), state, jax.lax.pmean(loss, ('group', 'data'))
    >>> step = jax.jit(dct_jax.map_groups(step, mesh, specs))
    >>> for i in range(40):
    ...   batch = jax.random.normal(jax.random.key(i), (32, 4))          # a quarter for each worker
    ...   params, state, loss = step(params, state, batch)
    ...   loss = float(loss)                                             # waits for the step
    >>> loss < 0.1
    True
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from dct_jax import axes
from dct_jax.transforms.placement import state_specs


def group_specs(tx: optax.GradientTransformation, params: Any, mesh: Mesh | AbstractMesh, group_axis: str = 'group',
                axis_name: str | None = 'data') -> Any:
  """Partition specs of a chained optimizer's state where each group has a replica, found by tracing updates.

  What a worker has for itself (`state_specs` finds it) is sharded over both axes, what differs between groups over
  `group_axis`, in a first dimension of its own; all else is equal everywhere.

  Args:
    tx: a chain with a mean over `axis_name` and a synchronization over `group_axis` in it.
    params: parameters, one copy.
    mesh: with both axes.
    group_axis: axis of the groups.
    axis_name: axis of the workers of a group; None if a group has one.

  Raises:
    ValueError: if there is no such axis, or for what `state_specs` refuses.
  """
  for name in (group_axis, *([axis_name] if axis_name else [])):
    if name not in mesh.shape:
      raise ValueError(f'the mesh has axes {tuple(mesh.shape)}, got {name!r}')
  state = jax.eval_shape(tx.init, params)
  inside = state_specs(tx, params, mesh, axis_name) if axis_name else jax.tree.map(lambda _: PartitionSpec(), state)
  place = lambda spec, differs: PartitionSpec(group_axis, *spec) if any(spec) or differs else PartitionSpec()
  specs = jax.tree.map(lambda spec: place(spec, False), inside)
  for _ in range(len(jax.tree.leaves(state)) + 1):
    found = jax.tree.map(place, inside, _differs_after_update(tx, params, state, specs, mesh, group_axis, axis_name))
    if found == specs:
      return specs
    specs = found
  raise AssertionError('unreachable: every round finds one more leaf that differs')


def _differs_after_update(tx, params, state, specs, mesh, group_axis, axis_name):
  """Which leaves differ between groups after an update, or did so before."""
  whole = PartitionSpec()
  found: list[bool] = []

  def one_update(params, state):
    params = jax.tree.map(lambda x: axes.make_varying(x, {group_axis}), params)
    state = jax.tree.map(lambda x, spec: axes.make_varying(x, {name for name in spec if name}), state, specs)
    grads = jax.tree.map(lambda x: axes.make_varying(
        jnp.zeros(x.shape, x.dtype), {group_axis, axis_name} - {None}), params)
    _, new = tx.update(grads, state, params)
    found.extend(group_axis in axes.varying_axes(x) | axes.varying_axes(old)
                 for x, old in zip(jax.tree.leaves(new), jax.tree.leaves(state), strict=True))
    return jnp.zeros(())

  try:
    jax.eval_shape(jax.shard_map(one_update, mesh=mesh, in_specs=(whole, whole), out_specs=whole),
                   jax.eval_shape(lambda p: p, params), state)
  except TypeError as error:
    if 'manual axis types' not in str(error):
      raise
    raise ValueError('a part of the optimizer has a conditional around a mean (dct_jax.accumulate and optax.MultiSteps '
                     'do), for which it is not known what differs between groups') from error
  return jax.tree.unflatten(jax.tree.structure(state), found)


def init_groups(tx: optax.GradientTransformation, params: Any, mesh: Mesh, group_axis: str = 'group',
                axis_name: str | None = 'data') -> tuple[Any, Any, Any]:
  """Places a replica of the parameters, and the optimizer state, on each group of a mesh.

  Args:
    tx: a chain with a mean over `axis_name` and, last, a synchronization over `group_axis` in it.
    params: parameters, one copy, from which all groups start; every process passes the same.
    mesh: from `make_mesh(workers, groups=...)`.
    group_axis: axis of the groups.
    axis_name: axis of the workers of a group; None if a group has one.

  Returns:
    The parameters as [groups, ...], sharded over `group_axis`; the state, in which leaves that differ between groups
    are [groups, ...] as well; and the state's partition specs, for `map_groups`.
  """
  specs = group_specs(tx, params, mesh, group_axis, axis_name)
  groups, workers = mesh.shape[group_axis], mesh.shape[axis_name] if axis_name else 1

  def spread(x, spec):
    x = jnp.concatenate([x] * workers) if len(spec) > 1 else x
    return jnp.broadcast_to(x, (groups, *x.shape)) if any(spec) else x

  def start(params):
    replicas = jax.tree.map(lambda x: spread(x, PartitionSpec(group_axis)), params)
    return replicas, jax.tree.map(spread, tx.init(params), specs)

  places = jax.tree.map(lambda spec: NamedSharding(mesh, spec),
                        (jax.tree.map(lambda _: PartitionSpec(group_axis), params), specs))
  replicas, state = jax.jit(start, out_shardings=places)(params)
  return replicas, state, specs


def map_groups(step: Callable, mesh: Mesh, specs: Any, group_axis: str = 'group',
               axis_name: str | None = 'data') -> Callable:
  """A function of one group's replica, as one of all groups' on a mesh.

  Args:
    step: (params, state, batch) -> (params, state, out), run by each worker with its group's parameters, its own
      state and its own part of the batch. `out` must be equal everywhere: a `lax.pmean` over both axes is.
    mesh: as for `init_groups`.
    specs: from `init_groups`.
    group_axis: axis of the groups.
    axis_name: axis of the workers of a group; None if a group has one.

  Returns:
    The same function for what `init_groups` has placed, and for batches whose leaves are split on their first
    dimension, over groups and then over the workers of each. To be jitted.
  """
  mine, whole = PartitionSpec(group_axis), PartitionSpec()
  split = PartitionSpec((group_axis, axis_name) if axis_name else group_axis)

  def inside(params, state, batch):
    params = jax.tree.map(lambda x: x[0], params)
    state = jax.tree.map(lambda x, spec: x[0] if any(spec) else x, state, specs)
    params, state, out = step(params, state, batch)
    stacked = jax.tree.map(lambda x, spec: x[None] if any(spec) else x, state, specs)
    return jax.tree.map(lambda x: x[None], params), stacked, out

  return jax.shard_map(inside, mesh=mesh, in_specs=(mine, specs, split), out_specs=(mine, specs, whole))
