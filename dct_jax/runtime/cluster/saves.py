"""Files of a cluster: checkpoints by group that nodes come back from, and models that are published while it trains.

A file has its place only when all of it is written, and arrays are read back with a checksum. A directory counts when
its last file, which names the others, is there.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import time
import zipfile
import zlib
from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dct_jax.partition import Plan
from dct_jax.partition.graph import PARAMETER

KEEP = 2
TYPE = '|'  # between the name of an array and its type, where files do not know it


def write(path: str | os.PathLike, arrays: Mapping[str, np.ndarray]) -> None:
  """Writes arrays, all or nothing."""
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  new = path.with_name(f'.{path.name}.{os.getpid()}')
  with open(new, 'wb') as file:
    np.savez(file, **dict(_plain(k, np.asarray(x)) for k, x in arrays.items()))  # type: ignore[arg-type]
    file.flush()
    os.fsync(file.fileno())
  os.replace(new, path)


def read(path: str | os.PathLike) -> dict[str, np.ndarray]:
  """Reads them.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: if it is damaged.
  """
  try:
    with np.load(path, allow_pickle=False) as file:
      return dict(_typed(k, file[k]) for k in file.files)  # zip files have a checksum for every array
  except FileNotFoundError:
    raise
  except (zipfile.BadZipFile, OSError, ValueError, KeyError, TypeError, zlib.error) as error:
    raise ValueError(f'{path} is damaged: {error}') from None


def _plain(name: str, x: np.ndarray) -> tuple[str, np.ndarray]:
  """An array of a type that files know; the others, as bfloat16, are words, and their name says what they were."""
  if x.dtype.kind != 'V' and x.dtype.isbuiltin:
    return name, x
  return f'{name}{TYPE}{x.dtype.name}', x.view(f'u{x.dtype.itemsize}')


def _typed(name: str, x: np.ndarray) -> tuple[str, np.ndarray]:
  name, _, dtype = name.partition(TYPE)
  return name, x.view(jnp.dtype(dtype)) if dtype else x


def write_json(path: str | os.PathLike, content: Any) -> None:
  """Writes JSON, all or nothing."""
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  new = path.with_name(f'.{path.name}.{os.getpid()}')
  new.write_text(json.dumps(content, indent=1) + '\n')
  os.replace(new, path)


def file_of(node: str) -> str:
  """Name of a node's file: 'group0/trainer1' has 'group0.trainer1.npz'."""
  return node.replace('/', '.') + '.npz'


class Saves:
  """Numbered directories, of which the whole ones count.

  Args:
    directory: of all of them.
    keep: how many whole ones stay.
  """

  def __init__(self, directory: str | os.PathLike, keep: int = KEEP):
    self.directory, self.keep = pathlib.Path(directory), keep

  def begin(self) -> pathlib.Path:
    """A new directory to write to; it counts from `finish` on."""
    numbers = [int(p.name) for p in self._all()]
    place = self.directory / f'{max(numbers, default=0) + 1:06}'
    place.mkdir(parents=True)
    return place

  def finish(self, place: pathlib.Path, part: str, notes: Mapping[str, Any]) -> None:
    """Makes a part of a directory count, as a group's; older directories go."""
    write_json(place / f'{part}.json', {**notes, 'time': time.time()})
    for old in self.whole(part)[:-self.keep]:
      (old / f'{part}.json').unlink()
      if not list(old.glob('*.json')):
        shutil.rmtree(old, ignore_errors=True)

  def _all(self) -> list[pathlib.Path]:
    return sorted(p for p in self.directory.glob('[0-9]*') if p.is_dir()) if self.directory.is_dir() else []

  def whole(self, part: str) -> list[pathlib.Path]:
    """Directories whose part is whole, the newest last."""
    return [p for p in self._all() if (p / f'{part}.json').exists()]

  def newest(self, part: str, node: str) -> tuple[pathlib.Path, dict[str, np.ndarray]] | None:
    """A node's newest arrays that can be read, and where they are; None if none were ever saved.

    Raises:
      ValueError: if some were saved, and all of them are damaged.
    """
    damaged = []
    for place in reversed(self.whole(part)):
      try:
        return place, read(place / file_of(node))
      except (ValueError, FileNotFoundError) as error:
        damaged.append(str(error))  # an older one is better than none
    if damaged:
      raise ValueError(f'no checkpoint of {node} can be read: {"; ".join(damaged)}')
    return None

  def drop(self, place: pathlib.Path) -> None:
    """Deletes a directory of which nothing became whole."""
    if not list(place.glob('*.json')):
      shutil.rmtree(place, ignore_errors=True)

  def level(self, parts: Collection[str]) -> None:
    """Forgets what was saved after the newest directory that has all parts, so that all go on from the same one."""
    common = set.intersection(*({p.name for p in self.whole(part)} for part in parts)) if parts else set()
    for part in parts:
      for place in self.whole(part) if common else ():
        if place.name > max(common):
          (place / f'{part}.json').unlink()
          self.drop(place)


class Published:
  """Models that a training publishes, for those who serve predictions.

  Args:
    directory: that the training publishes to.
    plan: of its program.
  """

  PART = 'model'

  def __init__(self, directory: str | os.PathLike, plan: Plan):
    self._saves, self._plan = Saves(directory), plan

  def newest(self) -> tuple[Any, dict[str, Any]]:
    """Parameters of the newest whole model, as the user's function has them, and notes about it.

    Raises:
      FileNotFoundError: if none has been published.
      ValueError: if it is damaged, or of another plan.
    """
    for place in reversed(self._saves.whole(self.PART)):
      try:
        notes = json.loads((place / f'{self.PART}.json').read_text())
        return self._model(place, notes), {**notes, 'number': int(place.name)}
      except FileNotFoundError:
        continue  # it went while we were reading; there is a newer one or an older one
    raise FileNotFoundError(f'no model has been published in {self._saves.directory} yet')

  def _model(self, place: pathlib.Path, notes: Mapping[str, Any]) -> Any:
    graph, found = self._plan.graph, {}
    if notes['program'] != graph.fingerprint:
      raise ValueError(f'{place} is a model of another program ({notes["program"]}, this one is {graph.fingerprint})')
    for name in notes['files']:
      found.update(read(place / name))
    return model_of(self._plan, {int(k): x for k, x in found.items()})


def model_of(plan: Plan, slots: Mapping[int, Any]) -> Any:
  """Parameters as the user's function has them."""
  numbers = [k for k, s in enumerate(plan.graph.slots) if s.kind == PARAMETER]
  missing = [plan.graph.slots[k].path for k in numbers if k not in slots]
  if missing:
    raise ValueError(f'parameters are missing: {", ".join(missing[:5])}')
  dtype = lambda k: plan.graph.avals[plan.graph.slots[k].value].dtype
  leaves = [np.asarray(slots[k]).astype(dtype(k)) for k in numbers]
  return plan.join(jax.tree.unflatten(plan.graph.in_tree.children()[0], leaves))
