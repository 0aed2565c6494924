"""A training step in three programs, so that the clock can tell computing from communicating."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from dct_jax import axes


def make_sectioned_step(local: Callable, exchange: Callable, update: Callable, mesh: Mesh, *,
                        batch_spec: PartitionSpec | None = None, axis_name: str = 'data',
                        check_vma: bool = True) -> Callable:
  """A step for `run` whose sections are compiled, waited for and timed one by one.

  XLA fuses and reorders what is in one program, and says nothing about where the time went. Three programs
  cost two more dispatches a step (well below a millisecond), and nothing overlaps; XLA on a CPU does not
  overlap collectives with computation anyway. Workers meet once, for the mean of the scalars, at the end of the
  first section: waiting for a slower worker counts as computing, and the second section begins on all of them
  at the same time.

  Args:
    local: (params, opt_state, batch) -> (message, dict of float scalars); each worker for itself.
    exchange: message -> (reduced, dict of scalars), equal on all workers: it communicates.
    update: (params, opt_state, batch, reduced) -> (params, opt_state); the same everywhere. Of a batch that is
      split over workers it sees its worker's part, which must not find its way into what it returns.
    mesh: from `make_mesh`.
    batch_spec: how batches lie on the mesh; split over workers on dimension 0 unless given.
    axis_name: axis of the workers.
    check_vma: whether JAX must see that all workers get the same from `exchange`; False for algorithms that
      it cannot see through, such as those made of `ppermute`.

  Returns:
    step(params, opt_state, batch) -> (params, opt_state, metrics); it takes over the memory of the first
    two. Metrics are the scalars of `local`, averaged over workers, those of `exchange`, and
    `local_seconds`, `exchange_seconds`, `update_seconds` on this process's clock; compiling is in none of them.
  """
  shard, whole = PartitionSpec(axis_name), PartitionSpec()
  batch_spec = shard if batch_spec is None else batch_spec

  def compute(params, opt_state, batch):
    message, scalars = local(params, opt_state, batch)
    means = lax.pmean({k: axes.make_varying(jnp.asarray(v, jnp.float32), {axis_name})
                       for k, v in scalars.items()}, axis_name)
    # Messages have scalars in them, which could not be split over workers: one more dimension.
    return jax.tree.map(lambda x: axes.make_varying(x, {axis_name})[None], message), means

  def communicate(message):
    return exchange(jax.tree.map(lambda x: x[0], message))

  def section(function, in_specs, out_specs, donate=(), check=True):
    return _Section(jax.jit(jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs,
                                          check_vma=check), donate_argnums=donate))

  first = section(compute, (whole, whole, batch_spec), (shard, whole))
  second = section(communicate, (shard,), whole, check=check_vma)
  third = section(update, (whole, whole, batch_spec, whole), whole, donate=(0, 1))

  def step(params, opt_state, batch):
    (message, means), computing = first(params, opt_state, batch)
    (reduced, account), communicating = second(message)
    (params, opt_state), updating = third(params, opt_state, batch, reduced)
    seconds = {'local_seconds': computing, 'exchange_seconds': communicating, 'update_seconds': updating}
    return params, opt_state, means | account | {k: np.float64(v) for k, v in seconds.items()}

  return step


class _Section:
  """A program and its clock."""

  def __init__(self, function):
    self._function, self._compiled = function, None

  def __call__(self, *args) -> tuple[Any, float]:
    if self._compiled is None:
      self._compiled = self._function.lower(*args).compile()
    start = time.perf_counter()
    out = jax.block_until_ready(self._compiled(*args))
    return out, time.perf_counter() - start
