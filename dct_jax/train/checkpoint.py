"""Checkpoints that keep every worker's residual."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dct_jax.train import checksums, claims, replicas
from dct_jax.train import reshard as resharding
from dct_jax.train.local_arrays import LocalArrays, LocalRestore, LocalSave
from dct_jax.train.step import place, replicate


class Checkpoints:
  """A directory of checkpoints of one run.

  Every process makes one, with the same directory on a shared file system, and calls `save` and
  `restore` at the same steps. Beside the arrays, each checkpoint has a JSON file with the step, the
  number of workers, the configuration, and the name, shape, type and checksum of every array. Nothing
  is restored into a run that differs in one of them, but for the number of workers. What is on the disk
  may rot: checksums are compared before anything is restored.

  Args:
    directory: made by the first `save`.
    config: what makes this run what it is, for `json.dumps`. Leave out the number of workers if
      it may change.
    keep: how many of the latest checkpoints stay.
    processes: which ones have a part in it, if not all; those of one stage of a pipeline.

  Raises:
    ValueError: if the configuration is not JSON, or `keep` is less than 1.
  """

  def __init__(self, directory: str | os.PathLike, config: Mapping[str, Any], keep: int = 3,
               processes: Sequence[int] | None = None):
    if keep < 1:
      raise ValueError(f'keep must be at least 1, got {keep=}')
    try:
      self.config = json.loads(json.dumps(dict(config), sort_keys=True))
    except TypeError as error:
      raise ValueError(f'config must be of JSON types, got {config=}') from error
    self.directory = os.path.abspath(directory)
    self._keep, self._processes = keep, processes
    self._apart = processes is not None  # not an affair of all processes, which is all that orbax knows
    self._open: ocp.CheckpointManager | None = None
    self._saved: int | None = None

  def _manager(self):
    if self._open is None:
      group, create = ocp.options.MultiprocessingOptions(), True
      if self._processes is not None:
        os.makedirs(self.directory, exist_ok=True)  # orbax makes it only for all processes together
        create = False
        group = ocp.options.MultiprocessingOptions(
            primary_host=min(self._processes), active_processes=set(self._processes),
            barrier_sync_key_prefix=os.path.basename(self.directory))
      options = ocp.CheckpointManagerOptions(max_to_keep=self._keep, enable_async_checkpointing=False,
                                             create=create, multiprocessing_options=group)
      arrays = ocp.StandardCheckpointHandler(multiprocessing_options=group)
      handlers = {'arrays': arrays if self._processes is None else LocalArrays(self._processes),
                  'notes': ocp.JsonCheckpointHandler(multiprocessing_options=group)}
      self._open = ocp.CheckpointManager(self.directory, options=options, item_handlers=handlers)
    return self._open

  def claim(self) -> None:
    """Takes the directory for this run: a second one is refused while this one lives.

    Raises:
      ValueError: if a run of other processes is at work there.
    """
    if jax.process_index() == self._first:
      claims.claim(self.directory)

  @property
  def _first(self):
    """The process that does what only one may do."""
    return min(self._processes) if self._processes else 0

  def steps(self) -> list[int]:
    """Those that were saved and are still there."""
    return sorted(self._manager().all_steps()) if os.path.isdir(self.directory) else []

  def forget_after(self, step: int) -> None:
    """Deletes what was saved after a step."""
    for later in [s for s in self.steps() if s > step]:
      self._manager().delete(later)

  def latest(self) -> int | None:
    """The last step that was saved; None if there is none."""
    return self._manager().latest_step() if os.path.isdir(self.directory) else None

  def save(self, step: int, params: Any, opt_state: Any,
           totals: Mapping[str, int] | None = None) -> None:
    """Saves, and returns when it is written.

    Args:
      step: steps taken so far.
      params: replicated, or each group's as `dct_jax.init_groups` places them.
      opt_state: with every worker's residual in it.
      totals: bytes so far, for a log that goes on.

    Raises:
      ValueError: if the directory holds this step or a later one already, or a run of others is at work there.
    """
    if step == self._saved:
      return
    latest = self.latest()
    if latest is not None and latest >= step:
      raise ValueError(f'{self.directory} holds a checkpoint of step {latest} already, got '
                       f'{step=}; restore it, or use another directory')
    arrays = _named(params, opt_state)
    # Every process must describe the same thing: only process 0 writes it.
    notes = {'step': step, 'workers': _workers((params, opt_state)), 'config': self.config,
             'totals': dict(totals or {}), 'arrays': _describe(arrays)}
    if not self._apart:  # archives of single processes have checksums of their own
      notes['checksums'] = checksums.of(arrays)
    notes = checksums.seal(notes)
    self.claim()
    self._manager().save(step, args=ocp.args.Composite(
        arrays=(LocalSave if self._apart else ocp.args.StandardSave)(arrays), notes=ocp.args.JsonSave(notes)))
    self._saved = step

  def totals(self, step: int) -> dict[str, int]:
    """Bytes until `step` as they were saved; empty if it was not."""
    return self._notes(step)['totals'] if step in self.steps() else {}

  def restore(self, params: Any, opt_state: Any, specs: Any, mesh: Mesh, axis_name: str = 'data',
              step: int | None = None, conserve: str = 'sum') -> tuple[Any, Any, int]:
    """Restores bit for bit; onto another number of workers, with the sum of residuals conserved.

    See `reshard` for who gets what then. With a new number of workers each process reads all
    workers' residuals.

    Where each group has parameters of its own, give `axis_name` the axis of the groups: they may be more or fewer then
    (`between_groups`), of as many workers each as before.

    Args:
      params: as `dct_jax.init` or `dct_jax.init_groups` made them, for their shapes.
      opt_state: likewise.
      specs: of `opt_state`.
      mesh: to place them on.
      axis_name: axis of the workers, or of the groups.
      step: which one; unless given the latest that is whole. Later ones, which are damaged, are set aside then, as
        `damaged-STEP`, and the log says so.
      conserve: 'sum' or 'mean' of the residuals, if the number of workers has changed.

    Returns:
      params, opt_state and the step.

    Raises:
      FileNotFoundError: if there is no such checkpoint.
      ValueError: if it is damaged (unless given, if all of them are), or of another configuration, model or optimizer.
      RuntimeError: if processes have restored different values.
    """
    if conserve not in resharding.CONSERVE:
      raise ValueError(f'conserve must be one of {resharding.CONSERVE}, got {conserve=}')
    restored = lambda at: self._restored(params, opt_state, specs, mesh, axis_name, at, conserve)
    if step is not None:
      return restored(self._whole(self._find(step)))
    step = self.newest_whole()
    try:
      return restored(step)
    except _Damaged as error:  # in what orbax keeps beside the arrays
      if step == self.steps()[0]:
        raise
      logging.warning('%s', error)
    self.set_aside([step])
    return self.restore(params, opt_state, specs, mesh, axis_name, None, conserve)

  def _restored(self, params, opt_state, specs, mesh, axis_name, step, conserve):
    notes = self._notes(step)
    _compare_configs(notes['config'], self.config)
    old, new = notes['workers'], mesh.shape[axis_name]
    rules = dict(zip(_named((), opt_state), resharding.rules(opt_state), strict=True))
    resharding.check(rules.values(), old, new)
    places = _named(jax.tree.map(lambda x: _spec(x, axis_name), params), specs)
    if any(any(places[k]) for k in _named(params, ())):
      rules = {k: resharding.between_groups(rules.get(k, resharding.MERGE)) for k in places}
    own = {k for k, spec in places.items() if any(spec)}
    _compare_arrays(notes['arrays'], _describe(_named(params, opt_state)), own, old, new)
    moved = own if old != new else set()
    arrays = self._read(step, {
        k: _target(notes['arrays'][k], None if k in moved or self._apart else NamedSharding(mesh, spec))
        for k, spec in places.items()})
    if self._apart:
      arrays |= {k: place(arrays[k], NamedSharding(mesh, places[k])) for k in arrays if k not in moved}
    for k in moved:
      arrays[k] = _spread(arrays[k], old, new, NamedSharding(mesh, places[k]), rules[k], conserve)
    tree = jax.tree.unflatten(jax.tree.structure((params, opt_state)), arrays.values())
    if jax.process_count() > 1:
      replicas.check_replicas(tree)
    self._saved = step
    return *tree, step

  def mean_params(self, params: Any, mesh: Mesh, last: int = 5, every: int = 1) -> Any:
    """The mean of the parameters of the last checkpoints, which often does better than any of them.

    Args:
      params: for their structure.
      mesh: to place it on.
      last: how many, at most; those that `keep` has kept.
      every: only steps that are multiples of this, and the newest: what an interrupted run has saved in between
        would make its mean another one.

    Raises:
      FileNotFoundError: if there is no checkpoint.
      ValueError: if `last` is less than 1, or a checkpoint is damaged.
    """
    if last < 1:
      raise ValueError(f'last must be at least 1, got {last=}')
    self._find(None)
    known = self.steps()
    names = list(_named(params, ()))
    steps = [s for s in known if s % every == 0 or s == known[-1]][-last:]
    sums = [np.zeros(x.shape) for x in jax.tree.leaves(params)]
    for step in map(self._whole, steps):
      # Orbax reads all or nothing; only parameters are kept.
      arrays = self._read(step, {k: _target(v, None) for k, v in self._notes(step)['arrays'].items()})
      for total, name in zip(sums, names, strict=True):
        total += arrays[name]
    leaves = [(x / len(steps)).astype(p.dtype) for x, p in zip(sums, jax.tree.leaves(params), strict=True)]
    return replicate(jax.tree.unflatten(jax.tree.structure(params), leaves), mesh)

  def newest_whole(self) -> int:
    """Finds the newest checkpoint that is whole, and sets later ones aside; every process must ask.

    Raises:
      FileNotFoundError: if there is no checkpoint.
      ValueError: if all of them are damaged.
    """
    self._find(None)
    known, said = self.steps(), []
    for step in reversed(known):
      problem = self._agreed_problem(step)
      if problem is None:
        self.set_aside(known[known.index(step) + 1:])
        return step
      said.append(problem)
      logging.warning('%s', problem)
    raise ValueError(f'no checkpoint in {self.directory} is whole: {"; ".join(said)}')

  def problem(self, step: int) -> str | None:
    """What is wrong with a checkpoint, as this process reads it; None if it is whole."""
    try:
      me = jax.process_index()
      alone = ocp.options.MultiprocessingOptions(primary_host=me, active_processes={me})
      item = lambda handler, name, args: ocp.Checkpointer(handler, multiprocessing_options=alone).restore(
          pathlib.Path(self.directory, str(step), name), args=args)
      notes = item(ocp.JsonCheckpointHandler(multiprocessing_options=alone), 'notes', ocp.args.JsonRestore())
      if not checksums.sealed(notes):
        return self._is_damaged(step, 'its notes have changed')
      targets = {k: _target(v, None) for k, v in notes['arrays'].items()}
      if self._apart:
        item(LocalArrays(()), 'arrays', LocalRestore(targets))
        return None
      arrays = item(ocp.StandardCheckpointHandler(multiprocessing_options=alone), 'arrays',
                    ocp.args.StandardRestore(targets))
      wrong = checksums.damaged({k: arrays[k] for k in targets}, notes['checksums'])
      return self._is_damaged(step, f'{", ".join(wrong)} have changed') if wrong else None
    except Exception as error:  # JSON, tensorstore, zip and orbax each have their own
      return self._is_damaged(step, error)

  def _is_damaged(self, step, why):
    return (f'the checkpoint of step {step} in {self.directory} is damaged or was not written by dct_jax: '
            f'{textwrap.shorten(str(why), 300)}')

  def _agreed_problem(self, step):
    """What the first process finds, as all see the same files; those of a stage's processes are looked at by each."""
    if self._apart or jax.process_count() == 1:
      return self.problem(step)
    problem = self.problem(step) if jax.process_index() == 0 else None
    bad = bool(multihost_utils.broadcast_one_to_all(np.uint32(problem is not None)))
    return (problem or self._is_damaged(step, 'the log of process 0 says why')) if bad else None

  def _whole(self, step):
    """The step, if its checkpoint is whole."""
    problem = self._agreed_problem(step)
    if problem is not None:
      raise ValueError(problem)
    return step

  def set_aside(self, steps: Sequence[int]) -> None:
    """Renames what is damaged to `damaged-STEP`: another checkpoint of that step will come. Every process must ask."""
    if not steps:
      return
    if jax.process_index() == self._first:
      for step in steps:
        place = pathlib.Path(self.directory, str(step))
        shutil.rmtree(aside := place.with_name(f'damaged-{step}'), ignore_errors=True)
        place.rename(aside)
    if jax.process_count() > 1:
      multihost_utils.sync_global_devices('damaged checkpoints are set aside')
    self._manager().reload()

  def _find(self, step):
    latest = self.latest()
    if latest is None:
      raise FileNotFoundError(f'there is no checkpoint in {self.directory}')
    known = self.steps()
    if step is not None and step not in known:
      raise FileNotFoundError(f'{self.directory} has checkpoints of steps {known}, got {step=}')
    return latest if step is None else step

  def _notes(self, step):
    return self._guarded(step, ocp.args.Composite(notes=ocp.args.JsonRestore())).notes

  def _read(self, step, targets):
    ask = LocalRestore if self._apart else ocp.args.StandardRestore
    restored = self._guarded(step, ocp.args.Composite(arrays=ask(targets)))
    return {k: restored.arrays[k] for k in targets}

  def _guarded(self, step, args):
    try:
      return self._manager().restore(step, args=args)
    except Exception as error:  # JSON, tensorstore and orbax each have their own
      raise _Damaged(self._is_damaged(step, error)) from error


class _Damaged(ValueError):
  """A checkpoint that cannot be read."""


def _named(params, opt_state):
  """All leaves by their paths, in the order of the tree (params, opt_state)."""
  leaves = jax.tree_util.tree_leaves_with_path(
      {'0': params, '1': opt_state}, is_leaf=lambda x: isinstance(x, PartitionSpec))
  names = {'0': 'params', '1': 'opt_state'}
  return {names[path[0].key] + jax.tree_util.keystr(path[1:]): leaf for path, leaf in leaves}


def _describe(arrays):
  return {k: {'shape': list(x.shape), 'dtype': x.dtype.name} for k, x in arrays.items()}


def _workers(tree):
  """The size of the axis over which parameters, or else the state, are sharded."""
  meshes = [(x.sharding.mesh, x.sharding.spec) for x in jax.tree.leaves(tree)
            if isinstance(getattr(x, 'sharding', None), NamedSharding)]
  for mesh, spec in meshes:
    if any(spec):
      return mesh.shape[spec[0]]
  return meshes[0][0].size if meshes else 1


def _spec(param, axis_name):
  """Where a parameter lies: everywhere, unless each group has its own."""
  mine = PartitionSpec(axis_name)
  return mine if getattr(getattr(param, 'sharding', None), 'spec', None) == mine else PartitionSpec()


def differing(saved: Mapping[str, Any], mine: Mapping[str, Any]) -> list[str]:
  """Keys of what two configurations do not have in common."""
  return [key for key in sorted(saved.keys() | mine.keys())
          if key not in saved or key not in mine or saved[key] != mine[key]]


def _compare_configs(saved, mine):
  for key in differing(saved, mine):
    raise ValueError(
        f'the checkpoint was made with another configuration: {key!r} was '
        f'{saved.get(key, "not there")!r}, got {mine.get(key, "nothing")!r}')


def _compare_arrays(saved, mine, own, old, new):
  """`own` names the arrays of which every worker has its part; they grow with the workers."""
  for key in sorted(set(saved) | set(mine)):
    if key not in saved or key not in mine:
      has, lacks = ('checkpoint', 'run') if key in saved else ('run', 'checkpoint')
      raise ValueError(f'the checkpoint is of another model or optimizer: the {has} has {key}, '
                       f'the {lacks} does not')
    expected = dict(mine[key])
    if key in own:
      first, *rest = expected['shape']
      expected['shape'] = [first // new * old, *rest]
    if saved[key] != expected:
      raise ValueError(f'the checkpoint is of another model or optimizer: {key} was '
                       f'{saved[key]}, got {expected} (with {old} workers)')


def _target(description, sharding):
  """What orbax should make of an array: a jax.Array with a sharding, or a NumPy array without."""
  shape, dtype = tuple(description['shape']), np.dtype(description['dtype'])
  if sharding is None:
    return np.empty(shape, dtype)
  return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def _spread(array, old, new, sharding, rule, conserve):
  rows = array.shape[0] // old

  def part(index):
    worker = (index[0].start or 0) // rows
    mine = resharding.reshard(array, old, new, worker, rule, conserve)
    return mine[(slice(None), *index[1:])]  # of a group, what a worker of it has

  return jax.make_array_from_callback((rows * new, *array.shape[1:]), sharding, part)
