"""One node of a cluster in its process: it is built from a blueprint, comes back from its checkpoint, and tells."""

from __future__ import annotations

import collections
import os
import pathlib
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from dct_jax.partition import Plan
from dct_jax.partition.graph import PARAMETER
from dct_jax.partition.placement import DENSE, GROUP, TRAINER
from dct_jax.runtime.cluster import job, saves
from dct_jax.runtime.cluster.calls import Address, Desk, Line
from dct_jax.runtime.cluster.dense import DenseServer, Synchronizer
from dct_jax.runtime.cluster.job import READER, Blueprint
from dct_jax.runtime.cluster.keeper import Keeper
from dct_jax.runtime.cluster.reader import Reader
from dct_jax.runtime.cluster.server import Server
from dct_jax.runtime.cluster.trainer import Trainer


class Member:
  """A node that works.

  Args:
    blueprint: of the cluster.
    name: 'group0/trainer1', 'group0/group2', 'sparse0', 'dense0' or 'reader0'.
    directory: of the run, which all nodes share.
    token: of the run.
    find: name of a node -> the address that it has now; raises ConnectionError while it has none.
    host: address at which others reach this one.
    built: what `blueprint.build` gives, if it is known.
  """

  def __init__(self, blueprint: Blueprint, name: str, directory: str | os.PathLike, token: bytes,
               find: Callable[[str], Address], *, host: str = '127.0.0.1', built: tuple[Plan, list[Any]] | None = None):
    self.name, self._find, self._token, self.blueprint = name, find, token, blueprint
    self._notes: collections.deque[str] = collections.deque(maxlen=1000)
    self.plan, leaves = built or blueprint.build()
    self.directory = pathlib.Path(directory)
    self.body = self._body(leaves)
    self._restore()
    self.desk = Desk(self.body.answer, token, host) if not isinstance(self.body, Trainer) else None
    self.synchronizer = self._synchronizer()
    if isinstance(self.body, Trainer):
      self.body.start()

  def _body(self, leaves: list[Any]) -> Reader | DenseServer | Server | Trainer:
    made, kind = self.blueprint, job.kind_of(self.name)
    if kind == READER:
      number = int(self.name.removeprefix(READER))
      served = [g for g in range(made.fleet.groups) if g % made.readers == number]
      nets = {n: g for g in served for t in range(made.fleet.trainers)
              for n in job.nets_of(made.fleet, f'{GROUP}{g}/{TRAINER}{t}')}
      path = self.directory / 'journals' / f'{self.name}.int64'
      path.parent.mkdir(parents=True, exist_ok=True)
      return Reader(self.plan, made.job.batch_of(), made.batches, nets, path, first=number, stride=made.readers,
                    slack=made.fleet.slack)
    if kind == DENSE:
      return DenseServer(self.plan, made.fleet, int(self.name.removeprefix(DENSE)), leaves)
    if kind == TRAINER:
      return Trainer(self.plan, leaves, self._line_to, job.nets_of(made.fleet, self.name), self._note)
    number = job.group_of(self.name) if '/' in self.name else 0
    return Server(self.plan, self.name.split('/')[-1], leaves, number)

  def _restore(self) -> None:
    """Goes on from the newest checkpoint. A reader whose journal is there knows better than any checkpoint."""
    kept = saves.Saves(self.directory / 'checkpoints')
    known = isinstance(self.body, Reader) and self.body.knows
    found = None if known or not self._keeps() else kept.newest(job.part_of(self.name), self.name)
    if found is not None:
      self.body.restore(found[1])
      older = '' if found[0] == kept.whole(job.part_of(self.name))[-1] else ', as a newer one is damaged'
      self._note(f'{self.name} goes on from checkpoint {found[0].name}{older}')
    if isinstance(self.body, Reader):
      self.body.begin()

  def _keeps(self) -> bool:
    """Whether there is anything here to keep: a trainer may have no parameters."""
    return not isinstance(self.body, Trainer) or bool(self.body.store)

  def _synchronizer(self) -> Synchronizer | None:
    if isinstance(self.body, Keeper) and '/' in self.name and self.blueprint.fleet.groups > 1:
      return Synchronizer(self.body, self.blueprint.fleet, job.group_of(self.name), self._line_to, self._note)
    return None

  def _line_to(self, node: str) -> Line:
    """To a node of the plan as this member's group has it."""
    if node.startswith(GROUP):
      node = f'{job.part_of(self.name)}/{node}'
    elif node == READER:
      node = f'{READER}{job.group_of(self.name) % self.blueprint.readers}'
    return Line(lambda: self._find(node), self._token, node)

  def _note(self, text: str) -> None:
    self._notes.append(f'{time.strftime("%H:%M:%S")} {text}')

  # What a driver asks.

  def address(self) -> Address | None:
    """Where others reach it."""
    return self.desk.address if self.desk else None

  def stats(self) -> dict[str, Any]:
    """How it is; losses and notes are those since it was asked last."""
    found: dict[str, Any] = {'pid': os.getpid(), 'threads': threading.active_count(),
                             'notes': [self._notes.popleft() for _ in range(len(self._notes))]}
    body = self.body
    if isinstance(body, Keeper):
      found |= {'writes': body.store.writes, 'staleness': body.store.counts(),
                'synchronized': self.synchronizer.count if self.synchronizer else 0, 'spent': body.spent.medians()}
    if isinstance(body, Trainer):
      found |= {'losses': dict(body.losses.popleft() for _ in range(len(body.losses))), 'waited': body.waited,
                'working': body.working, 'failed': body.failed}
    elif isinstance(body, Server):
      found['asked'] = body.asked
    elif isinstance(body, DenseServer):
      found['exchanges'] = body.exchanges
    else:
      found['done'] = body.done
    return found

  def save(self, place: str) -> str | None:
    """Writes a checkpoint to a directory; None if there is nothing to keep."""
    if not self._keeps():
      return None
    saves.write(pathlib.Path(place) / saves.file_of(self.name), self.body.arrays())
    return saves.file_of(self.name)

  def parameters(self) -> dict[int, np.ndarray]:
    """Slots of parameters that are here: the center's of a dense server."""
    if isinstance(self.body, DenseServer):
      return self.body.parameters()
    if not isinstance(self.body, Keeper):
      return {}
    kinds = self.plan.graph.slots
    return {int(k): x for k, x in self.body.store.arrays().items() if kinds[int(k)].kind == PARAMETER}

  def publish(self, place: str) -> str | None:
    """Writes parameters straight to where they are served from; None if there are none.

    Raises:
      ValueError: if some are not finite: nobody could predict anything with them.
    """
    found = self.parameters()
    if not found:
      return None
    if not all(np.isfinite(x.astype(np.float32)).all() for x in found.values()):
      raise ValueError(f'{self.name} has parameters that are not finite')
    saves.write(pathlib.Path(place) / saves.file_of(self.name), {str(k): x for k, x in found.items()})
    return saves.file_of(self.name)

  def settle(self) -> None:
    """Ends synchronization, so that parameters stay as they are."""
    if isinstance(self.body, DenseServer):
      self.body.settle()
    if self.synchronizer:
      self.synchronizer.stop()

  def stop(self) -> None:
    """Ends what runs in the background."""
    self.settle()
    if isinstance(self.body, Trainer):
      self.body.stop()
    if self.desk:
      self.desk.close()
