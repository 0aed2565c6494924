"""How many there are of everything in hierarchical training, and how groups are kept together."""

from __future__ import annotations

import dataclasses

from dct_jax.transforms import averaging

METHODS = ('easgd', 'averaging', 'bmuf')


@dataclasses.dataclass(frozen=True)
class Fleet:
  """Groups of trainers and servers.

  Attributes:
    groups: copies of the dense parameters, each trained by a group.
    trainers: of a group; they share its servers.
    nets: batches that a trainer works on at the same time.
    dense: dense servers, through which groups are synchronized in the background.
    method: 'easgd', 'averaging' or 'bmuf'.
    alpha: how far a synchronization pulls.
    gap: seconds between a synchronization and the next one of the same server.
    slack: batches that a net may be ahead of the slowest one of its group; None for any number.
  """

  groups: int = 1
  trainers: int = 1
  nets: int = 1
  dense: int = 1
  method: str = 'easgd'
  alpha: float = 0.1
  gap: float = 0.0
  slack: int | None = None

  def __post_init__(self):
    if min(self.groups, self.trainers, self.nets, self.dense) < 1:
      raise ValueError(f'there is one or more of everything, got {self}')
    if self.method not in METHODS:
      raise ValueError(f'groups are synchronized by one of {METHODS}, got {self.method!r}')
    if not 0 < self.alpha <= 1 or self.gap < 0 or (self.slack is not None and self.slack < 0):
      raise ValueError(f'alpha is above 0 and at most 1, gap and slack are not below 0, got {self}')

  @property
  def averaging(self) -> averaging.Method:
    """How groups are pulled together."""
    if self.method == 'bmuf':
      return averaging.block_momentum(1 - 1 / self.groups, alpha=self.alpha)
    return averaging.elastic(self.alpha) if self.method == 'easgd' else averaging.mean(self.alpha)

  @property
  def together(self) -> bool:
    """Whether a synchronization waits for all groups."""
    return self.averaging.waits
