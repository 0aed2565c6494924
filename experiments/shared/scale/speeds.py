"""Examples a second of every method, for a number of nodes and a rate."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from dct_jax import partition
from dct_jax.collectives import Costs
from shared.scale import asynchronous, synchronous
from shared.scale.models import Model

PAYS = 1.05


class Site(NamedTuple):
  """Nodes and their lines.

  Attributes:
    nodes: how many there are.
    rate: bytes a second of a line, in each direction.
    cores: of a node; each computes a batch.
    latency: seconds of a round of messages beside its bytes.
    machine: costs of a core.
  """

  nodes: int
  rate: float
  cores: int = 18
  latency: float = 1e-4
  machine: partition.Machine = partition.Machine()


class Limits(NamedTuple):
  """What bounds the loss of quality, for want of a model of it.

  Attributes:
    batches: of all cores together, in a step.
    replicas: that are pulled together.
    apart: batches of a net between two synchronizations.
  """

  batches: float = math.inf
  replicas: float = math.inf
  apart: float = math.inf


def together(model: Model, site: Site, limits: Limits, gradient: synchronous.Gradient) -> dict[str, float]:
  """Method -> examples a second, if all nodes take steps together: computation, then an exchange."""
  exchange = synchronous.exchanges(gradient, Costs.of_network(site.nodes, site.rate, site.latency))
  work = synchronous.work(gradient, site.nodes)
  share = min(1.0, limits.batches / (site.nodes * site.cores))  # of a batch, that a core has in a step
  examples = site.nodes * site.cores * share * model.batch
  compute = share * model.each + model.fixed / site.cores  # there is one update, which cores share
  return {name: examples / (compute + work[name] + seconds) for name, seconds in exchange.items()}


def apart(model: Model, site: Site, limits: Limits, clocked: Mapping[tuple[int, int], float]) -> dict[str, float]:
  """Method -> examples a second, if nodes do not wait; `clocked` has batches a second by (trainers, servers)."""
  found = {}
  for name, form in asynchronous.FORMS.items():
    shape = form(site.nodes, limits.replicas)
    seconds = shape.seconds_of_round(4 * model.size, site.rate)
    most = shape.trainers * site.cores * limits.apart / seconds if seconds else math.inf
    found[name] = shape.replicas * model.batch * min(clocked[shape.trainers, shape.servers], most)
  return found


def winner(every: Mapping[str, float]) -> str:
  """The fastest method; the dense one, where no other is faster by 5%, as `netlab.advise` has it."""
  best = max(every, key=lambda method: every[method])
  return best if every[best] > PAYS * every[synchronous.DENSE] else synchronous.DENSE


def clocked(model: Model, site: Site, sizes: list[int], seconds: float = 3.0) -> dict[tuple[int, int], float]:
  """(trainers, servers) of a group -> its batches a second, by a plan that is found in so many seconds."""
  shapes = [form(nodes, math.inf) for nodes in sizes for form in asynchronous.FORMS.values()]
  machine, net = site.machine, model.make(model.batch)
  plan = lambda of: asynchronous.plan(net, machine, asynchronous.Shape(1, *of), model.splits, seconds)
  return {of: asynchronous.batches_a_second(plan(of), site.cores, site.latency)
          for of in sorted({(shape.trainers, shape.servers) for shape in shapes})}
