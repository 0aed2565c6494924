"""A large DLRM by the clock alone: examples a second and utilization of 40 trainers and of groups, without training it.

The paper's Model-A has several hundred megabytes of dense parameters on nodes of 18 cores; this one has 112.
"""

from dct_jax import partition
from dct_jax.partition import ready
from dct_jax.runtime import Fleet, Hardware, virtual

BATCH, NETS = 200, 18
HARDWARE = Hardware(cores=18, jitter=0.1)
MACHINE = partition.Machine(rate=25 * 1.25e8)
CODECS = partition.Codecs('int8', 'bfloat16')
ABLATIONS = {
    'all': {}, 'without greedy': {'method': 'rules'}, 'without rules and greedy': {'method': 'random'},
    'without FC splits': {'splits': None}, 'without compression': {'codec': None}}


def plan(servers, trainers, *, splits='auto', codec=CODECS, **options):
  """Of a group; without servers, of a trainer alone."""
  net = ready.dlrm(batch=BATCH, bottom=(1024, 1024, 64), top=(4096, 4096, 2048, 1), optimizer='adagrad')
  nodes = partition.Nodes(group=servers, trainers=trainers)
  alone = {} if servers else {'splits': None, 'codec': None}
  return partition.plan(net.loss, net.optimizer, net.params, *net.batch, nodes=nodes, machine=MACHINE, seconds=8.0,
                        **{'splits': splits, 'codec': codec, **options, **alone})


def run(made, groups, batches):
  """Virtual time of so many batches for each net."""
  fleet = Fleet(groups, made.nodes.trainers, NETS, dense=4, gap=1.0)
  return virtual.tick(made, fleet, HARDWARE, batches * groups * made.nodes.trainers * NETS)


def figures(batches=6):
  """Figures 8 to 11, as numbers."""
  speed = lambda made, groups: run(made, groups, batches).examples_per_second(BATCH)
  alone, group = plan(0, 1), plan(6, 6)
  used = run(group, 10, batches).utilization
  return {
      'megabytes': sum(_bytes(group)) / 1e6,
      'figure 8': {'easgd40': speed(alone, 40), **{f'ht{g}': speed(group, g) for g in (5, 8, 10)}},
      'figure 9': {name: {k: used[name][k] for k in ('processor', 'in', 'out')} for name in used
                   if name.startswith('group0/')},
      'figure 10a': {g: speed(group, g) for g in (2, 4, 6, 8, 10)},
      'figure 10b': {n: speed(plan(n, n), 8) for n in (2, 4, 6, 8, 10)},
      'figure 11': {name: speed(plan(6, 6, **options), 5) for name, options in ABLATIONS.items()},
  }


def _bytes(made):
  graph = made.graph
  return [4 * graph.avals[s.value].size for s in graph.slots if s.kind == 'parameter']
