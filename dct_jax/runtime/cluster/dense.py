"""Synchronization of groups in the background: dense servers with a copy of the parameters, and who calls on them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dct_jax.partition import Plan
from dct_jax.partition.placement import DENSE
from dct_jax.runtime.cluster import messages
from dct_jax.runtime.cluster.calls import Line
from dct_jax.runtime.cluster.keeper import Keeper
from dct_jax.runtime.cluster.messages import SYNC, Head
from dct_jax.runtime.fleet import Fleet, shares

GATHER = 20.0  # seconds for which a synchronization of all groups waits for those that are missing


class DenseServer:
  """A dense parameter server.

  Args:
    plan: of a group's program.
    fleet: how groups are synchronized.
    number: of this server.
    leaves: parameters and optimizer state of the planned function.
  """

  def __init__(self, plan: Plan, fleet: Fleet, number: int, leaves: list[Any]):
    self._method, self._groups = fleet.averaging, fleet.groups
    self.slots = {node: slots for (node, dense), slots in shares(plan, fleet).items() if dense == number}
    self._layout = {node: layout(plan, slots) for node, slots in self.slots.items()}
    self._state = {node: self._method.init([leaves[k] for k in slots]) for node, slots in self.slots.items()}
    self._exchange = jax.jit(self._method.exchange)
    self._turn = {node: threading.Condition() for node in self.slots}
    self._waiting: dict[str, dict[int, list[Any]]] = {node: {} for node in self.slots}
    self._answers: dict[tuple[str, int], Any] = {}
    self.exchanges, self._ended = 0, False
    self.never = set(self.slots)  # nodes whose parameters no group has come with yet

  def answer(self, head: Head, body: memoryview) -> bytes:
    """A correction for a group's snapshot of what one of its nodes has."""
    names = sorted(self.slots)
    if head.kind != SYNC or head.round >= len(names) or head.sender >= self._groups:
      raise ValueError(f'there is no such part of group {head.sender}; is this a plan of another run?')
    node = names[head.round]
    snapshot = self._layout[node].unpack(body)
    self.never.discard(node)
    with self._turn[node]:
      if self._ended:
        raise ConnectionError('training has ended')
      correction = self._together(node, head.sender, snapshot) if self._method.waits else self._alone(node, snapshot)
    return messages.join(head, self._layout[node].pack([np.asarray(x) for x in correction]))

  def _alone(self, node: str, snapshot: list[Any]) -> list[Any]:
    self._state[node], (correction,) = self._exchange(self._state[node], [snapshot])
    self.exchanges += 1
    return correction

  def _together(self, node: str, group: int, snapshot: list[Any]) -> list[Any]:
    """Waits for all groups, or for a while: a group that is lost must not stop the others."""
    waiting, turn = self._waiting[node], self._turn[node]
    waiting[group] = snapshot
    if len(waiting) < self._groups:
      turn.wait_for(lambda: (node, group) in self._answers or self._ended, GATHER)
    if self._ended:
      raise ConnectionError('training has ended')
    if (node, group) not in self._answers:
      self._state[node], made = self._exchange(self._state[node], list(waiting.values()))
      self._answers.update(((node, g), a) for g, a in zip(waiting, made, strict=True))
      waiting.clear()
      self.exchanges += 1
      turn.notify_all()
    return self._answers.pop((node, group))

  def settle(self) -> None:
    """Ends synchronization; the center stays as it is."""
    self._ended = True
    for turn in self._turn.values():
      with turn:
        turn.notify_all()

  def parameters(self) -> dict[int, np.ndarray]:
    """Slots as all groups know them; nothing where the method keeps no center, or no group has been here."""
    found: dict[int, np.ndarray] = {}
    for node, slots in self.slots.items():
      if node in self.never:
        continue
      with self._turn[node]:
        found.update(zip(slots, map(np.asarray, self._state[node].center), strict=bool(self._state[node].center)))
    return found

  def arrays(self) -> dict[str, np.ndarray]:
    """All that it needs to go on, for a file."""
    found: dict[str, np.ndarray] = {}
    for node in self.slots:
      with self._turn[node]:
        leaves = jax.tree.leaves(self._state[node])
      found.update((f'{node}/{i}', np.asarray(x)) for i, x in enumerate(leaves))
      found[f'{node}/never'] = np.array(node in self.never)
    return found

  def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
    """Goes on from what `arrays` has given."""
    for node in self.slots:
      leaves, tree = jax.tree.flatten(self._state[node])
      given = [arrays[f'{node}/{i}'] for i in range(len(leaves))]
      if not arrays[f'{node}/never']:
        self.never.discard(node)
      if [x.shape for x in given] != [x.shape for x in leaves]:
        raise ValueError(f'this checkpoint is of another plan: parameters of {node} have other shapes')
      with self._turn[node]:
        self._state[node] = jax.tree.unflatten(tree, map(jnp.asarray, given))


def layout(plan: Plan, slots: list[int]) -> messages.ArrayBytes:
  """Of parameters that are synchronized: in float32, whatever they are trained in."""
  shape = lambda k: plan.graph.avals[plan.graph.slots[k].value].shape
  return messages.ArrayBytes([jax.ShapeDtypeStruct(shape(k), jnp.float32) for k in slots])


class Synchronizer:
  """Pulls a node's parameters and a dense server's center together, over and over, while nets train on.

  Args:
    keeper: whose parameters they are.
    fleet: how often, and how.
    group: its number.
    line_to: name of a dense server -> a line to it.
    note: told of what was lost.
  """

  def __init__(self, keeper: Keeper, fleet: Fleet, group: int, line_to: Callable[[str], Line],
               note: Callable[[str], None] = lambda text: None):
    self.keeper, self.fleet, self.group, self._note = keeper, fleet, group, note
    self._ended, self._applying = threading.Event(), threading.Lock()
    self.count = 0
    apply = jax.jit(lambda held, correction: fleet.averaging.change(held, correction))
    every = shares(keeper.plan, fleet)
    for (node, dense), slots in every.items():
      if node == keeper.name:
        number = sorted(n for n, d in every if d == dense).index(node)
        line = line_to(f'{DENSE}{dense}')
        threading.Thread(target=self._loop, args=(line, number, slots, apply), daemon=True).start()

  def _loop(self, line: Line, number: int, slots: list[int], change: Callable) -> None:
    form, failures = layout(self.keeper.plan, slots), 0
    while not self._ended.wait(max(self.fleet.gap, 1e-3) * 2 ** min(failures, 6)):
      try:
        self._synchronize(line, form, number, slots, change)
        failures = 0
      except Exception as error:  # training goes on whatever it is, and says so
        self._note(f'group {self.group} goes on without synchronization: {error}')
        line.close()
        failures += 1

  def _synchronize(self, line: Line, form: messages.ArrayBytes, number: int, slots: list[int],
                   change: Callable) -> None:
    snapshot = [np.asarray(x, np.float32) for x in self.keeper.store.read(slots).values()]
    if not all(np.isfinite(x).all() for x in snapshot):
      raise ValueError('it has numbers that are not finite')
    line.ask(messages.join(Head(SYNC, round=number, sender=self.group), form.pack(snapshot)))
    correction = form.unpack(line.answer()[1])
    with self._applying:
      if not self._ended.is_set():
        now = [x.astype(np.float32) for x in map(np.asarray, self.keeper.store.read(slots).values())]
        self.keeper.store.add(dict(zip(slots, map(np.asarray, change(now, correction)), strict=True)))
        self.count += 1

  def stop(self) -> None:
    """Ends it. From now on parameters are not changed by it."""
    with self._applying:
      self._ended.set()
