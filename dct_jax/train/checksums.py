"""Checksums of what a checkpoint holds: of every worker's part of every array, and of the notes beside them."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils


def crc(array: Any) -> int:
  """The CRC-32 of an array's bytes."""
  return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def seal(notes: Mapping[str, Any]) -> dict[str, Any]:
  """Returns notes with a checksum of themselves."""
  return {**notes, 'crc': _of_notes(notes)}


def sealed(notes: Mapping[str, Any]) -> bool:
  """Whether notes are what `seal` has made of them."""
  return notes.get('crc') == _of_notes({k: v for k, v in notes.items() if k != 'crc'})


def _of_notes(notes):
  return zlib.crc32(json.dumps(notes, sort_keys=True).encode())


def of(arrays: Mapping[str, Any]) -> dict[str, dict[str, list[int]]]:
  """Checksums of arrays by name; all processes that have a part of them must call it.

  Returns:
    Name -> the shape of a worker's part, and a checksum for each part, in the order in which they lie in the array.
  """
  shapes = {k: _part(x) for k, x in arrays.items()}
  counts = [math.prod(_grid(x.shape, shapes[k])) for k, x in arrays.items()]
  first = dict(zip(arrays, np.cumsum([0, *counts[:-1]]).tolist(), strict=True))
  table = np.zeros(sum(counts), np.uint32)
  for name, array in arrays.items():
    for number, part in _parts(array, shapes[name]):
      table[first[name] + number] = crc(part)
  if not all(_is_here(x) for x in arrays.values()):
    table = np.asarray(multihost_utils.process_allgather(table)).max(axis=0)  # 0 of what a process does not have
  return {k: {'part': list(shapes[k]), 'crc': table[first[k]:first[k] + n].tolist()}
          for k, n in zip(arrays, counts, strict=True)}


def damaged(arrays: Mapping[str, np.ndarray], sums: Mapping[str, Mapping[str, Sequence[int]]]) -> list[str]:
  """Names of whole arrays that are not what `of` has seen."""
  wrong = lambda k: [crc(p) for _, p in _parts(arrays[k], tuple(sums[k]['part']))] != list(sums[k]['crc'])
  return [k for k in arrays if k not in sums or wrong(k)]


def _is_here(x):
  """Whether this process has all of an array."""
  return not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated


def _part(x):
  """The shape of what one device has of an array."""
  return x.sharding.shard_shape(x.shape) if isinstance(x, jax.Array) else np.shape(x)


def _grid(shape, part):
  return tuple(whole // max(mine, 1) if whole else 1 for whole, mine in zip(shape, part, strict=True))


def _parts(x, part) -> Iterator[tuple[int, np.ndarray]]:
  """Parts that are here, with their numbers."""
  grid = _grid(x.shape, part)
  if isinstance(x, jax.Array):
    for shard in x.addressable_shards:
      place = tuple((s.start or 0) // max(mine, 1) for s, mine in zip(shard.index, part, strict=True))
      yield _number(place, grid), np.asarray(shard.data)
    return
  for place in np.ndindex(*grid):
    yield _number(place, grid), x[tuple(slice(i * n, (i + 1) * n) for i, n in zip(place, part, strict=True))]


def _number(place, grid):
  return int(np.ravel_multi_index(place, grid)) if place else 0
