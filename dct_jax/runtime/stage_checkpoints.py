"""Checkpoints of a training in stages: every stage has its own, and all go on from the same step."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from dct_jax.train.checkpoint import Checkpoints

SLOTS = 64  # steps that a process may tell the others of


class StageCheckpoints:
  """As `Checkpoints`, for parameters and state by stage.

  A run can die after some stages have saved and before others have. So two checkpoints are kept at least, and
  the latest is the latest that all stages have.

  Args:
    directory: each stage gets one in it.
    config: as of `Checkpoints`.
    meshes: by stage, of the stages here.
    keep: as of `Checkpoints`, at least 2.
  """

  def __init__(self, directory: str | os.PathLike, config: Mapping[str, Any], meshes: Mapping[int, Mesh],
               keep: int = 2):
    self.directory, self.config = os.path.abspath(directory), config
    several = jax.process_count() > 1
    owners = {s: sorted({d.process_index for d in mesh.devices.flat}) if several else None
              for s, mesh in meshes.items()}
    self._stages = {s: Checkpoints(os.path.join(self.directory, f'stage{s}'), config, max(keep, 2), owners[s])
                    for s in meshes}

  def claim(self) -> None:
    """As of `Checkpoints`, of every stage of this process."""
    for c in self._stages.values():
      c.claim()

  def latest(self) -> int | None:
    """The last step that all stages have saved; every process must ask."""
    return max(self._common(), default=None)

  def _common(self):
    """Steps that all stages have saved."""
    mine = [set(c.steps()) for c in self._stages.values()]
    common = sorted(set.intersection(*mine))[-SLOTS:]
    if jax.process_count() > 1:
      told = np.array(common + [-1] * (SLOTS - len(common)), np.int64)
      every = np.asarray(multihost_utils.process_allgather(told))
      common = sorted(set.intersection(*(set(row.tolist()) for row in every)) - {-1})
    return common

  def _newest_whole(self):
    """The last step of which all stages have a checkpoint that is whole; later ones are set aside."""
    common, said = self._common(), []
    for step in reversed(common):
      mine = [problem for c in self._stages.values() if (problem := c.problem(step))]
      if not np.any(multihost_utils.process_allgather(np.uint32(len(mine)))):
        for c in self._stages.values():
          c.set_aside(common[common.index(step) + 1:])
        return step
      said += mine
      for problem in mine:
        logging.warning('%s', problem)
    if common:
      raise ValueError(f'no checkpoint in {self.directory} is whole: {"; ".join(said) or "another process says why"}')
    raise FileNotFoundError(f'there is no checkpoint of all stages in {self.directory}')

  def save(self, step: int, params: dict, opt_state: dict, totals: Mapping[str, int] | None = None) -> None:
    """Saves every stage of this process."""
    for s, checkpoints in self._stages.items():
      checkpoints.save(step, params[s], opt_state[s], totals)

  def totals(self, step: int) -> dict[str, int]:
    """Bytes until `step` as they were saved."""
    return next(iter(self._stages.values())).totals(step)

  def restore(self, params: dict, opt_state: dict, specs: dict,
              meshes: Mapping[int, Mesh]) -> tuple[dict, dict, int]:
    """Restores every stage of this process, all from the newest step of which every stage has a whole checkpoint.

    Of later ones those that are damaged are set aside, and those that only some stages have are deleted.

    Raises:
      FileNotFoundError: if there is no step that all stages have.
      ValueError: as of `Checkpoints.restore`.
    """
    step = self._newest_whole()
    params, opt_state = dict(params), dict(opt_state)
    for s, checkpoints in self._stages.items():
      params[s], opt_state[s], _ = checkpoints.restore(params[s], opt_state[s], specs[s], meshes[s], step=step)
      checkpoints.forget_after(step)
    return params, opt_state, step

  def mean_params(self, params: dict, meshes: Mapping[int, Mesh], last: int = 5, every: int = 1) -> dict:
    """As of `Checkpoints`, of every stage of this process."""
    return {s: c.mean_params(params[s], meshes[s], last, every) for s, c in self._stages.items()}
