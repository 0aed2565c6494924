"""Arrays of one process among several, as an item of an orbax checkpoint.

Orbax writes arrays that all processes have a part in; those of a single one it takes for a mistake.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import orbax.checkpoint as ocp


class LocalArrays(ocp.CheckpointHandler):
  """One NumPy archive."""

  def save(self, directory, args):
    arrays: dict[str, Any] = {k: np.asarray(x) for k, x in args.item.items()}
    np.savez(directory / 'arrays.npz', **arrays)

  def restore(self, directory, args):
    with np.load(directory / 'arrays.npz') as file:
      return {k: file[k] for k in args.item}


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
