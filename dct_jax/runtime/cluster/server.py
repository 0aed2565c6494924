"""A parameter server: it runs its part of the program for whichever net asks."""

from __future__ import annotations

import threading
from typing import Any

from dct_jax.partition import Plan
from dct_jax.partition.placement import TRAINER
from dct_jax.runtime.cluster import messages
from dct_jax.runtime.cluster.keeper import Keeper, Passage
from dct_jax.runtime.cluster.messages import RUN, Head


class Server(Keeper):
  """A group or sparse parameter server.

  Args:
    plan: of a group's program.
    name: of the node in the plan.
    leaves: parameters and optimizer state of the planned function.
    number: of its group.

  Attributes:
    asked: number of rounds that were asked for.
  """

  def __init__(self, plan: Plan, name: str, leaves: list[Any], number: int = 0):
    super().__init__(plan, name, leaves, number)
    self._steps = {step.round: step for step in self.program.steps}
    self._in = {r: messages.layout_of(self.graph, s.receives.get(TRAINER, ())) for r, s in self._steps.items()}
    self._out = {r: messages.layout_of(self.graph, s.sends.get(TRAINER, ())) for r, s in self._steps.items()}
    self._under_way: dict[int, Passage] = {}  # by net
    self._turn = threading.Lock()
    self.asked = 0

  def answer(self, head: Head, body: memoryview) -> bytes:
    """Runs a round of a net's batch, and sends back what the trainer needs of it."""
    if head.kind != RUN or head.round not in self._steps:
      raise ValueError(f'{self.name} has no round {head.round}; is this a plan of another run?')
    self.asked += 1
    with self.spent.on(head.round):
      return messages.join(head, self._run(head, body))

  def _run(self, head: Head, body: memoryview) -> bytes:
    step, passage = self._steps[head.round], self._passage(head)
    if step.receives:
      passage.node.receive(step, TRAINER, self._in[head.round].unpack(body))
    passage.run(step)
    sent = passage.node.send(step, TRAINER) if step.sends else []
    if head.round == max(self._steps) and self._under_way.get(head.sender) is passage:
      del self._under_way[head.sender]
    return self._out[head.round].pack(sent)

  def _passage(self, head: Head) -> Passage:
    """The attempt that a message belongs to.

    Raises:
      ConnectionError: if it is over, or its first rounds are not known here, as after a restart. The net begins anew.
    """
    with self._turn:
      passage = self._under_way.get(head.sender)
      if passage is not None and passage.stamp == head.stamp:
        return passage
      if head.round != min(self._steps) or (passage is not None and passage.stamp > head.stamp):
        raise ConnectionError(f'{self.name} does not know this attempt at batch {head.batch} of net {head.sender}')
      self._under_way[head.sender] = self.begin(head.sender, head.batch, head.stamp, {})
      return self._under_way[head.sender]
