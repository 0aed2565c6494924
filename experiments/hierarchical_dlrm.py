"""Hierarchical training of a DLRM: many replicas against few groups, with the asynchrony that they would really have.

    python experiments/hierarchical_dlrm.py                   # 40 trainers against 5 groups, in virtual time
    python experiments/hierarchical_dlrm.py --method=nets12,nets96 --rows=500000
    python experiments/hierarchical_dlrm.py --method=small --engine=ray      # 12 processes, each node its own
    python experiments/hierarchical_dlrm.py --method=edges,edges-int8-int4,edges-int8-sparse --rows=300000
"""

import json
import pathlib
import sys

import numpy as np
from absl import app, flags

from dct_jax.runtime import staleness, virtual
from dct_jax.train import experiment, report, results
from shared.hierarchical import on_cluster, problem

experiment.define_flags(pathlib.Path(__file__).parents[1] / 'configs/hierarchical_dlrm.py', {
    'data': (str, 'Criteo TSV, or directory with the files of Frappe; synthetic clicks unless given.'),
    'engine': (str, 'What runs it: virtual for one process with a clock of its own, ray for processes, or threads.'),
    'address': (str, 'Address of a Ray cluster, as host:port; one is started on this machine unless given.'),
    'checkpoint_every': (float, 'Seconds between checkpoints of a cluster.'),
    'publish_every': (float, 'Seconds between models that a cluster publishes; 0 for the last one alone.'),
    'rows': (int, 'Number of rows of the synthetic training set.'),
    'batch': (int, 'Number of examples of a batch.'),
    'groups': (int, 'Number of groups, each with a copy of the dense parameters.'),
    'trainers': (int, 'Number of trainers of a group.'),
    'servers': (int, 'Number of group parameter servers of a group; none makes a trainer a group.'),
    'nets': (int, 'Number of batches that a trainer works on at the same time.'),
    'sync': (str, 'Way to pull groups together: easgd, averaging or bmuf.'),
    'alpha': (float, 'Strength with which a synchronization pulls.'),
    'gap': (float, 'Seconds between synchronizations of a server; of virtual time, if that is the engine.'),
    'forward': (str, 'Codec of activations: exact, bfloat16, float16, int8, int4, or sparse:0.9 for a tenth of a row.'),
    'backward': (str, 'Codec of gradients of activations, with the same names.'),
    'feedback': (int, 'Number of batches, on average, until what gradients lose is forgotten; 0 keeps none of it.'),
    'fc': (str, 'Numbers that layers multiply forward: float32, or int8 with gradients in float32.'),
    'rate': (str, 'Rate of a line, as 10gbit, before nodes are slowed down.'),
    'learning_rate': (float, 'Learning rate of the dense parameters.'),
    'row_learning_rate': (float, 'Learning rate of the tables.'),
    'passes': (int, 'Number of passes over the data.'),
})


def train_one(config, path):
  """Trains one variant, or reads what it has given before."""
  if path.exists():
    return _before(config, path)
  task = problem.make(config, problem.load(config))
  plan = problem.plan(config, task)
  train = _in_virtual_time if config.engine == 'virtual' else on_cluster.train
  found = {'settings': json.loads(config.to_json()), 'best_ne': task.best, 'megabytes': plan.load.traffic / 1e6,
           **train(config, task, plan, path.with_suffix(''))}
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(json.dumps(found, indent=1))
  return found


def _in_virtual_time(config, task, plan, directory):
  del directory  # a run that ends too early begins again
  params = plan.split(task.params)
  run = virtual.train(plan, problem.fleet(config), problem.hardware(config), (params, task.optimizer.init(params)),
                      task.batch_of, task.batches, seed=config.seed, evaluate=task.evaluate,
                      evaluations=config.evaluations)
  return {'batches': run.batches,
          'evaluations': [(done, {k: float(v) for k, v in said.items()}) for done, said in run.evaluations],
          'ne': float(run.evaluations[-1][1]['ne']),
          'train_loss': float(np.mean(run.losses[-max(run.batches // 10, 1):])),
          'examples_per_second': run.examples_per_second(config.batch), 'seconds': run.seconds,
          'staleness': {node: staleness.mean([counts]) for node, counts in run.staleness.items()},
          'events': run.events, 'wall_seconds': run.wall_seconds}


def _before(config, path):
  """What is there; a table must not mix runs of different settings."""
  found, mine = json.loads(path.read_text()), json.loads(config.to_json())
  if other := [k for k in mine if found['settings'].get(k) != mine[k]]:
    raise ValueError(f'{path} has a run of other settings; take another --workdir: ' + ', '.join(
        f'{k} was {found["settings"].get(k)!r}, got {mine[k]!r}' for k in other))
  return found


def main(argv):
  del argv
  names = ['easgd40', 'ht5'] if flags.FLAGS.method == ['compare'] else flags.FLAGS.method
  workdir = pathlib.Path(flags.FLAGS.workdir or 'runs/hierarchical')
  for name in names:
    problem.check(experiment.config_of(name))
  found = {}
  for name in names:
    config = experiment.config_of(name)
    found[name] = train_one(config, workdir / f'{name}-{config.seed}.json')
    print(f'{name}: NE {found[name]["ne"]:.5f}', file=sys.stderr, flush=True)
  experiment.show({'variants': table(found)}, config.seed)


def table(found):
  """What was found of each variant: quality, what crosses for a batch, speed, and staleness."""
  rows = []
  for name, run in found.items():
    dense = [s for node, s in run['staleness'].items() if not node.startswith('sparse')]
    rows.append([name, f'{run["ne"]:.5f}', f'{1e3 * run["megabytes"]:,.0f}', f'{run["examples_per_second"]:,.0f}',
                 f'{np.mean(dense):.1f}', f'{run["staleness"].get("sparse0", 0):.1f}'])
  return report.lines(results.table(['', 'NE', 'KB a batch', 'examples/s', 'staleness: dense', 'tables'], rows))


if __name__ == '__main__':
  app.run(experiment.guarded(main))
