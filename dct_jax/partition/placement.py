"""Nodes of a group, and where operators and slots of a program are."""

from __future__ import annotations

import dataclasses

TRAINER = 'trainer'
GROUP, SPARSE, DENSE = 'group', 'sparse', 'dense'
MOST = 10_000  # nodes of a kind; a file may ask for any number


@dataclasses.dataclass(frozen=True)
class Nodes:
  """The machines that one net runs on: trainers are all alike, servers have numbers.

  Attributes:
    group: number of group parameter servers.
    sparse: number of sparse parameter servers.
    trainers: number of trainers that share these servers, each with batches of its own.
  """

  group: int = 0
  sparse: int = 0
  trainers: int = 1

  def __post_init__(self):
    if not all(isinstance(n, int) and n <= MOST for n in (self.group, self.sparse, self.trainers)):
      raise ValueError(f'numbers of nodes are integers up to {MOST:,}, got {self}')
    if self.trainers < 1 or self.group < 0 or self.sparse < 0:
      raise ValueError(f'a group has a trainer or more, and no negative number of servers, got {self}')

  @property
  def names(self) -> tuple[str, ...]:
    return (TRAINER, *self.of_kind(GROUP), *self.of_kind(SPARSE))

  def of_kind(self, kind: str) -> tuple[str, ...]:
    """Names of all nodes of a kind."""
    if kind == TRAINER:
      return (TRAINER,)
    return tuple(f'{kind}{i}' for i in range({GROUP: self.group, SPARSE: self.sparse}[kind]))

  def matching(self, tag: str) -> tuple[str, ...]:
    """Nodes that a tag allows: a name, or a kind for any one of it."""
    if tag.rstrip('0123456789') == DENSE:
      raise ValueError(f'the tag {tag!r} is of dense servers: they keep what groups synchronize with, and run nothing')
    found = (tag,) if tag in self.names else self.of_kind(tag) if tag in (GROUP, SPARSE) else ()
    if not found:
      raise ValueError(f'the tag {tag!r} names no node: there are {", ".join(self.names)}')
    return found


@dataclasses.dataclass(frozen=True)
class Placement:
  """Where everything is; None is wherever it is read, on several nodes if need be.

  Attributes:
    nodes: names of all nodes, the trainer first.
    operators: node of each.
    slots: likewise.
  """

  nodes: tuple[str, ...]
  operators: tuple[str | None, ...]
  slots: tuple[str | None, ...]
