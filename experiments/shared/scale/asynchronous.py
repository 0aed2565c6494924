"""Examples a second of nodes that do not wait for each other, by plans and their clock."""

from typing import NamedTuple

from dct_jax import partition
from dct_jax.partition import ready
from dct_jax.runtime import Fleet, Hardware, virtual

EASGD, HT = 'EASGD', 'HT'
CODECS = partition.Codecs('int8', 'bfloat16')
ROUNDS = 4  # batches of every net that the clock lets pass


class Shape(NamedTuple):
  """Nodes of hierarchical training, or of trainers alone.

  Attributes:
    replicas: groups, or trainers alone.
    trainers, servers: of a group.
    dense: servers through which replicas are synchronized.
  """

  replicas: int
  trainers: int = 1
  servers: int = 0
  dense: int = 0

  def seconds_of_round(self, size: float, rate: float) -> float:
    """Until every replica of so many bytes has been synchronized: dense servers take one after the other."""
    return -(-self.replicas // self.dense) * size / rate if self.dense else 0.0


def alone(nodes: int, most: float) -> Shape:
  """Trainers with a replica each; one node of 25 is a dense server."""
  dense = max(nodes // 25, 1)
  return Shape(int(min(nodes - dense, most)), dense=dense)


def groups(nodes: int, most: float) -> Shape:
  """Two groups of 6 + 6 and a dense server of every 25 nodes; fewer nodes are one group."""
  if nodes < 25:
    return Shape(1, nodes // 2, nodes // 2)
  return Shape(int(min(2 * (nodes // 25), most)), 6, 6, nodes // 25)


FORMS = {EASGD: alone, HT: groups}


def plan(net: ready.Net, machine: partition.Machine, shape: Shape, splits: dict | None = None,
         seconds: float = 3.0) -> partition.Plan:
  """A group's plan, found in so many seconds."""
  nodes = partition.Nodes(group=shape.servers, trainers=shape.trainers)
  options = {'codec': CODECS, 'splits': splits} if shape.servers else {}
  return partition.plan(net.loss, net.optimizer, net.params, *net.batch, nodes=nodes, machine=machine, kicks=0,
                        seconds=seconds, **options)


def batches_a_second(made: partition.Plan, cores: int, latency: float) -> float:
  """Of one group, with as many nets of a trainer as a node has cores."""
  trainers = made.nodes.trainers
  fleet, hardware = Fleet(trainers=trainers, nets=cores), Hardware(cores, latency)
  run = virtual.tick(made, fleet, hardware, ROUNDS * trainers * cores)
  return run.batches / run.seconds
