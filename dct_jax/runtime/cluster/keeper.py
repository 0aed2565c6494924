"""What every node with parameters does: it runs rounds of batches on them, once each, and keeps them in files."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from dct_jax.partition import Plan
from dct_jax.partition.graph import BATCH
from dct_jax.partition.programs import Program, RoundStep
from dct_jax.partition.simulate import Node
from dct_jax.runtime import work
from dct_jax.runtime.cluster.spent import Spent
from dct_jax.runtime.cluster.store import Store

NOTES, OWED = 'applied', 'owed/'  # beside the numbers of slots


class Keeper:
  """A node of a plan, its parameters, and which updates they have had.

  Args:
    plan: of a group's program.
    name: of the node in the plan.
    leaves: parameters and optimizer state of the planned function, those of other nodes included.
    number: that no other node of this name has, for random choices of error feedback.

  Attributes:
    program: what the node executes.
    store: its parameters, which all nets share.
    spent: seconds of rounds.
  """

  def __init__(self, plan: Plan, name: str, leaves: list[Any], number: int = 0):
    self.plan, self.name, self.graph = plan, name, plan.graph
    self.program: Program = plan.transform(apart=True)[name]
    kept = [k for k in self.program.slots if plan.graph.slots[k].kind != BATCH]
    self.store = Store(plan.graph, {k: leaves[k] for k in kept})
    # Net -> its batch, and rounds of it that update: whether they have done so.
    self._applied: dict[int, tuple[int, dict[int, bool]]] = {}
    self._stamps: dict[int, int] = {}  # net -> its latest attempt
    self._noting = threading.Lock()
    self.spent = Spent()
    # What gradients have lost on their way; all nets share it, as they do parameters, and without a lock as well.
    self.feedback = plan.feedback(jax.random.key(number)).get(name)

  def begin(self, net: int, batch: int, stamp: int, slots: Mapping[int, Any]) -> Passage:
    """An attempt at a net's batch comes by; older ones of this net must not update any more."""
    with self._noting:
      self._stamps[net] = max(stamp, self._stamps.get(net, 0))
    return Passage(self, net, batch, stamp, slots)

  def first_time(self, net: int, batch: int, stamp: int, number: int) -> bool:
    """Whether a round of a net's batch has not begun to update yet. One that is tried again must not do so twice.

    Raises:
      ConnectionError: if the net has begun anew since.
    """
    with self._noting:
      if stamp < self._stamps.get(net, 0):
        raise ConnectionError(f'net {net} has begun anew, and this is an attempt before that')
      if self._applied.get(net, (-1, {}))[0] != batch:
        self._applied[net] = batch, {}
      rounds = self._applied[net][1]
      fresh = number not in rounds
      rounds.setdefault(number, False)
      return fresh

  def applied(self, net: int, batch: int, number: int) -> None:
    """Notes that a round has updated."""
    with self._noting:
      if self._applied[net][0] == batch:
        self._applied[net][1][number] = True

  def arrays(self) -> dict[str, np.ndarray]:
    """All that the node needs to go on, for a file. What it notes as applied is in the parameters."""
    with self._noting:  # updates that end after this are done again, and there are few
      applied = {str(net): [batch, [r for r, done in rounds.items() if done]]
                 for net, (batch, rounds) in self._applied.items()}
    return {**self.store.arrays(), **self._owed(), NOTES: np.frombuffer(json.dumps(applied).encode(), np.uint8)}

  def _owed(self) -> dict[str, np.ndarray]:
    """What gradients have lost and is still to be sent, by value and field."""
    buffers = self.feedback.buffers if self.feedback else {}
    return {f'{OWED}{value}/{name}': np.asarray(jax.random.key_data(x) if name == 'key' else x)
            for value, buffer in buffers.items() for name, x in buffer._asdict().items()}

  def _owe(self, arrays: Mapping[str, np.ndarray]) -> None:
    buffers = self.feedback.buffers if self.feedback else {}
    for value, buffer in buffers.items():
      found = {name: jax.numpy.asarray(arrays[f'{OWED}{value}/{name}']) for name in buffer._fields}
      found['key'] = jax.random.wrap_key_data(found['key'], impl=jax.random.key_impl(buffer.key))
      buffers[value] = buffer._replace(**found)

  def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
    """Goes on from what `arrays` has given."""
    applied = json.loads(bytes(arrays[NOTES]))
    self.store.restore({k: x for k, x in arrays.items() if k.isdigit()})
    self._owe(arrays)
    self._applied = {int(net): (batch, dict.fromkeys(rounds, True)) for net, (batch, rounds) in applied.items()}


class Passage:
  """A net's batch on one node: what it knows there, from its first round to its last."""

  def __init__(self, keeper: Keeper, net: int, batch: int, stamp: int, slots: Mapping[int, Any]):
    self.keeper, self.net, self.batch, self.stamp = keeper, net, batch, stamp
    self._slots = dict(slots)
    self._node: Node | None = None
    self._seen = 0

  @property
  def node(self) -> Node:
    """Values that are known. The first look at it is the batch's read of all parameters of this node."""
    if self._node is None:
      self._seen = self.keeper.store.writes
      held = {**self.keeper.store.read(), **self._slots}
      self._node = Node(self.keeper.graph, self.keeper.program, {k: held[k] for k in self.keeper.program.slots},
                        self.keeper.feedback)
    return self._node

  def run(self, step: RoundStep) -> None:
    """Runs a round, and applies its updates unless they were applied when the batch was tried before."""
    updates = any(segment.phase == work.UPDATE for segment in step.runs)
    fresh = not updates or self.keeper.first_time(self.net, self.batch, self.stamp, step.round)
    write = self.keeper.store.write if fresh else lambda before, after: None
    work.run_segments(self.keeper.plan, self.keeper.program, self.node, step, self.keeper.store.read, write)
    if updates and fresh:
      self.keeper.applied(self.net, self.batch, step.round)
      self.keeper.store.wrote(self._seen)
      self._seen = self.keeper.store.writes  # its own second update is nobody else's
