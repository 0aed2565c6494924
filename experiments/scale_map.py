"""Scale on paper: which method has the most examples a second, by the number of nodes and the rate of their lines.

    python experiments/scale_map.py     # a minute or two; docs/scale.md says what is assumed
"""

import dataclasses
import itertools

import matplotlib.colors
import matplotlib.figure
import matplotlib.patches
import numpy as np
import tqdm
from absl import app, flags

from dct_jax import partition
from dct_jax.netlab import bits_per_second
from dct_jax.train import experiment, results
from shared.scale import asynchronous, models, speeds, synchronous

MODELS = flags.DEFINE_list('models', 'DLRM,Transformer', 'Models that have a map: DLRM, Transformer.')
NODES = flags.DEFINE_list('nodes', '10,25,50,100,250,500,1000', 'Numbers of nodes, each a row of the map.')
RATES = flags.DEFINE_list('rates', '10mbit,100mbit,1gbit,10gbit,100gbit,400gbit', 'Rates, each a column of the map.')
CORES = flags.DEFINE_integer('cores', 18, 'Number of cores of a node, each of which computes a batch.',
                             lower_bound=1)
LATENCY = flags.DEFINE_float('latency', 1e-4, 'Seconds of a round of messages beside its bytes.', lower_bound=0.0)
MACHINE = flags.DEFINE_string('machine', '', 'File of costs of a core, measured if it is not there; none: defaults.')
SPARSITY = flags.DEFINE_float('sparsity', 0.99, 'Share of a gradient that stays behind in sparse methods.',
                              lower_bound=0.0, upper_bound=0.9999)
ALIKE = flags.DEFINE_float('alike', 0.0, 'Degree to which nodes choose the same entries: 0 independent, 1 identical.',
                           lower_bound=0.0, upper_bound=1.0)
THREE_LC = flags.DEFINE_float('three_lc_bits', 0.293, 'Bits that 3LC sends for a coordinate, each way.')
ADD = flags.DEFINE_float('add_ns', 1e9 * synchronous.ADD, 'Nanoseconds in which a residual is added to a coordinate.',
                         lower_bound=0.0)
BATCHES = flags.DEFINE_integer('most_batches', 320, 'Limit of batches that all cores together make a step of.',
                               lower_bound=1)
REPLICAS = flags.DEFINE_integer('most_replicas', 40, 'Limit of replicas that EASGD pulls together.', lower_bound=1)
APART = flags.DEFINE_integer('most_apart', 100, 'Limit of batches of a net between two synchronizations.',
                             lower_bound=1)
SECONDS = flags.DEFINE_float('seconds', 3.0, 'Seconds that the search for a plan of a group may take.', lower_bound=0.1)
OUT = flags.DEFINE_string('out', 'results/scale_map.json', 'File that all numbers go to.')
PICTURE = flags.DEFINE_string('picture', 'docs/pictures/scale_map.png', 'File that the map goes to.')

COLORS = {synchronous.DENSE: '#dddddd', synchronous.DCT: '#8ecae6', synchronous.SPARCML: '#f4a261',
          synchronous.UNION: '#c8b6ff', synchronous.THREE_LC: '#a7d49b', asynchronous.EASGD: '#f7d774',
          asynchronous.HT: '#ef8fa3'}


def cells(machine):
  """A cell of every model, number of nodes and rate, with limits and without."""
  sizes, found = [int(n) for n in NODES.value], []
  limits = {True: speeds.Limits(BATCHES.value, REPLICAS.value, APART.value), False: speeds.Limits()}
  for name in MODELS.value:
    model = models.measured(models.MODELS[name], machine)
    gradient = synchronous.Gradient(model.size, SPARSITY.value, three_lc_bits=THREE_LC.value, alike=ALIKE.value,
                                    add=1e-9 * ADD.value)
    for text in tqdm.tqdm(RATES.value, desc=name, leave=False):
      rate = bits_per_second(text) / 8
      site = speeds.Site(0, rate, CORES.value, LATENCY.value, dataclasses.replace(machine, rate=rate))
      clocked = speeds.clocked(model, site, sizes, SECONDS.value)
      for nodes, (limited, limit) in itertools.product(sizes, limits.items()):
        there = site._replace(nodes=nodes)
        every = speeds.together(model, there, limit, gradient) | speeds.apart(model, there, limit, clocked)
        winner = speeds.winner(every)
        found.append({'model': name, 'nodes': nodes, 'rate': text, 'limited': limited, 'winner': winner,
                      'factor': every[winner] / every[synchronous.DENSE], 'examples_per_second': every})
  return found


def draw(found, path):
  """A panel of every model, with limits and without."""
  panels = [(m, limited) for limited in (True, False) for m in MODELS.value]
  figure = matplotlib.figure.Figure((5.6 * len(MODELS.value), 8.6), layout='constrained')
  axes = figure.subplots(2, len(MODELS.value), squeeze=False).ravel()
  for axis, (model, limited) in zip(axes, panels, strict=True):
    of = {(c['nodes'], c['rate']): c for c in found if c['model'] == model and c['limited'] == limited}
    grid = [[of[int(n), r] for r in RATES.value] for n in NODES.value]
    axis.imshow([[matplotlib.colors.to_rgb(COLORS[c['winner']]) for c in row] for row in grid], aspect='auto',
                origin='lower')
    for (y, x), cell in np.ndenumerate(np.array(grid, object)):
      axis.text(x, y, f'{cell["winner"]}\n{cell["factor"]:.3g}', ha='center', va='center', fontsize=9)
    axis.set(title=f'{model}, {"with limits" if limited else "speed alone"}', xlabel='rate of a line', ylabel='nodes',
             xticks=range(len(RATES.value)), xticklabels=RATES.value, yticks=range(len(NODES.value)),
             yticklabels=NODES.value)
  figure.legend(handles=[matplotlib.patches.Patch(color=c, label=name) for name, c in COLORS.items()],
                loc='outside lower center', ncols=len(COLORS),
                title='colour: method with the most examples/s; number: times those of dense all-reduce')
  figure.savefig(path, dpi=110)


def maps(found):
  """Model, and whether there are limits -> a table of winners, with their examples a second over those of dense."""
  made = {}
  for model, limited in itertools.product(MODELS.value, (True, False)):
    of = {(c['nodes'], c['rate']): f'{c["winner"]} {c["factor"]:.3g}' for c in found
          if c['model'] == model and c['limited'] == limited}
    made[f'{model}_{"limits" if limited else "alone"}'] = results.table(
        ['nodes', *RATES.value], [[n, *(of[int(n), rate] for rate in RATES.value)] for n in NODES.value])
  return made


def main(argv):
  del argv
  if unknown := set(MODELS.value) - set(models.MODELS):
    raise app.UsageError(f'models are {", ".join(models.MODELS)}, got {", ".join(unknown)}')
  if min(int(n) for n in NODES.value) < 2:
    raise app.UsageError(f'an exchange needs 2 nodes or more, got --nodes={",".join(NODES.value)}')
  machine = partition.measure_machine(MACHINE.value) if MACHINE.value else partition.Machine()
  given = {flag.name: flag.value for flag in (MODELS, NODES, RATES, CORES, LATENCY, SPARSITY, ALIKE, THREE_LC, ADD,
                                              BATCHES, REPLICAS, APART, SECONDS)}
  found = cells(machine)
  results.write(OUT.value, tables=maps(found), settings=given, cells=found,
                **{'costs of a core': dataclasses.asdict(machine) | {'rate': None, 'memory': None}})
  draw(found, PICTURE.value)
  for cell in found:
    print(f'{cell["model"]:12}{"limits" if cell["limited"] else "":8}{cell["nodes"]:6}{cell["rate"]:>9}  '
          f'{cell["winner"]:15}{cell["factor"]:10.2f}')


if __name__ == '__main__':
  app.run(experiment.guarded(main))
