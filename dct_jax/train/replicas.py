"""A check that what should be equal on all workers is."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dct_jax.kernels import hashing


def check_replicas(tree: Any) -> None:
  """Compares a hash of every replicated leaf over all devices, of all processes, that have it.

  Replicas that differ choose different branches of a `lax.switch` with collectives in it, which aborts or, worse,
  answers wrongly; or they are different models from then on, in silence. So this runs at the start of training, after a
  restore, and every so often in between (`run(compare_every=)`). Every device hashes its own copy, each leaf to an
  integer of 32 bits, and four bytes a leaf and device are exchanged. All processes must call it.

  Args:
    tree: arrays; those that are not fully replicated are left alone. Processes may have different trees, as
      stages of a pipeline do: those are compared whose first leaves lie on the same devices.

  Raises:
    RuntimeError: if a leaf differs, on all processes alike; it names the leaf and the workers.
  """
  leaves = [(jax.tree_util.keystr(path), leaf)
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
            if isinstance(leaf, jax.Array) and leaf.is_fully_replicated]
  names = [name for name, _ in leaves]
  if jax.process_count() == 1 and all(len(leaf.sharding.device_set) == 1 for _, leaf in leaves):
    return
  workers, hashes = _hashes([leaf for _, leaf in leaves])
  if jax.process_count() == 1:
    return _compare(names, workers, hashes)
  first: Any = leaves[0][1].sharding.device_set if leaves else ()
  group = min((d.id for d in first), default=0)
  counts = _gather([group, len(workers), len(leaves)])  # before the hashes: different lengths could not be gathered
  mine = np.zeros(counts[:, 1:].max(axis=0) + [0, 1], np.uint32)
  mine[:len(workers), 0], mine[:len(workers), 1:1 + len(leaves)] = workers, hashes
  table = _gather(mine)
  for one in np.unique(counts[:, 0]):
    here = np.flatnonzero(counts[:, 0] == one)
    rows = np.concatenate([table[p, :counts[p, 1]] for p in here])
    of_rows = np.repeat(counts[here, 2:], counts[here, 1], axis=0)
    _compare(['the number of leaves'], rows[:, 0], of_rows)
    called = names if one == group else [f'leaf {i}' for i in range(counts[here[0], 2])]
    _compare(called, rows[:, 0], rows[:, 1:1 + len(called)])


def _gather(numbers):
  return np.asarray(multihost_utils.process_allgather(np.asarray(numbers, np.uint32)))


def _hashes(leaves: Sequence[jax.Array]) -> tuple[np.ndarray, np.ndarray]:
  """Workers of this process, and uint32[workers, leaves]."""
  shardings = {leaf.sharding for leaf in leaves}
  meshes = {s.mesh for s in shardings if isinstance(s, NamedSharding)}
  if len(meshes) != 1 or len(shardings) != sum(isinstance(s, NamedSharding) for s in shardings):
    whole = [leaf.addressable_data(0) for leaf in leaves]  # of several kinds: this process's first copy
    sums = np.array([_hash(x) for x in whole], np.uint32).reshape(1, -1)
    return np.array([jax.process_index()]), sums
  shards = _hash_everywhere(meshes.pop())(list(leaves)).addressable_shards
  return (np.array([s.index[0].start or 0 for s in shards]), np.concatenate([np.asarray(s.data) for s in shards]))


@functools.cache
def _hash_everywhere(mesh: Mesh) -> Callable[[list[jax.Array]], jax.Array]:
  """Replicated arrays -> uint32[workers, arrays], a row from each device."""
  row = lambda leaves: jnp.stack([_hash(x) for x in leaves])[None]
  return jax.jit(jax.shard_map(row, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(mesh.axis_names),
                               check_vma=False))


@jax.jit
def _hash(x: jax.Array) -> jax.Array:
  """All bits of an array as one number: the checksum of messages."""
  if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
    x = jax.random.key_data(x)
  if jnp.iscomplexobj(x):
    x = jnp.stack([x.real, x.imag])
  if x.dtype.itemsize < 4:
    whole = jnp.uint8 if x.dtype.itemsize == 1 else jnp.uint16
    x = x.astype(whole) if x.dtype == bool else jax.lax.bitcast_convert_type(x, whole)
  words = x.astype(jnp.uint32) if x.dtype.itemsize < 4 else jax.lax.bitcast_convert_type(x, jnp.uint32)
  return hashing.checksum(words.reshape(-1), jnp.uint32(words.size), skip=None)


def _compare(names, workers, table):
  """`table` has a row of numbers for each of the workers."""
  differ = np.flatnonzero((table != table[:1]).any(axis=0))
  if not differ.size:
    return
  first = int(differ[0])
  said = [f'workers {sorted(workers[table[:, first] == x].tolist())} have {int(x):#x}'
          for x in dict.fromkeys(table[:, first].tolist())]
  raise RuntimeError(
      f'{differ.size} of {len(names)} replicated values differ between workers, the first is {names[first]}, of which '
      f'{", ".join(said)}: start all of them from the same seed, version and checkpoint; if they were equal before, '
      'memory or the network is at fault')
