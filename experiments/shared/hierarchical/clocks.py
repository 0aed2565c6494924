"""A large DLRM by the clock alone: examples a second and utilization of 40 trainers and of groups, without training it.

The paper's Model-A has hundreds of sparse features and several hundred megabytes of dense parameters, on nodes of 18
cores. This one has 300 features and 223 MB. What the paper does not tell is ours: widths of layers, and the line.
"""

import dataclasses
import functools

import numpy as np

from dct_jax import partition
from dct_jax.partition import ready
from dct_jax.runtime import Fleet, Hardware, virtual

BATCH, NETS = 200, 18
HARDWARE = Hardware(cores=18, jitter=0.1)
MACHINE = partition.Machine(rate=25 * 1.25e8, cores=HARDWARE.cores)
# Model-B multiplies 8-bit numbers in forward products of layers. That such a product takes half as long is ours.
MODELS = {'Model-A': {}, 'Model-B': {'fc': 'int8', 'machine': dataclasses.replace(MACHINE, flop8=MACHINE.flop / 2)}}
CODECS = partition.Codecs('int8', 'bfloat16')
DRAWS = 5  # placements at random
SEARCH = 600.0  # seconds, of which it takes some 15: a search that is cut off finds another plan on a busier machine
GROUPS, SIZES = (2, 4, 6, 8, 10), (2, 4, 6, 8, 10)  # of figure 10
BATCHES, SLOW = (50, 100, 200, 400, 800), 1.25e8  # how batches pay off, also on a line of 1 Gbit


@functools.cache
def net(batch=BATCH):
  """The model that is planned: its shapes."""
  return ready.dlrm(batch=batch, tables=300, bottom=(1024, 1024, 64), top=(1024, 2048, 2048, 1024, 1),
                    optimizer='adagrad')


def plan(servers, trainers, *, batch=BATCH, machine=MACHINE, splits='auto', codec=CODECS, **options):
  """Of a group; without servers, of a trainer alone, on which nothing is split or sent."""
  made, nodes = net(batch), partition.Nodes(group=servers, trainers=trainers)
  splits, codec = (splits, codec) if servers else (None, None)
  return partition.plan(made.loss, made.optimizer, made.params, *made.batch, nodes=nodes, machine=machine,
                        splits=splits, codec=codec, **{'seconds': SEARCH, **options})


def run(made, groups, batches, seed=0):
  """Virtual time of so many batches for each net; a trainer alone takes more of them, as they are few events."""
  fleet = Fleet(groups, made.nodes.trainers, NETS, dense=4, gap=1.0)
  each = batches if made.nodes.group else 4 * batches
  return virtual.tick(made, fleet, HARDWARE, each * groups * made.nodes.trainers * NETS, seed=seed)


def ablations(group, model):
  """Name -> plans without one of the paper's optimizations; those at random are several."""
  choice = group.parts.choice if group.parts else None  # the same layers are split, wherever their parts are put
  made = functools.partial(plan, group.nodes.group, group.nodes.trainers, **model)
  return {'without greedy': [made(method='rules', splits=choice)],
          'without rules and greedy': [made(method='random', splits=choice, seed=s) for s in range(DRAWS)],
          'without FC splits': [made(splits=None)], 'without compression': [made(codec=None)]}


def batch_sizes(choice, batches, sizes=BATCHES):
  """Examples a second of 5 groups for each batch size: (line, codecs) -> size -> number; layers are split alike."""
  found = {}
  for line, rate in (('25 Gbit', MACHINE.rate), ('1 Gbit', SLOW)):
    for name, codec in (('int8, bfloat16', CODECS), ('exact', None)):
      made = functools.partial(plan, 6, 6, machine=dataclasses.replace(MACHINE, rate=rate), splits=choice, codec=codec)
      found[f'{line}, {name}'] = {n: run(made(batch=n), 5, batches).examples_per_second(n) for n in sizes}
  return found


def figures(model=None, batches=8, seeds=1, groups=GROUPS, sizes=SIZES):
  """Figures 8 to 11 as numbers.

  Args:
    model: what distinguishes it, as in `MODELS`.
    batches: of each net.
    seeds: of jitter, for figure 8.
    groups, sizes: of figure 10.
  """
  speed = lambda found: found.examples_per_second(BATCH)
  model = model or {}
  alone, group = plan(0, 1, **model), plan(6, 6, **model)
  grouped = functools.cache(lambda groups, seed=0: run(group, groups, batches, seed))  # figures share some of them
  without = {name: [speed(run(p, 5, batches)) for p in plans] for name, plans in ablations(group, model).items()}
  return {
      'megabytes': sum(_bytes(group)) / 1e6,
      'splits': group.parts.choice if group.parts else {},
      'figure 8': {'easgd40': [speed(run(alone, 40, batches, s)) for s in range(seeds)],
                   **{f'ht{g}': [speed(grouped(g, s)) for s in range(seeds)] for g in (5, 8, 10)}},
      'figure 9': _node_use(grouped(10, 0).utilization),
      'figure 10a': {g: speed(grouped(g, 0)) for g in groups},
      'figure 10b': {n: speed(run(plan(n, n, **model), 8, batches)) for n in sizes},
      'figure 11': {'all': speed(grouped(5, 0)), **{name: float(np.mean(found)) for name, found in without.items()}},
      'figure 11 at random': without['without rules and greedy'],
  }


def _node_use(used):
  """Shares of time of the first group's servers, and of its trainers in the mean, as the paper has them."""
  keys, mine = ('processor', 'in', 'out'), {k.removeprefix('group0/'): u for k, u in used.items() if 'group0/' in k}
  trainers = [u for name, u in mine.items() if name.startswith('trainer')]
  servers = {name: {k: u[k] for k in keys} for name, u in mine.items() if not name.startswith('trainer')}
  return {**servers, 'trainers': {k: float(np.mean([u[k] for u in trainers])) for k in keys}}


def _bytes(made):
  graph = made.graph
  return [4 * graph.avals[s.value].size for s in graph.slots if s.kind == 'parameter']
