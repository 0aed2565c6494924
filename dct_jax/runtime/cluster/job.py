"""What a cluster trains. Every process makes it for itself: functions travel, arrays and programs do not."""

from __future__ import annotations

import json
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from dct_jax.partition import Plan, files
from dct_jax.partition.graph import BATCH, nbytes
from dct_jax.partition.placement import DENSE, GROUP, SPARSE, TRAINER
from dct_jax.partition.ready import Net
from dct_jax.partition.tasks import tasks_of
from dct_jax.runtime.cluster import messages
from dct_jax.runtime.fleet import Fleet, check, shares

READER = 'reader'


class Job(NamedTuple):
  """A program and its data.

  Attributes:
    net: makes the loss, the optimizer, parameters to begin with, and a batch (or its shapes), as `partition.plan` takes
      them. Every process calls it, so that it must give the same each time.
    batch_of: makes the function from a batch's number to the arguments of the loss; readers call it.
  """

  net: Callable[[], Net]
  batch_of: Callable[[], Callable[[int], tuple]]


class Blueprint(NamedTuple):
  """A plan as text, and the job that it is for: all that a node needs to build its part.

  Attributes:
    job: what is trained.
    plan: of its program, as JSON.
    fleet: how many there are of everything.
    batches: in all.
    readers: how many nodes hand out batches.
  """

  job: Job
  plan: str
  fleet: Fleet
  batches: int
  readers: int = 1

  def build(self) -> tuple[Plan, list[Any]]:
    """The plan, and parameters and optimizer state of the planned function."""
    net = self.job.net()
    with tempfile.NamedTemporaryFile('w', suffix='.json') as file:
      file.write(self.plan)
      file.flush()
      plan = files.restore(file.name, net.loss, net.optimizer, net.params, *net.batch, has_aux=net.has_aux)
    params = plan.split(net.params)
    return plan, jax.tree.leaves((params, net.optimizer.init(params)))


def blueprint(job: Job, plan: Plan, fleet: Fleet, batches: int, readers: int = 1) -> Blueprint:
  """Checks that all of it fits together.

  Raises:
    ValueError: if it does not.
  """
  check(plan, fleet, batches)
  if not 1 <= readers <= fleet.groups:
    raise ValueError(f'a reader serves a group or more, got {readers=} for {fleet.groups} groups')
  _check_lengths(plan, fleet)
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / 'plan.json'
    files.save(plan, path)
    made = Blueprint(job, path.read_text(), fleet, batches, readers)
  again, leaves = made.build()  # refuses a job of another model here, not on every node
  if again.graph.fingerprint != plan.graph.fingerprint:
    raise ValueError('the job is another program than the plan')
  if any(isinstance(x, jax.ShapeDtypeStruct) for x in leaves):
    raise ValueError('a job begins with parameters that are arrays, got shapes: initialize them in its net')
  return made


def _check_lengths(plan: Plan, fleet: Fleet) -> None:
  """Refuses what no message can hold, before it is tried over and over."""
  bytes_of = lambda slots: sum(nbytes(plan.graph.avals[plan.graph.slots[k].value]) for k in slots)
  longest = {'a message of a round': max((size for t in tasks_of(plan) for _, size in t.sends), default=0),
             'a batch': bytes_of(k for k, s in enumerate(plan.graph.slots) if s.kind == BATCH),
             'a synchronization': max(map(bytes_of, shares(plan, fleet).values()), default=0)}
  for what, size in longest.items():
    if size > messages.MOST - messages.HEAD.size:
      raise ValueError(f'{what} would have {size:,} bytes, and {messages.MOST:,} is the most: use more servers, or '
                       'smaller batches')


def names_of(plan: Plan, fleet: Fleet, readers: int) -> list[str]:
  """All nodes of a cluster, those first that others ask."""
  used = plan.transform(apart=True)
  servers = [n for n in used if n.startswith(GROUP)]
  return [*(f'{READER}{i}' for i in range(readers)),
          *(f'{DENSE}{i}' for i in range(fleet.dense) if fleet.groups > 1),
          *(n for n in used if n.startswith(SPARSE)),
          *(f'{GROUP}{g}/{n}' for g in range(fleet.groups) for n in servers),
          *(f'{GROUP}{g}/{TRAINER}{t}' for g in range(fleet.groups) for t in range(fleet.trainers))]


def kind_of(name: str) -> str:
  """READER, DENSE, SPARSE, GROUP or TRAINER."""
  return name.split('/')[-1].rstrip('0123456789')


def part_of(name: str) -> str:
  """What a node's checkpoint belongs to: its group, or itself."""
  return name.split('/')[0]


def group_of(name: str) -> int:
  """Number of a node's group."""
  return int(name.split('/')[0].removeprefix(GROUP))


def nets_of(fleet: Fleet, name: str) -> range:
  """Numbers of a trainer's nets; every net of a cluster has its own."""
  trainer = int(name.split('/')[1].removeprefix(TRAINER))
  first = (group_of(name) * fleet.trainers + trainer) * fleet.nets
  return range(first, first + fleet.nets)


def fits(plan: Plan, memory: float) -> None:
  """Refuses nodes that would need more memory than there is.

  Raises:
    ValueError: with the node and its bytes.
  """
  for node, held in zip(plan.nodes.names, plan.load.memory, strict=True):
    if held > memory:
      raise ValueError(f'{node} would hold {held:,.0f} bytes, and a node has {memory:,.0f}; use more servers')


def describe(made: Blueprint) -> dict[str, Any]:
  """What tells one run from another, for its directory."""
  found = json.loads(made.plan)
  return {'program': found['program'], 'placement': found['placement'], 'splits': found['splits'],
          'fleet': [made.fleet.groups, made.fleet.trainers, made.fleet.nets, made.fleet.dense],
          'method': made.fleet.method,
          'batches': made.batches, 'readers': made.readers}
