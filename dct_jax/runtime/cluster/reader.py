"""A data reader: it hands out batches, each to one net, and knows which are under way if it or a trainer is lost."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from dct_jax.partition import Plan
from dct_jax.partition.graph import BATCH
from dct_jax.runtime.cluster import messages
from dct_jax.runtime.cluster.messages import END, NEXT, WAIT, Head

VALID = 0x6463745F6A6178  # the last word of a journal
GATE = 5.0  # seconds that a net waits for others before it is told to ask again


class Reader:
  """Batches `first`, `first + stride`, ... below `batches`.

  What is under way is kept in a file that a killed process leaves intact. A net that asks again without having done its
  batch, as a restarted trainer does, gets the same one.

  Args:
    plan: of a group's program, for the shapes of a batch.
    batch_of: number -> arguments of the loss beside parameters.
    batches: in all.
    nets: number of a net -> number of its group.
    journal: the file.
    first, stride: which ones of all batches are this reader's.
    slack: batches that a net may be ahead of the slowest one of its group; None for any number.

  Attributes:
    knows: whether the journal was there, and says what is under way; otherwise a checkpoint does, if there is one.
  """

  def __init__(self, plan: Plan, batch_of: Callable[[int], tuple], batches: int, nets: Mapping[int, int],
               journal: str | os.PathLike, *, first: int = 0, stride: int = 1, slack: int | None = None):
    slots = [s for s in plan.graph.slots if s.kind == BATCH]
    self.layout = messages.ArrayBytes([messages.plain_shape(plan.graph.avals[s.value]) for s in slots])
    self._batch_of, self._stop, self._first, self._stride = batch_of, batches, first, stride
    self._journal = Journal(journal, sorted(nets))
    self.knows = self._journal.valid
    self._gate = Gate(nets, slack)

  def begin(self) -> None:
    """Lets the journal count from now on."""
    self._journal.begin()

  def answer(self, head: Head, body: memoryview) -> bytes:
    """The net's next batch. `head.batch` is 1 + the number of the batch that it has done, 0 if it has just begun."""
    del body
    if head.kind != NEXT:
      raise ValueError(f'a reader hands out batches, and was asked for {head}')
    if head.batch and self._journal.finish(head.sender, head.batch - 1):
      self._gate.count(head.sender)
    if not self._gate.open_for(head.sender, GATE):
      return messages.join(Head(WAIT))
    number = self._journal.take(head.sender, self._number)
    if number is None:
      self._gate.leave(head.sender)
      return messages.join(Head(END))
    return messages.join(Head(NEXT, batch=number), self._bytes_of(number))

  def _bytes_of(self, number: int) -> bytes:
    leaves = [np.asarray(jax.random.key_data(x) if _is_key(x) else x) for x in jax.tree.leaves(self._batch_of(number))]
    if len(leaves) != len(self.layout.shapes):
      raise ValueError(f'the plan has {len(self.layout.shapes)} arrays in a batch, got {len(leaves)}')
    return self.layout.pack([_cast(x, s.dtype) for x, s in zip(leaves, self.layout.shapes, strict=True)])

  def _number(self, turn: int) -> int | None:
    number = self._first + turn * self._stride
    return number if number < self._stop else None

  @property
  def done(self) -> int:
    """Batches that nets have done."""
    return self._journal.done

  def arrays(self) -> dict[str, np.ndarray]:
    """Where it is, for a file."""
    return {'journal': self._journal.words.copy()}

  def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
    """Goes back to where it was; nets take up what was under way then."""
    self._journal.restore(arrays['journal'])


class Journal:
  """How many batches were given, and which one each net has, in a mapped file. Its last word says that it is valid."""

  def __init__(self, path: str | os.PathLike, nets: Sequence[int]):
    self._place = {net: i + 1 for i, net in enumerate(nets)}
    new = not os.path.exists(path)
    self._all = np.memmap(path, np.int64, 'w+' if new else 'r+', shape=(len(nets) + 2,))
    self.words, self._lock = self._all[:-1], threading.Lock()

  @property
  def valid(self) -> bool:
    """Whether it has been begun with, and not only made."""
    return self._all[-1] == VALID

  def begin(self) -> None:
    """Makes it valid, with what is in it."""
    self._all[-1] = VALID
    self._all.flush()

  def take(self, net: int, number_of: Callable[[int], int | None]) -> int | None:
    """The batch that a net is to do: the one that it has, or the next one; None if there are no more."""
    place = self._of(net)
    with self._lock:
      if not self.words[place]:
        number = number_of(int(self.words[0]))
        if number is None:
          return None
        self.words[place] = number + 1  # before it counts as given: it may be given twice, and is never forgotten
        self.words[0] += 1
      return int(self.words[place]) - 1

  def finish(self, net: int, number: int) -> bool:
    """Notes that a net has done its batch; False if that was known."""
    place = self._of(net)
    with self._lock:
      known = self.words[place] == number + 1
      if known:
        self.words[place] = 0
      return bool(known)

  def _of(self, net: int) -> int:
    if net not in self._place:
      raise ValueError(f'there is no net {net} among {len(self._place)}: is this a plan of another run?')
    return self._place[net]

  @property
  def done(self) -> int:
    with self._lock:
      return int(self.words[0]) - int(np.count_nonzero(self.words[1:]))

  def restore(self, words: np.ndarray) -> None:
    if words.shape != self.words.shape:
      raise ValueError(f'this checkpoint is of {len(words) - 1} nets, this run has {len(self.words) - 1}')
    with self._lock:
      self.words[:] = words


class Gate:
  """Keeps nets of a group together: none starts a batch while it is more than `slack` ahead of the slowest one.

  A net counts from its first question on, as one that has just joined and is no slower than the others.
  """

  def __init__(self, groups: Mapping[int, int], slack: int | None):
    self._groups, self._slack = dict(groups), slack
    self._counts: dict[int, int] = {}
    self._moved = threading.Condition()

  def count(self, net: int) -> None:
    """A net has done a batch."""
    with self._moved:
      self._join(net)
      self._counts[net] += 1
      self._moved.notify_all()

  def leave(self, net: int) -> None:
    """Nobody waits for this net any more."""
    with self._moved:
      self._counts.pop(net, None)
      self._moved.notify_all()

  def open_for(self, net: int, seconds: float) -> bool:
    """Whether a net may begin its next batch, by so many seconds from now."""
    with self._moved:
      self._join(net)
      return self._moved.wait_for(lambda: self._near(net), seconds)

  def _near(self, net: int) -> bool:
    return self._slack is None or net not in self._counts or self._counts[net] - self._least(net) <= self._slack

  def _least(self, net: int) -> int:
    return min((n for other, n in self._counts.items() if self._groups[other] == self._groups.get(net)), default=0)

  def _join(self, net: int) -> None:
    self._counts.setdefault(net, self._least(net))


def _cast(x: np.ndarray, dtype: Any) -> np.ndarray:
  """Numbers as the plan has them, if they are the same numbers, but for the precision of fractions."""
  if not np.can_cast(x.dtype, dtype, 'same_kind'):
    raise ValueError(f'the plan has {dtype} here, and {x.dtype} would be other numbers')
  made = x.astype(dtype)
  if np.issubdtype(x.dtype, np.integer) and not np.array_equal(made, x):
    raise ValueError(f'the plan has {dtype} here, and some numbers of {x.dtype} are too large for it')
  return made


def _is_key(x: Any) -> bool:
  return isinstance(x, jax.Array) and jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)
