"""A check that what should be equal on all processes is."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from dct_jax.train import checksums


def check_replicas(tree: Any) -> None:
  """Compares a checksum of every replicated leaf over all processes that have it.

  Replicas that differ choose different branches of a `lax.switch` with collectives in it, which
  aborts or, worse, answers wrongly. So this runs at the start of training and after a restore; it
  reads each leaf once on the host and exchanges four bytes a leaf. All processes must call it.

  Args:
    tree: arrays; those that are not fully replicated are left alone. Processes may have different trees, as
      stages of a pipeline do: those are compared whose first leaves lie on the same devices.

  Raises:
    RuntimeError: if a leaf differs, on all processes alike.
  """
  if jax.process_count() == 1:
    return
  leaves = [(jax.tree_util.keystr(path), leaf)
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
            if isinstance(leaf, jax.Array) and leaf.is_fully_replicated]
  first: Any = leaves[0][1].sharding.device_set if leaves else ()
  group = min((d.id for d in first), default=0)
  counts = _gather([group, len(leaves)])  # before the checksums: different lengths could not be gathered
  sums = [checksums.crc(leaf.addressable_data(0)) for _, leaf in leaves]
  table = _gather(sums + [0] * (int(counts[:, 1].max()) - len(sums)))
  for one in np.unique(counts[:, 0]):
    here = counts[:, 0] == one
    _compare(['the number of leaves'], counts[here, 1:])
    names = [name for name, _ in leaves] if one == group else [f'leaf {i}' for i in range(table.shape[1])]
    _compare(names, table[here])


def _gather(numbers):
  return np.asarray(multihost_utils.process_allgather(np.array(numbers, np.uint32)))


def _compare(names, table):
  """`table` holds a row of numbers for each process."""
  differ = np.flatnonzero((table != table[:1]).any(axis=0))
  if differ.size:
    first = int(differ[0])
    raise RuntimeError(
        f'{differ.size} of {len(names)} replicated values differ between processes, the first is '
        f'{names[first]} with checksums {table[:, first].tolist()} by process; start all of them '
        'from the same seed, version and checkpoint')
