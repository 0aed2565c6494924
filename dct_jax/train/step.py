"""Builders of the training and the evaluation step, and the batches that they take."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dct_jax import axes
from dct_jax import transport as transports
from dct_jax.contract import Stats
from dct_jax.state import find
from dct_jax.transforms import local_value_and_grad

BYTES = ('encoded_bytes', 'moved_bytes', 'sent_bytes', 'overflow_bytes')
COUNTS = ('nonfinite', 'corrupt', 'refused', 'drained')
NEVER = 1.2345678e38  # adding up how often it occurs makes a dependency that XLA does not see through
RESERVED = ('loss', *BYTES, 'density', *COUNTS, 'push_bytes', 'pull_bytes', 'dense_bytes')


def make_step(loss_fn: Callable, tx: optax.GradientTransformation, mesh: Mesh, specs: Any,
              axis_name: str = 'data', has_aux: bool = False,
              transport: transports.Transport | None = None) -> Callable:
  """One training step on all workers, compiled once.

  Args:
    loss_fn: (params, batch) -> loss of this worker's part of the batch, a mean over examples; with
      `has_aux` -> (loss, dict of scalars).
    tx: a chain with a compressed mean over `axis_name` in it.
    mesh: from `make_mesh`.
    specs: of the optimizer state, from `dct_jax.init`.
    axis_name: axis of the workers.
    has_aux: whether `loss_fn` returns scalars to log beside the loss.
    transport: from `dct_jax.connect`; the loss and the aux scalars are then averaged over it, together and
      faster than by XLA's collectives, and the step fails at once, by name, when a worker is gone.

  Returns:
    step(params, opt_state, batch) -> (params, opt_state, metrics). It takes over the memory of its
    first two arguments. Every leaf of the batch is split over workers on its first dimension
    (`shard_batch`). Metrics are scalars, equal on all workers: the loss and the aux scalars
    averaged over workers; `encoded_bytes`, `moved_bytes`, `sent_bytes` and `overflow_bytes` of one
    worker in this step, summed over the compressed means in `tx`; `density`, or `density/0`,
    `density/1`, ... if there are several; and the running counts `nonfinite`, `corrupt`, `refused` (of those that
    are not finite, under `nonfinite='raise'`) and `drained`; `run` raises for the two in the middle. A `push_pull`
    counts as a compressed mean, and has encoded `push_bytes` and `pull_bytes` besides. There are none
    of these if `tx` has no compressed mean.

  Raises:
    ValueError: for an unknown axis; from the step, for aux that is not a dict of scalars.
  """
  _check_axis(mesh, axis_name)
  value_and_grad = local_value_and_grad(loss_fn, axis_name, has_aux=has_aux)
  shard, whole = PartitionSpec(axis_name), PartitionSpec()
  mean = mean_over(axis_name, transport)

  def step(params, opt_state, batch):
    value, grads = value_and_grad(params, batch)
    loss, aux = value if has_aux else (value, {})
    updates, new_state = tx.update(grads, opt_state, params)
    metrics = metric_means({'loss': loss, **check_aux(aux)}, mean, updates) | accounts(new_state)
    return optax.apply_updates(params, updates), new_state, metrics

  return jax.jit(
      jax.shard_map(step, mesh=mesh, in_specs=(whole, specs, shard),
                    out_specs=(whole, specs, whole)),
      donate_argnums=(0, 1))


def make_eval(metric_fn: Callable, mesh: Mesh, axis_name: str = 'data') -> Callable:
  """One evaluation step: `metric_fn` on each worker's part of a batch, averaged over workers.

  Args:
    metric_fn: (params, batch) -> dict of scalars that are means over examples.
    mesh: from `make_mesh`.
    axis_name: axis of the workers.

  Returns:
    evaluate(params, batch) -> dict of scalars, equal on all workers.
  """
  _check_axis(mesh, axis_name)
  whole = PartitionSpec()

  def evaluate(params, batch):
    return metric_means(metric_fn(params, batch), mean_over(axis_name))

  return jax.jit(jax.shard_map(
      evaluate, mesh=mesh, in_specs=(whole, PartitionSpec(axis_name)), out_specs=whole))


def make_predictor(apply_fn: Callable, mesh: Mesh, axis_name: str = 'data') -> Callable:
  """(params, batch) -> NumPy outputs for all workers' examples, in order, on every process.

  Args:
    apply_fn: (params, batch) -> array with a row for each example, for one worker's part.
    mesh: from `make_mesh`.
    axis_name: axis of the workers.
  """
  _check_axis(mesh, axis_name)
  whole, shard = PartitionSpec(), PartitionSpec(axis_name)
  compiled = jax.jit(jax.shard_map(apply_fn, mesh=mesh, in_specs=(whole, shard), out_specs=shard))
  return lambda params, batch: gathered(compiled(params, batch))


def gathered(out: jax.Array) -> np.ndarray:
  """An array that is split over workers, whole; every process must ask."""
  out = out.block_until_ready()
  return np.asarray(out if jax.process_count() == 1 else multihost_utils.process_allgather(out, tiled=True))


def sum_batches(evaluate: Callable, params: Any, batches: Iterable[Any]) -> dict[str, float]:
  """Adds up what an evaluation step says about several batches.

  Each is waited for before the next one: several devices of one process can deadlock otherwise.
  """
  sums: dict[str, float] = {}
  for batch in batches:
    for name, x in jax.device_get(evaluate(params, batch)).items():
      sums[name] = sums.get(name, 0.0) + float(x)
  return sums


def local_workers(mesh: Mesh) -> list[int]:
  """Which of the mesh's workers, in their order, are devices of this process.

  Raises:
    ValueError: if there are none.
  """
  mine = [i for i, d in enumerate(mesh.devices.flat) if d.process_index == jax.process_index()]
  if not mine:
    raise ValueError(f'process {jax.process_index()} has no device in the mesh, got {mesh=}')
  return mine


def shard_batch(batch: Any, mesh: Mesh, axis_name: str = 'data') -> Any:
  """Turns each process's own examples into global arrays, split over workers on dimension 0.

  Args:
    batch: NumPy arrays with this process's examples; all processes pass equally many.
    mesh: from `make_mesh`.
    axis_name: axis of the workers.

  Raises:
    ValueError: if a leaf does not divide among the workers of this process.
  """
  _check_axis(mesh, axis_name)
  workers = len(local_workers(mesh))
  sharding = NamedSharding(mesh, PartitionSpec(axis_name))

  def place(path, x):
    if not jnp.shape(x) or len(x) % workers:
      raise ValueError(
          f'dimension 0 of the batch must divide among the {workers} workers of this process, got '
          f'shape={jnp.shape(x)} in batch{jax.tree_util.keystr(path)}')
    return jax.make_array_from_process_local_data(sharding, x)

  return jax.tree_util.tree_map_with_path(place, batch)


def share_batch(batch: Any, mesh: Mesh, axis_name: str = 'data') -> Any:
  """`shard_batch` for examples that every process has alike: each takes its share of them."""
  mine = lambda x: np.split(np.asarray(x), jax.process_count())[jax.process_index()]
  return shard_batch(jax.tree.map(mine, batch), mesh, axis_name)


def replicate(tree: Any, mesh: Mesh) -> Any:
  """Arrays that every process has alike, on all devices of the mesh."""
  whole = NamedSharding(mesh, PartitionSpec())
  return jax.tree.map(lambda x: place(np.asarray(x), whole), tree)


def place(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
  """An array that every process has whole, as one of which each holds its part."""
  return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def _check_axis(mesh, axis_name):
  if axis_name not in mesh.shape:
    raise ValueError(f'the mesh has axes {tuple(mesh.shape)}, got {axis_name=}')


def check_aux(aux: Any) -> dict:
  """The scalars beside a loss, or a ValueError."""
  if not isinstance(aux, dict):
    raise ValueError(f'aux must be a dict of scalars, got {type(aux)=}')
  taken = sorted(set(aux) & set(RESERVED))
  if taken:
    raise ValueError(f'aux must not use the names of the built-in metrics, got {taken=}')
  return aux


def metric_means(scalars: dict, mean: Callable, first: Any = ()) -> dict:
  """Means over workers in float32, whatever the type: a mean of integers would round.

  Args:
    scalars: by name.
    mean: from `mean_over`.
    first: what other exchanges of the same program give. XLA keeps its own collectives in one order on all
      workers, but knows nothing of a transport's: two processes that begin with different ones would wait for
      each other, if they have one thread.
  """
  for name, x in scalars.items():
    if jnp.shape(x):
      raise ValueError(f'metrics must be scalars, got shape={jnp.shape(x)} for {name=}')
  vector = jnp.stack([jnp.asarray(x, jnp.float32) for x in scalars.values()])
  if jax.process_count() > 1:
    vector += sum(jnp.sum(x.reshape(-1)[:1] == NEVER) for x in jax.tree.leaves(first))
  means = mean(vector)
  return dict(zip(scalars, means, strict=True))


def mean_over(axis_name: str, transport: transports.Transport | None = None) -> Callable:
  """vector -> its mean over workers."""
  if transport is None:
    return lambda x: lax.pmean(axes.make_varying(x, {axis_name}), axis_name)
  channel = transport.open()
  return lambda x: transports.mean(x, channel, transport.size)


def accounts(state: Any) -> dict:
  """What the compressed means of an optimizer say about this step."""
  stats = _stats(state)
  if not stats:
    return {}
  receipts = [s.receipt for s in stats]
  out = {name: sum(getattr(r, name) for r in receipts) for name in BYTES}
  several = len(stats) > 1
  out |= {f'density/{i}' if several else 'density': r.density for i, r in enumerate(receipts)}
  for node in find(state, lambda n: hasattr(type(n), 'metrics')):
    for name, x in node.metrics().items():  # amounts add up; of anything else the smallest is told
      join = jnp.add if name.endswith('_bytes') else jnp.minimum
      out[name] = join(out[name], x) if name in out else x
  return out | {name: sum(getattr(s, name) for s in stats) for name in COUNTS}


def skipped_steps(state: Any) -> jax.Array:
  """How often the compressed means of an optimizer met gradients that were not finite."""
  return sum((s.nonfinite for s in _stats(state)), jnp.uint32(0))


def _stats(state):
  return find(state, lambda n: isinstance(n, Stats))
