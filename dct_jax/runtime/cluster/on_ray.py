"""A cluster on Ray, which places nodes, watches over their processes and restarts them. Nothing else imports Ray."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import secrets
import socket
from collections.abc import Iterator
from typing import Any

import ray
import ray.exceptions

from dct_jax.partition import Plan
from dct_jax.partition.placement import SPARSE, TRAINER
from dct_jax.runtime.cluster import driver, job
from dct_jax.runtime.cluster.calls import Address
from dct_jax.runtime.cluster.driver import ClusterRun, Watch
from dct_jax.runtime.cluster.job import Blueprint, Job
from dct_jax.runtime.cluster.member import Member
from dct_jax.runtime.fleet import Fleet
from dct_jax.train import claims

ANSWER = 60.0  # seconds that a node may take to answer a driver
START = 300.0  # seconds that it may take to start
WRITE = 3600.0  # seconds that it may take to write or send all that it has
# A task of a plan has one core, as the planner and the clock of virtual time have it.
ENVIRONMENT = {'JAX_PLATFORMS': 'cpu', 'NPROC': '1', 'XLA_FLAGS': '--xla_cpu_multi_thread_eigen=false'}
LOST = (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError, ray.exceptions.RayTaskError)


class Actor:
  """A member of the cluster in a process of its own; it is built again, from its checkpoint, when that is lost."""

  def __init__(self, blueprint: Blueprint, name: str, directory: str, token: bytes, space: str):
    self._space = space
    host = ray.util.get_node_ip_address()
    self._member = Member(blueprint, name, directory, token, self._find, host=host)

  def _find(self, name: str) -> Address:
    try:
      actor = ray.get_actor(name, self._space)
      address: Any = ray.get(actor.ask.remote('address', ()), timeout=ANSWER)
    except (*LOST, ValueError) as error:
      raise ConnectionError(f'{name} is not there: {type(error).__name__}') from error
    return tuple(address)

  def ask(self, method: str, arguments: tuple) -> Any:
    """What the driver, or another node, wants to know."""
    return getattr(self._member, method)(*arguments)


class RayCrew:
  """Members of a cluster as actors.

  Args:
    blueprint: of the cluster.
    names: of all nodes.
    directory: of the run, on a file system that all nodes share.
    cpus: that Ray reserves for each node, for its choice of hosts.
  """

  def __init__(self, blueprint: Blueprint, names: list[str], directory: str | os.PathLike, cpus: float = 0.0):
    self.names, self._space = names, f'dct_jax-{secrets.token_hex(4)}'
    token = secrets.token_bytes(16)
    options = {'namespace': self._space, 'max_restarts': -1, 'max_concurrency': 8, 'num_cpus': cpus,
               'runtime_env': {'env_vars': ENVIRONMENT}}
    make: Any = ray.remote(Actor)
    start = lambda name: make.options(name=name, **options).remote(
        blueprint, name, str(directory), token, self._space)
    self._actors: dict[str, Any] = {name: start(name) for name in names}
    self._started: set[str] = set()

  def call(self, name: str, method: str, *arguments: Any) -> Any:
    seconds = (ANSWER if name in self._started else START) if method == 'stats' else WRITE
    try:
      found = ray.get(self._actors[name].ask.remote(method, arguments), timeout=seconds)
    except LOST as error:
      cause = getattr(error, 'cause', None)
      if isinstance(error, ray.exceptions.RayTaskError) or _failed_to_start(error):
        raise RuntimeError(f'{name} failed: {cause or error}') from error
      raise ConnectionError(str(error).strip().splitlines()[0]) from error
    self._started.add(name)
    return found

  def restart(self, name: str) -> None:
    ray.kill(self._actors[name], no_restart=False)

  def close(self) -> None:
    for actor in self._actors.values():
      with contextlib.suppress(Exception):
        ray.kill(actor)


def _failed_to_start(error: BaseException) -> bool:
  return isinstance(error, ray.exceptions.ActorDiedError) and 'creation task' in str(error)


def train(task: Job, plan: Plan, fleet: Fleet, batches: int, directory: str | os.PathLike, *, readers: int = 1,
          watch: Watch | None = None, resume: bool = False, address: str | None = None,
          cpus: float = 0.0) -> ClusterRun:
  """Trains on a Ray cluster.

  Args:
    task: program and data; its functions are sent to all nodes.
    plan: of a group's program.
    fleet: how many there are of everything.
    batches: in all.
    directory: for checkpoints, models and the log, on a file system that all nodes share.
    readers: how many nodes hand out batches.
    watch: what the driver does, and how often.
    resume: whether a run that is in the directory goes on. A killed driver is resumed this way.
    address: of a Ray cluster, as 'host:port'; one is started on this machine unless given.
    cpus: that Ray reserves for each node.

  Raises:
    ValueError: before anything is started, if something does not fit together: no cluster at that address, more nets
      than batches, a node that cannot hold its part, a plan of another model, another run in the directory.
    RuntimeError: if a node fails for good.
  """
  blueprint = job.blueprint(task, plan, fleet, batches, readers)
  with cluster(address), claims.alone(pathlib.Path(directory).absolute()) as place:
    _check_room(plan, fleet)
    names = job.names_of(plan, fleet, readers)
    driver.prepare(blueprint, names, place, resume)
    crew = RayCrew(blueprint, names, place, cpus)
    try:
      return driver.Driver(crew, plan, blueprint, place, watch or Watch()).run()
    finally:
      crew.close()


@contextlib.contextmanager
def cluster(address: str | None) -> Iterator[None]:
  """A connection to Ray; within another one, that one.

  Raises:
    ValueError: if there is no cluster at the address.
  """
  if ray.is_initialized():
    yield
    return
  if address:
    _reach(address)
  ray.init(address=address or 'local', include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR,
           configure_logging=False)
  try:
    yield
  finally:
    ray.shutdown()


def _reach(address: str) -> None:
  """Ray waits for long, and does not say what for."""
  host, _, port = address.rpartition(':')
  try:
    with socket.create_connection((host, int(port)), timeout=5):
      pass
  except (OSError, ValueError) as error:
    raise ValueError(f'there is no Ray cluster at {address!r}: {error}') from None


def _check_room(plan: Plan, fleet: Fleet) -> None:
  hosts = [n['Resources'].get('memory', 0.0) for n in ray.nodes() if n['Alive']]
  job.fits(plan, max(hosts))
  each = dict(zip(plan.nodes.names, plan.load.memory, strict=True))
  copies = lambda node: {SPARSE: 1, TRAINER: fleet.groups * fleet.trainers}.get(node.rstrip('0123456789'), fleet.groups)
  total = sum(held * copies(node) for node, held in each.items())
  if total > sum(hosts):
    raise ValueError(f'{fleet.groups} groups would hold {total:,.0f} bytes, and all hosts together have '
                     f'{sum(hosts):,.0f}')
