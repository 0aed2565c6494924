"""A node's parameters and optimizer state, in memory that many nets read and write at the same time without a lock."""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from dct_jax import kernels
from dct_jax.partition import codecs
from dct_jax.partition.graph import Graph


class Store:
  """Slots of a program.

  A net reads a snapshot, and its update is of what is there by then. Numbers that two nets change at the same moment
  may keep one of the changes, as in Hogwild; what one net does alone is exact to the bit.

  Args:
    graph: of the program.
    slots: number of a slot -> its value to begin with, which is copied.

  Attributes:
    writes: number of updates so far.
    staleness: number of others' updates between a net's read and its own update -> how often that was.
  """

  def __init__(self, graph: Graph, slots: Mapping[int, Any]):
    self._avals = {k: graph.avals[graph.slots[k].value] for k in slots}
    self._arrays = {k: _owned(codecs.encode(x, codecs.EXACT)) for k, x in slots.items()}
    self._counting = threading.Lock()  # of counters alone
    self.writes = 0
    self.staleness: collections.Counter[int] = collections.Counter()

  def __len__(self) -> int:
    return len(self._arrays)

  def read(self, slots: Iterable[int] | None = None) -> dict[int, Any]:
    """A snapshot of all slots, or of some."""
    return {k: codecs.decode(kernels.shared_read(self._arrays[k]), codecs.EXACT, self._avals[k])
            for k in (self._arrays if slots is None else slots)}

  def write(self, before: Mapping[int, Any], after: Mapping[int, Any]) -> None:
    """Makes of slots that were read what they shall be; where others wrote since, the difference is added."""
    for k, new in after.items():
      plain = [np.asarray(codecs.encode(jax.numpy.asarray(x), codecs.EXACT)) for x in (before.get(k, new), new)]
      if k in before:
        kernels.shared_write(self._arrays[k], *plain)
      else:
        self._arrays[k][...] = plain[1]

  def add(self, changes: Mapping[int, Any]) -> None:
    """Adds to slots as they are now: corrections of a synchronization, which is no update of a net."""
    for k, change in changes.items():
      now = kernels.shared_read(self._arrays[k])
      kernels.shared_write(self._arrays[k], now, (now + np.asarray(change)).astype(now.dtype))

  def wrote(self, seen: int) -> None:
    """Counts an update of a net that had seen so many writes when it read."""
    with self._counting:
      self.staleness[self.writes - seen] += 1
      self.writes += 1

  def counts(self) -> dict[int, int]:
    """A copy of `staleness`, which nets may change at any time."""
    with self._counting:
      return dict(self.staleness)

  def arrays(self) -> dict[str, np.ndarray]:
    """A copy for files, by the numbers of slots."""
    return {str(k): kernels.shared_read(x) for k, x in self._arrays.items()}

  def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
    """Takes what `arrays` has given.

    Raises:
      ValueError: if they are of another program or node.
    """
    described = lambda found: {k: (x.shape, str(x.dtype)) for k, x in found.items()}
    own, given = described({str(k): x for k, x in self._arrays.items()}), described(arrays)
    if own != given:
      apart = sorted(k for k in own.keys() | given.keys() if own.get(k) != given.get(k))
      raise ValueError(f'this checkpoint is of another plan or node: slots {", ".join(apart[:5])} differ')
    for k, x in arrays.items():
      self._arrays[int(k)][...] = x


def _owned(x: Any) -> np.ndarray:
  return np.array(x, order='C', copy=True)
