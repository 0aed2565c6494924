"""Tables 1, 2 and 3 of the DCT paper on click data: every row with several seeds, mean and spread.

    python experiments/dlrm_tables.py --tables=1,2,3 --seeds=0,1,2 --workdir=runs/tables
    python experiments/dlrm_tables.py --tables=1 --data=frappe/ --steps=2000

Runs that are in the work directory already are not repeated.
"""

import os
import pathlib
import statistics
import sys
import time

import dlrm_criteo
from absl import app, flags, logging

from dct_jax import train
from dct_jax.train import experiment

TABLES = flags.DEFINE_list('tables', ['1', '2', '3'], 'Which of them.')
SEEDS = flags.DEFINE_list('seeds', ['0', '1', '2'], 'Of parameters and the order of the data.')
MEASURES = ('train_loss', 'train_accuracy', 'test_loss', 'test_accuracy', 'test_auc', 'test_ne')
TWO, THREE, FOUR = 'bottom2', 'bottom2,top2', 'bottom1,bottom2,top1,top2'


def mp(sparsity, splits, **more):
  return {'mp_sparsity': sparsity, 'splits': splits} | more


def dp(sparsity):
  return {'dp_sparsity': sparsity, 'tracking': 0.0, 'value_codec': 'float32'}  # as in the paper


# Rows by name -> what differs from the baseline. Those marked with a star are not in the paper's tables.
ROWS = {
    '1': {'baseline': {}}
         | {f'{s:.0%}, 2 workers': mp(s, TWO) for s in (0.75, 0.9, 0.95, 0.98)}
         | {f'{s:.0%}, 3 workers': mp(s, THREE) for s in (0.75, 0.9, 0.95)}
         | {'75%, 5 workers *': mp(0.75, FOUR), '90%, 3 workers, masks apart *': mp(0.9, THREE, masks='apart')},
    '2': {'baseline': {}} | {f'{s:.1%}': dp(s) for s in (0.75, 0.9, 0.95, 0.98, 0.995)},
    '3': {'baseline': {}} | {f'{s:.0%}': mp(s, THREE) | dp(s) for s in (0.75, 0.9, 0.95)},
}


def finished(config, directory):
  """Measures of one run, from its log; it is made if there is none."""
  lines = train.read_metrics(directory) if directory.exists() else []
  if not lines or lines[-1]['step'] < config.steps:
    started = time.monotonic()
    dlrm_criteo.train_one(config, directory)
    (directory / 'seconds').write_text(f'{time.monotonic() - started:.1f}')
    lines = train.read_metrics(directory)
  return {k: lines[-1][f'eval/{k}'] for k in MEASURES} | {'seconds': float((directory / 'seconds').read_text())}


def name_of(changes, seed):
  """A directory's name, the same for rows that are the same in several tables."""
  return '-'.join([*([f'{k}={v}' for k, v in sorted(changes.items())] or ['baseline']), seed])


def run_all(workdir):
  """Every row of every table, all with the first seed, then all with the second, ...: name -> measures."""
  every = {name_of(changes, seed): (changes, seed) for seed in SEEDS.value
           for table in TABLES.value for changes in ROWS[table].values()}
  found = {}
  for name, (changes, seed) in every.items():
    config = experiment.config_of('baseline')
    config.update(changes | {'seed': int(seed)})
    found[name] = finished(config, workdir / name)
    print(f'{len(found)} of {len(every)}: {name}, test loss {found[name]["test_loss"]:.4f}', file=sys.stderr)
  return found


def line(name, runs):
  """One row of a table, as Markdown."""
  show = lambda values: f'{statistics.mean(values):.4f} ± {statistics.pstdev(values):.4f}'
  cells = [show([r[k] for r in runs]) for k in MEASURES]
  return f'| {name} | ' + ' | '.join(cells) + f' | {statistics.mean(r["seconds"] for r in runs):.0f} |'


def main(argv):
  del argv
  logging.set_verbosity(logging.WARNING)
  config = experiment.config_of('baseline')
  os.environ.setdefault('DCT_JAX_LOCAL_DEVICES', str(config.workers))
  train.start(**train.flag_values())
  workdir = pathlib.Path(flags.FLAGS.workdir or 'runs/dlrm_tables')
  found = run_all(workdir)
  for table in TABLES.value:
    print(f'\nTable {table}, mean ± standard deviation over seeds {", ".join(SEEDS.value)}\n')
    print('| | ' + ' | '.join(m.replace('_', ' ') for m in MEASURES) + ' | s |')
    print('|---' * (len(MEASURES) + 2) + '|')
    for name, changes in ROWS[table].items():
      print(line(name, [found[name_of(changes, seed)] for seed in SEEDS.value]))


if __name__ == '__main__':
  app.run(main)
