"""How many there are of everything in hierarchical training, and how groups are kept together."""

from __future__ import annotations

import dataclasses

from dct_jax.partition import Plan
from dct_jax.partition.placement import DENSE, TRAINER
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


def check(plan: Plan, fleet: Fleet, batches: int) -> None:
  """Refuses a plan and a number of batches that a fleet cannot train.

  Raises:
    ValueError: if there are fewer batches than nets, or parameters are on trainers that share a group.
  """
  nets = fleet.groups * fleet.trainers * fleet.nets
  if batches < nets:
    raise ValueError(f'{nets} nets want a batch each, got {batches=}')
  if plan.nodes.trainers != fleet.trainers:
    raise ValueError(f'the plan is for {plan.nodes.trainers} trainers of a group, the fleet has {fleet.trainers}')
  held = [plan.graph.slots[k].path for k in plan.centers(fleet.dense) if plan.placement.slots[k] == TRAINER]
  if held and fleet.trainers > 1:
    raise ValueError(f'trainers of a group would have parameters of their own ({held[0]}): place them on servers')


def shares(plan: Plan, fleet: Fleet) -> dict[tuple[str, int], list[int]]:
  """(node of the plan, dense server) -> slots of the node of which the server has the center; none for one group."""
  found: dict[tuple[str, int], list[int]] = {}
  for slot, dense in plan.centers(fleet.dense).items() if fleet.groups > 1 else ():
    node = plan.placement.slots[slot]
    assert node is not None, 'a parameter has one home'
    found.setdefault((node, int(dense.removeprefix(DENSE))), []).append(slot)
  return found
