"""Arrays of some processes among several, as an item of an orbax checkpoint.

Orbax writes arrays that all processes have a part in; those of a single one it takes for a mistake, and those
of a group without the first process it does not find again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp


class LocalArrays(ocp.CheckpointHandler):
  """A NumPy archive of each process: arrays that are equal everywhere are in the first one's alone.

  Args:
    processes: who has a part in it, in the order in which arrays are split over them.
  """

  def __init__(self, processes: Sequence[int]):
    self._processes = list(processes)

  def save(self, directory, args):
    rank = self._processes.index(jax.process_index())
    mine = {k: x for k, x in args.item.items() if not rank or not _is_whole(x)}
    arrays: dict[str, Any] = {k: _local(x) for k, x in mine.items()}
    np.savez(directory / f'arrays{rank}.npz', **arrays)

  def restore(self, directory, args):
    count = len(list(directory.glob('arrays*.npz')))  # of those that saved, who may have been more or fewer
    files = [np.load(directory / f'arrays{rank}.npz') for rank in range(count)]
    try:
      parts = {k: [file[k] for file in files if k in file] for k in args.item}
      return {k: x[0] if len(x) == 1 else np.concatenate(x) for k, x in parts.items()}
    finally:
      for file in files:
        file.close()


def _is_whole(x):
  return not isinstance(x, jax.Array) or x.is_fully_replicated


def _local(x):
  """What this process has of an array: all of it, or its part along the first dimension."""
  if _is_whole(x):
    return np.asarray(x)
  shards = sorted(x.addressable_shards, key=lambda shard: shard.index[0].start or 0)
  return np.concatenate([np.asarray(shard.data) for shard in shards])


@ocp.args.register_with_handler(LocalArrays, for_save=True)  # type: ignore[arg-type]
@dataclasses.dataclass
class LocalSave(ocp.args.CheckpointArgs):
  """Arrays by name."""

  item: dict[str, Any]


@ocp.args.register_with_handler(LocalArrays, for_restore=True)  # type: ignore[arg-type]
@dataclasses.dataclass
class LocalRestore(ocp.args.CheckpointArgs):
  """The names."""

  item: dict[str, Any]
