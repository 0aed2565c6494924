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
from dct_jax.data import click_sets
from dct_jax.train import experiment

TABLES = flags.DEFINE_list('tables', ['1', '2', '3'], 'Which of them.')
SEEDS = flags.DEFINE_list('seeds', ['0', '1', '2'], 'Of parameters and the order of the data.')
MEASURES = ('train_loss', 'train_accuracy', 'test_loss', 'test_accuracy', 'test_auc', 'test_ne')
# Where a model of so many workers is cut; without dense features (Frappe) there is no bottom MLP.
CUTS = {2: 'bottom2', 3: 'bottom2,top2', 5: 'bottom1,bottom2,top1,top2'}
TOP_CUTS = {2: 'top2', 3: 'top1,top2', 4: 'top1,top2,top3'}


def mp(sparsity, splits, **more):
  return {'mp_sparsity': sparsity, 'splits': splits} | more


def dp(sparsity):
  return {'dp_sparsity': sparsity, 'tracking': 0.0, 'value_codec': 'float32'}  # as in the paper


def rows_of(table, cuts):
  """Rows by name -> what differs from the baseline. Those with a star are not in the paper's tables."""
  most = max(cuts)
  return {'baseline': {}} | {
      '1': {f'{s:.0%}, 2 workers': mp(s, cuts[2]) for s in (0.75, 0.9, 0.95, 0.98)}
           | {f'{s:.0%}, 3 workers': mp(s, cuts[3]) for s in (0.75, 0.9, 0.95)}
           | {f'75%, {most} workers *': mp(0.75, cuts[most]),
              '90%, 3 workers, masks apart *': mp(0.9, cuts[3], masks='apart')},
      '2': {f'{s:.1%}': dp(s) for s in (0.75, 0.9, 0.95, 0.98, 0.995)},
      '3': {f'{s:.0%}': mp(s, cuts[3]) | dp(s) for s in (0.75, 0.9, 0.95)},
  }[table]


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


def run_all(tables, workdir):
  """Every row of every table, all with the first seed, then all with the second, ...: name -> measures."""
  every = {name_of(changes, seed): (changes, seed) for seed in SEEDS.value
           for rows in tables.values() for changes in rows.values()}
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
  dense = not config.data or click_sets.load(config.data, config.cache).test.dense.shape[1]
  tables = {table: rows_of(table, CUTS if dense else TOP_CUTS) for table in TABLES.value}
  found = run_all(tables, workdir)
  for table, rows in tables.items():
    print(f'\nTable {table}, mean ± standard deviation over seeds {", ".join(SEEDS.value)}\n')
    print('| | ' + ' | '.join(m.replace('_', ' ') for m in MEASURES) + ' | s |')
    print('|---' * (len(MEASURES) + 2) + '|')
    for name, changes in rows.items():
      print(line(name, [found[name_of(changes, seed)] for seed in SEEDS.value]))


if __name__ == '__main__':
  app.run(main)
