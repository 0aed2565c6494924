"""A cluster in one process: every node on threads, over real connections. For trying things out, and for tests."""

from __future__ import annotations

import os
import secrets
from typing import Any

from dct_jax.partition import Plan
from dct_jax.runtime.cluster import driver, job
from dct_jax.runtime.cluster.calls import Address
from dct_jax.runtime.cluster.driver import ClusterRun, Watch
from dct_jax.runtime.cluster.job import Blueprint, Job
from dct_jax.runtime.cluster.member import Member
from dct_jax.runtime.fleet import Fleet
from dct_jax.train import claims


class Threads:
  """Members of a cluster in this process.

  Args:
    blueprint: of the cluster.
    directory: of the run.
  """

  def __init__(self, blueprint: Blueprint, directory: str | os.PathLike):
    self._blueprint, self._directory, self._token = blueprint, directory, secrets.token_bytes(16)
    self._built = blueprint.build()
    self._members: dict[str, Member] = {}
    self.names = job.names_of(self._built[0], blueprint.fleet, blueprint.readers)
    try:
      for name in self.names:
        self._start(name)
    except BaseException:
      self.close()
      raise

  def _start(self, name: str) -> None:
    self._members[name] = Member(self._blueprint, name, self._directory, self._token, self._find, built=self._built)

  def _find(self, name: str) -> Address:
    member = self._members.get(name)
    address = member.address() if member else None
    if address is None:
      raise ConnectionError(f'{name} is not there')
    return address

  def call(self, name: str, method: str, *arguments: Any) -> Any:
    if name not in self._members:
      self._start(name)  # as an engine would that supervises processes
      raise ConnectionError(f'{name} was lost')
    return getattr(self._members[name], method)(*arguments)

  def lose(self, name: str) -> None:
    """Ends a member as if its process had been killed; what it knew is gone."""
    self._members.pop(name).stop()

  restart = lose

  def close(self) -> None:
    for member in self._members.values():
      member.stop()


def train(task: Job, plan: Plan, fleet: Fleet, batches: int, directory: str | os.PathLike, *, readers: int = 1,
          watch: Watch | None = None, resume: bool = False) -> ClusterRun:
  """Trains with all nodes on threads of this process; arguments are those of `on_ray.train`."""
  blueprint = job.blueprint(task, plan, fleet, batches, readers)
  with claims.alone(directory) as place:
    driver.prepare(blueprint, job.names_of(plan, fleet, readers), place, resume)
    crew = Threads(blueprint, place)
    try:
      return driver.Driver(crew, plan, blueprint, place, watch or Watch(poll=0.05)).run()
    finally:
      crew.close()
