"""Where parameters and optimizer state live on a mesh: which leaves are replicated, which differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from dct_jax import axes
from dct_jax.state import MEAN, SUM, visit


def make_mesh(workers: int | None = None, axis_name: str = 'data', stages: int = 1,
              groups: int | None = None) -> Mesh:
  """A mesh over all processes' devices, with axes that accept unsharded inputs.

  Args:
    workers: that share the batch, of each group if there are groups; as many as there are devices for unless given.
    axis_name: their axis.
    stages: of a pipeline; with more than one, the mesh has a second axis, 'stage', along which the devices of a
      worker lie.
    groups: with a replica of the model each; the mesh then has an axis 'group' before the others (`init_groups`).

  Raises:
    ValueError: if there are not that many devices.
  """
  available, several = jax.device_count(), 1 if groups is None else groups
  if several < 1:
    raise ValueError(f'groups must be at least 1, got {groups=}')
  workers = available // (stages * several) if workers is None else workers
  needed = several * workers * stages
  if not 1 <= needed <= available:
    asked = f'{workers=} x {stages=}' if groups is None else f'{groups=} x {workers=} x {stages=}'
    raise ValueError(
        f'{asked} does not fit the {available} devices of the {jax.process_count()} processes '
        'here; start more processes, or, for several devices in one process on a CPU, set '
        f'jax.config.update("jax_num_cpu_devices", {needed}) before the first use of JAX')
  shape, names = ((workers, stages), (axis_name, 'stage')) if stages > 1 else ((workers,), (axis_name,))
  if groups is not None:
    shape, names = (groups, *shape), ('group', *names)
  return jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(shape), devices=jax.devices()[:needed])


def local_value_and_grad(fun: Callable, axis_name: axes.AxisName | None, **kwargs: Any) -> Callable:
  """`jax.value_and_grad` whose gradients stay each worker's own.

  Inside `shard_map` the gradient with respect to replicated parameters comes back summed over workers, which
  is one dense all-reduce too many. This marks the parameters as varying first.

  Args:
    fun: loss function; its first argument is differentiated.
    axis_name: mapped axis of the workers.
    **kwargs: for `jax.value_and_grad` (`has_aux`, ...).
  """
  value_and_grad = jax.value_and_grad(fun, **kwargs)

  def wrapped(params, *args, **kw):
    if axis_name is not None:
      axes.axis_size(axis_name)
      if axes.tracked(axis_name):
        params = jax.tree.map(lambda x: axes.make_varying(x, axes.names(axis_name)), params)
    return value_and_grad(params, *args, **kw)

  return wrapped


def state_specs(tx: optax.GradientTransformation, params: Any, mesh: Mesh | AbstractMesh,
                axis_name: str = 'data') -> Any:
  """Partition specs of a chained optimizer's state, found by tracing one update.

  JAX knows of every value whether it differs between workers. A leaf of the state that does after an update is
  sharded over `axis_name` on its first dimension, all others are replicated. So any chain of optax
  transformations gets its specs, and what would let workers drift apart is refused.

  Raises:
    ValueError: if updates would differ between workers, or a scalar of the state would.
  """
  state = jax.eval_shape(tx.init, params)
  shard, whole = PartitionSpec(axis_name), PartitionSpec()
  specs = _declared_specs(state, axis_name)
  for _ in range(len(jax.tree.leaves(state)) + 1):
    found = _specs_after_update(tx, params, state, specs, mesh, axis_name)
    both = jax.tree.map(lambda a, b: shard if shard in (a, b) else whole, specs, found)
    if both == specs:
      return specs
    specs = both
  raise AssertionError('unreachable: every round shards at least one more leaf')


def _declared_specs(state, axis_name):
  """What state classes say before anything is traced; conditionals in an optimizer need it to be traced at all."""
  specs = []
  for leaf, x in zip(visit(state), jax.tree.leaves(state), strict=True):
    if leaf.rule in (SUM, MEAN) and not x.shape:
      raise ValueError(f'{leaf.path} of the optimizer state is each worker\'s own (optax.MultiSteps accumulates '
                       'local gradients), and a scalar cannot differ by worker: give it the shape (1,)')
    specs.append(PartitionSpec(axis_name) if leaf.rule and x.shape else PartitionSpec())
  return jax.tree.unflatten(jax.tree.structure(state), specs)


def _specs_after_update(tx, params, state, specs, mesh, axis_name):
  """The specs that the state has after one update when it had `specs` before."""
  shard, whole = PartitionSpec(axis_name), PartitionSpec()
  found = []

  def one_update(params, state):
    grads = jax.tree.map(
        lambda x: axes.make_varying(jnp.zeros(x.shape, x.dtype), {axis_name}), params)
    updates, new_state = tx.update(grads, state, params)
    for path, leaf in jax.tree_util.tree_leaves_with_path(updates):
      if axis_name in axes.varying_axes(leaf):
        raise ValueError(
            f'updates of {jax.tree_util.keystr(path)} would differ between workers: local gradients get '
            f'through. Either nothing averages them (was axis_name={axis_name!r} given to dct_dp or '
            'compressed_mean?), or optax.masked around a compressed mean lets some pass: use its own '
            'mask= instead')
    for said, leaf in zip(visit(new_state), jax.tree.leaves(new_state), strict=True):
      differs = axis_name in axes.varying_axes(leaf)
      if differs and not jnp.shape(leaf):
        raise ValueError(
            f'the scalar {said.path} of the optimizer state would differ between '
            'workers. If it belongs to a scalar parameter, give that the shape (1,); if workers decide '
            'by it, they could wait for each other forever (optax.apply_if_finite around a compressed '
            'mean does that: use nonfinite= instead)')
      if differs and said.declared and said.rule is None:
        raise ValueError(f'{said.path} of the optimizer state differs between workers, which its class does not '
                         'say: name the field in @dct_jax.state.own')
      found.append(shard if differs else whole)
    return jnp.zeros(())

  world = mesh.shape[axis_name]
  spread = lambda x, s: jax.ShapeDtypeStruct(
      (x.shape[0] * world, *x.shape[1:]) if s == shard else x.shape, x.dtype)
  try:
    jax.eval_shape(
        jax.shard_map(one_update, mesh=mesh, in_specs=(whole, specs), out_specs=whole),
        jax.eval_shape(lambda p: p, params), jax.tree.map(spread, state, specs))
  except TypeError as error:
    if 'manual axis types' not in str(error):
      raise
    raise ValueError(
        'a part of the optimizer decides by local gradients whether to update, so that workers could '
        'decide differently (optax.apply_if_finite around a compressed mean does that: use '
        'nonfinite= instead)') from error
  return jax.tree.unflatten(jax.tree.structure(state), found)


def init(tx: optax.GradientTransformation, params: Any, mesh: Mesh,
         axis_name: str = 'data') -> tuple[Any, Any, Any]:
  """Places parameters and optimizer state on a mesh.

  Args:
    tx: any chain with a compressed mean in it.
    params: parameters; every process passes the same.
    mesh: from `make_mesh`.
    axis_name: axis of the workers.

  Returns:
    The parameters, replicated; the state, in which every worker has its own residual; and the
    state's partition specs for `shard_map`.
  """
  if axis_name not in mesh.shape:
    raise ValueError(f'the mesh has axes {tuple(mesh.shape)}, got {axis_name=}')
  specs = state_specs(tx, params, mesh, axis_name)
  workers = mesh.shape[axis_name]
  copies = lambda x, s: jnp.concatenate([x] * workers) if s == PartitionSpec(axis_name) else x

  def place(tree, shardings):
    return jax.jit(lambda t: t, out_shardings=shardings)(tree)

  everywhere = NamedSharding(mesh, PartitionSpec())
  params = place(params, jax.tree.map(lambda _: everywhere, params))
  shardings = jax.tree.map(lambda s: NamedSharding(mesh, s), specs)
  state = jax.jit(lambda p: jax.tree.map(copies, tx.init(p), specs),
                  out_shardings=shardings)(params)
  return params, state, specs


def vmap_axes(specs: Any) -> Any:
  """`in_axes` for a `vmap` that simulates the workers of `specs` on one device."""
  return jax.tree.map(lambda s: 0 if any(s) else None, specs,
                      is_leaf=lambda s: isinstance(s, PartitionSpec))
