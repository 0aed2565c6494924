"""What watches over a cluster: checkpoints, published models, maintenance, and what it tells while it trains."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from dct_jax.partition import Plan
from dct_jax.partition.placement import DENSE, GROUP, SPARSE, TRAINER
from dct_jax.runtime.cluster import job, saves
from dct_jax.runtime.cluster.job import READER, Blueprint

LOG = logging.getLogger('dct_jax.cluster')


class Crew(Protocol):
  """Nodes of a cluster, wherever they are."""

  names: list[str]

  def call(self, name: str, method: str, *arguments: Any) -> Any:
    """Asks a member. Raises ConnectionError while it is lost."""

  def restart(self, name: str) -> None:
    """Ends a member; it comes back from its checkpoint."""

  def close(self) -> None:
    """Ends all of them."""


@dataclasses.dataclass(frozen=True)
class Watch:
  """What a driver does, and how often.

  Attributes:
    poll: seconds from one look at all nodes to the next.
    checkpoint: seconds from one checkpoint of all groups to the next.
    publish: likewise for models; 0 for none but the last one.
    defer: seconds for which a node that is to leave waits for others that are, so that they go together.
    patience: seconds after which a node that does not come back, or batches that do not get done, end the run.
    show: called with how all nodes are, after every look.
  """

  poll: float = 0.5
  checkpoint: float = 30.0
  publish: float = 0.0
  defer: float = 10.0
  patience: float = 300.0
  show: Callable[[Look], None] | None = None

  def __post_init__(self):
    if not (self.poll > 0 and self.checkpoint > 0 and self.publish >= 0 and self.defer >= 0 and self.patience > 0):
      raise ValueError(f'times are positive, got {self}')


@dataclasses.dataclass(frozen=True)
class Look:
  """How a cluster is.

  Attributes:
    seconds: since it began.
    done: batches.
    batches: in all.
    rate: batches a second, of late.
    loss: mean of the last batches.
    nodes: what each node told; nothing of those that are lost.
  """

  seconds: float
  done: int
  batches: int
  rate: float
  loss: float
  nodes: Mapping[str, Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class ClusterRun:
  """What came out.

  Attributes:
    losses: of batches by number, those before a resumed run included; what a lost trainer had not told is missing.
    model: parameters as the user's function has them: centers, or one group's own.
    staleness: node -> {others' updates between a read and its update: how often}.
    seconds: of training.
    timeline: (seconds, batches done), as it was seen.
    log: what happened, in order.
    publishing: seconds that each published model took to write.
    spent: (kind of node as the plan names it, round) -> seconds that a round takes there, for `virtual.tick`.
  """

  losses: dict[int, float]
  model: Any
  staleness: dict[str, dict[int, int]]
  seconds: float
  timeline: list[tuple[float, int]]
  log: list[str]
  publishing: list[float]
  spent: dict[tuple[str, int], float]

  def batches_per_second(self, begin: float = 0.2) -> float:
    """From when a part of all batches was done to the end, so that compilation does not count."""
    last, end = self.timeline[-1]
    first, done = next(p for p in self.timeline if p[1] >= begin * end)
    return (end - done) / (last - first) if last > first else float('nan')


class Driver:
  """Watches until all batches are done.

  Args:
    crew: the nodes.
    plan: of a group's program.
    blueprint: of the cluster.
    directory: of the run.
    watch: what to do, and how often.
  """

  def __init__(self, crew: Crew, plan: Plan, blueprint: Blueprint, directory: str | os.PathLike, watch: Watch):
    self.crew, self.plan, self.blueprint, self.watch = crew, plan, blueprint, watch
    self.directory = pathlib.Path(directory)
    self.checkpoints = saves.Saves(self.directory / 'checkpoints')
    self.published = saves.Saves(self.directory / 'published')
    self.losses = _told_losses(self.directory / 'losses.csv')
    self.log: list[str] = []
    self.publishing: list[float] = []
    self.timeline: list[tuple[float, int]] = []
    self._staleness: dict[str, dict[int, int]] = {}
    self._spent: dict[tuple[str, int], float] = {}
    self._lost: dict[str, float] = {}
    self._done: dict[str, int] = {}
    self._recent: collections.deque[float] = collections.deque(maxlen=200)
    self._begin = self._saved = self._shown = time.monotonic()
    self._moved = self._begin, -1
    self._warned = False

  def run(self) -> ClusterRun:
    """Until the end.

    Raises:
      RuntimeError: if a net fails for another reason than a lost node, or a node does not come back.
    """
    while True:
      found = self._look()
      now = time.monotonic()
      if self._ended(found):
        break
      self._check_progress(now)
      if now - self._saved > self.watch.checkpoint:
        self.save()
      if self.watch.publish and now - self._shown > self.watch.publish:
        self.publish()
      self._maintain(now)
      time.sleep(self.watch.poll)
    seconds, timeline = self.timeline[-1][0], list(self.timeline)
    for name in self.crew.names:
      self._surely(name, 'settle')
    self.save(last=True)
    self.publish()
    return ClusterRun(self.losses, self.model(), self._staleness, seconds, timeline, self.log, self.publishing,
                      self._spent)

  def note(self, text: str) -> None:
    """Tells and keeps what happened."""
    self.log.append(text)
    LOG.info(text)
    with open(self.directory / 'log.txt', 'a') as file:
      file.write(text + '\n')

  def _check_progress(self, now: float) -> None:
    """Whatever it is that nets wait for, somebody must learn of it."""
    done = sum(self._done.values())
    if done != self._moved[1]:
      self._moved = now, done
    elif now - self._moved[0] > self.watch.patience:
      raise RuntimeError(f'no batch has been done for {self.watch.patience:.0f} s, {done} of {self.blueprint.batches} '
                         f'before that; what was said last: {self.log[-3:]}')

  def _say(self, text: str) -> None:
    self.note(f'{time.strftime("%H:%M:%S")} {text}')

  # A look at all nodes.

  def _look(self) -> dict[str, dict[str, Any]]:
    found = {}
    for name in self.crew.names:
      with contextlib.suppress(ConnectionError):
        found[name] = self._ask(name, 'stats')
    for name, told in found.items():
      self._hear(name, told)
    seconds, done = time.monotonic() - self._begin, sum(self._done.values())
    self.timeline.append((seconds, done))
    if self.watch.show:
      loss = float(np.mean(self._recent)) if self._recent else float('nan')
      self.watch.show(Look(seconds, done, self.blueprint.batches, self._rate(), loss, found))
    return found

  def _rate(self) -> float:
    recent = [p for p in self.timeline if p[0] >= self.timeline[-1][0] - 10]
    (first, before), (last, after) = recent[0], recent[-1]
    return (after - before) / (last - first) if last > first else 0.0

  def _ask(self, name: str, method: str, *arguments: Any) -> Any:
    """Asks a node, and tells when it is lost, or back."""
    try:
      found = self.crew.call(name, method, *arguments)
    except ConnectionError as error:
      if name not in self._lost:
        self._lost[name] = time.monotonic()
        self._say(f'{name} is lost: {error}')
      elif time.monotonic() - self._lost[name] > self.watch.patience:
        raise RuntimeError(f'{name} did not come back for {self.watch.patience:.0f} s: {error}') from error
      raise
    if name in self._lost:
      self._say(f'{name} is back after {time.monotonic() - self._lost.pop(name):.1f} s')
    return found

  def _surely(self, name: str, method: str) -> Any:
    """Asks a node until it answers: one that is lost comes back."""
    while True:
      try:
        return self._ask(name, method)
      except ConnectionError:
        time.sleep(self.watch.poll)

  def _hear(self, name: str, told: Mapping[str, Any]) -> None:
    for text in told['notes']:
      self.note(text)
    if told.get('failed'):
      raise RuntimeError(f'{name} cannot go on: {told["failed"]}')
    if 'staleness' in told:
      self._staleness[name] = told['staleness']
      node = TRAINER if job.kind_of(name) == TRAINER else name.split('/')[-1]
      self._spent.update(((node, number), seconds) for number, seconds in told['spent'].items())
    if 'done' in told:
      self._done[name] = told['done']
    if told.get('losses'):
      self.losses.update(told['losses'])
      if not self._warned and not np.isfinite(list(told['losses'].values())).all():
        self._warned = True
        self._say(f'{name} has had a loss that is not finite')
      self._recent.extend(told['losses'].values())
      with open(self.directory / 'losses.csv', 'a') as file:
        file.writelines(f'{number},{loss!r}\n' for number, loss in told['losses'].items())

  def _ended(self, found: Mapping[str, Mapping[str, Any]]) -> bool:
    trainers = [n for n in self.crew.names if job.kind_of(n) == TRAINER]
    return all(n in found and not found[n]['working'] for n in trainers) and (
        sum(self._done.values()) >= self.blueprint.batches)

  # Checkpoints and models.

  def save(self, last: bool = False) -> None:
    """A checkpoint of every group, and of all that they share. Training goes on meanwhile.

    Readers come first: batches that end between their checkpoint and a server's are done again, none is left out. Then
    the losses of what readers know as done are taken, before a checkpoint counts.
    """
    place, parts = self.checkpoints.begin(), dict[str, list[str]]()
    for name in self.crew.names:
      parts.setdefault(job.part_of(name), []).append(name)
    done = sum(self._done.values())  # readers know of these, and perhaps of more
    order = sorted(parts, key=lambda part: job.kind_of(part) != READER)
    for part in order:
      try:
        files = [f for f in (self._ask(n, 'save', str(place)) for n in parts[part]) if f]
      except (OSError, RuntimeError) as error:
        if last and not isinstance(error, ConnectionError):
          raise
        self._say(f'no checkpoint of {part} this time: {error}')
        continue
      if job.kind_of(part) == READER:
        self._look()
      self.checkpoints.finish(place, part, {'files': files, 'batches': done})
    self.checkpoints.drop(place)
    self._saved = time.monotonic()

  def publish(self) -> None:
    """A model for predictions, written by the nodes that have its parts; it counts when all of it is there."""
    begin, place = time.monotonic(), self.published.begin()
    self._shown = begin
    try:
      files = [f for f in (self._ask(n, 'publish', str(place)) for n in self._serving()) if f]
    except (OSError, RuntimeError, ValueError) as error:
      self._say(f'no model was published this time: {error}')
      self.published.drop(place)
      return
    notes = {'files': files, 'program': self.plan.graph.fingerprint, 'batches': sum(self._done.values())}
    self.published.finish(place, saves.Published.PART, notes)
    self.publishing.append(time.monotonic() - begin)

  def _serving(self) -> list[str]:
    """Nodes whose parameters are the model: the first group's, and what is known of all groups over that."""
    order = {GROUP: 0, TRAINER: 0, SPARSE: 1, DENSE: 2}
    mine = [n for n in self.crew.names if job.kind_of(n) in order and job.part_of(n) in ('group0', n)]
    return sorted(mine, key=lambda n: order[job.kind_of(n)])

  def model(self) -> Any:
    """Parameters as they are now, as the user's function has them."""
    found: dict[int, Any] = {}
    for name in self._serving():
      found.update(self._surely(name, 'parameters'))
    return saves.model_of(self.plan, found)

  # Nodes that announce that they must leave.

  def _maintain(self, now: float) -> None:
    """Files in `maintenance/` name nodes whose host is to leave. They go together, right after a checkpoint."""
    folder = self.directory / 'maintenance'
    asked = {p: p.relative_to(folder).as_posix().replace('/', '.') for p in folder.rglob('*') if p.is_file()}
    with contextlib.suppress(FileNotFoundError):  # whoever announced it has changed his mind
      if not asked or time.time() - min(p.stat().st_mtime for p in asked) < self.watch.defer:
        return
    known = {n.replace('/', '.'): n for n in self.crew.names}
    self.save()
    for path, name in sorted(asked.items()):
      if name in known:
        self._say(f'{known[name]} leaves for maintenance')
        self.crew.restart(known[name])
      else:
        self._say(f'no node is called {name!r}, which was announced for maintenance')
      path.unlink(missing_ok=True)


def prepare(blueprint: Blueprint, names: Sequence[str], directory: str | os.PathLike, resume: bool) -> pathlib.Path:
  """A run's directory, new or as a run like this one has left it: all nodes go on from the same checkpoint.

  Raises:
    ValueError: if it has another run, or one that is not to be resumed.
  """
  place = pathlib.Path(directory)
  place.mkdir(parents=True, exist_ok=True)
  notes, own = place / 'run.json', json.loads(json.dumps(job.describe(blueprint)))
  if notes.exists():
    found = json.loads(notes.read_text())
    if found != own:
      apart = [k for k in own if own[k] != found.get(k)]
      raise ValueError(f'{place} has another run, which differs in {", ".join(apart)}: use another directory')
    if not resume:
      raise ValueError(f'{place} has a run already: resume it, or use another directory')
  saves.write_json(notes, own)
  saves.Saves(place / 'checkpoints').level({job.part_of(name) for name in names})
  for journal in (place / 'journals').glob('*.int64') if (place / 'journals').is_dir() else ():
    journal.unlink()  # of a run that has ended; readers begin with their checkpoint
  return place


def _told_losses(path: pathlib.Path) -> dict[int, float]:
  """Losses of a run that is resumed; its last line may have been cut off."""
  found = {}
  for line in path.read_text().splitlines() if path.exists() else ():
    number, _, loss = line.partition(',')
    try:
      found[int(number)] = float(loss)
    except ValueError:
      continue
  return found
