"""Tables 1, 2, 3 and 5 and Figure 7b of the DCT paper on click data, with several seeds: mean and spread.

    python experiments/dlrm_tables.py --tables=1,2,3 --seeds=0,1,2 --workdir=runs/tables
    python experiments/dlrm_tables.py --tables=1 --data=frappe/ --steps=2000
    python experiments/dlrm_tables.py --tables=5 --seeds=0,1          # a wider and deeper model, 12 cuts

Runs that are in the work directory already are not repeated. With --results=FILE tables go to that file, too.
"""

import pathlib
import statistics
import sys

import dlrm_criteo
from absl import app, flags

from dct_jax.train import experiment, report, results
from shared.dlrm.setup import WIDE_CUTS

flags.adopt_module_key_flags(dlrm_criteo)
TABLES = flags.DEFINE_list('tables', ['1', '2', '3'], 'Tables to make: 1, 2 (also Figure 7d), 3 and 5; 7 is Figure 7b.')
SEEDS = flags.DEFINE_list('seeds', ['0', '1', '2'],
                           'Seeds of parameters and of the order of the data; each is a run of its own.')
MEASURES = ('train_loss', 'train_accuracy', 'test_loss', 'test_accuracy', 'test_auc', 'test_ne')
BETTER = ('train_loss', 'test_loss')  # what is also shown in percent against the baseline
# The paper's test losses in Tables 1 to 3 (Table 3 has the baseline of the others), and what it says in Table 5.
PAPER = {
    '1': {'baseline': 0.4538, '75%, 2 workers': 0.4532, '90%, 2 workers': 0.4530, '95%, 2 workers': 0.4534,
          '98%, 2 workers': 0.4562, '75%, 3 workers': 0.4536, '90%, 3 workers': 0.4537, '95%, 3 workers': 0.4546},
    '2': {'baseline': 0.4538, '75.0%': 0.4534, '90.0%': 0.4536, '95.0%': 0.4538, '98.0%': 0.4537, '99.5%': 0.4547},
    '3': {'baseline': 0.4538, '75%': 0.4535, '90%': 0.4537, '95%': 0.4548},
    '5': {'75%, 12 cuts': +0.023, '90%, 12 cuts': +0.016, '95%, 12 cuts': -0.121}}
# Where a model of so many workers is cut; without dense features (Frappe) there is no bottom MLP.
CUTS = {2: 'bottom2', 3: 'bottom2,top2', 5: 'bottom1,bottom2,top1,top2'}
TOP_CUTS = {2: 'top2', 3: 'top1,top2', 4: 'top1,top2,top3'}


def mp(sparsity, splits, **more):
  return {'mp_sparsity': sparsity, 'splits': splits} | more


def dp(sparsity):
  return {'dp_sparsity': sparsity, 'tracking': 0.0, 'value_codec': 'float32'}  # as in the paper


def rows_of(table, cuts):
  """Rows by name -> what differs from the baseline. Those with a star are not in the paper's tables."""
  most, wide = max(cuts), {'method': 'wide'}
  lifespans = {n: {} if n == 1000 else {'lifespan': n} for n in (1, 10, 100, 1000, 10000)}
  if table == '5':
    return {'baseline': wide} | {f'{s:.0%}, 12 cuts': wide | mp(s, WIDE_CUTS) for s in (0.75, 0.9, 0.95)} | {
        '90%, 12 cuts, and gradients at 99%': wide | mp(0.9, WIDE_CUTS) | dp(0.99)}
  return {'baseline': {}} | {
      '1': {f'{s:.0%}, 2 workers': mp(s, cuts[2]) for s in (0.75, 0.9, 0.95, 0.98)}
           | {f'{s:.0%}, 3 workers': mp(s, cuts[3]) for s in (0.75, 0.9, 0.95)}
           | {f'75%, {most} workers *': mp(0.75, cuts[most]),
              '90%, 3 workers, masks apart *': mp(0.9, cuts[3], masks='apart')},
      '2': {f'{s:.1%}': dp(s) for s in (0.75, 0.9, 0.95, 0.98, 0.995)},
      '3': {f'{s:.0%}': mp(s, cuts[3]) | dp(s) for s in (0.75, 0.9, 0.95)},
      '7': {f'95%, L = {n}': dp(0.95) | more for n, more in lifespans.items()},
  }[table]


def finished(config, directory):
  """Measures of one run, from its log; it is made if there is none."""
  last = experiment.once(dlrm_criteo.train_one, config, directory)[-1]
  return {k: last[f'eval/{k}'] for k in MEASURES} | {'seconds': float((directory / 'seconds').read_text())}


def name_of(changes, seed):
  """A directory's name, the same for rows that are the same in several tables."""
  return '-'.join([*([f'{k}={v}' for k, v in sorted(changes.items())] or ['baseline']), seed])


def run_all(tables, workdir):
  """Every row of every table, all with the first seed, then all with the second, ...: name -> measures."""
  every = {name_of(changes, seed): (changes, seed) for seed in SEEDS.value
           for rows in tables.values() for changes in rows.values()}
  found = {}
  for name, (changes, seed) in every.items():
    config = experiment.changed(changes | {'seed': int(seed)})
    found[name] = finished(config, workdir / name)
    print(f'{len(found)} of {len(every)}: {name}, test loss {found[name]["test_loss"]:.4f}', file=sys.stderr)
  return found


def paper(table, name):
  """The paper's test loss, and by how many percent that is better than its baseline."""
  theirs = PAPER.get(table, {})
  if name not in theirs:
    return ''
  if table == '5':
    return f'{theirs[name]:+.3f}%'
  return f'{theirs[name]:.4f} ({100 * (1 - theirs[name] / theirs["baseline"]):+.2f}%)'


def line(name, runs, baseline):
  """One row of a table; in percent against the baseline with the same seed, better is positive."""
  show = lambda x, sign='', form='.4f': f'{statistics.mean(x):{sign}{form}} ± {statistics.pstdev(x):{form}}'
  better = lambda k: [100 * (1 - r[k] / b[k]) for r, b in zip(runs, baseline, strict=True)]
  cells = [show([r[k] for r in runs]) for k in MEASURES] + [show(better(k), '+', '.2f') for k in BETTER]
  return [name, *cells, f'{statistics.mean(r["seconds"] for r in runs):.0f}']


def table_of(table, rows, found):
  """Mean ± standard deviation over seeds."""
  heads = [h.replace('_', ' ') for h in ('', *MEASURES, *(f'{m} better by %' for m in BETTER), 's', 'paper: test loss')]
  runs = {name: [found[name_of(changes, seed)] for seed in SEEDS.value] for name, changes in rows.items()}
  return report.lines(results.table(heads, [
      [*line(name, of, runs['baseline']), paper(table, name)] for name, of in runs.items()]))


def main(argv):
  del argv
  config = experiment.config_of('baseline')
  experiment.begin(config.workers)
  workdir = pathlib.Path(flags.FLAGS.workdir or 'runs/dlrm_tables')
  dense = not config.data or dlrm_criteo.load(config).test.dense.shape[1]
  tables = {table: rows_of(table, CUTS if dense else TOP_CUTS) for table in TABLES.value}
  found = run_all(tables, workdir)
  experiment.show({f'table{table}': table_of(table, rows, found) for table, rows in tables.items()},
                  [int(seed) for seed in SEEDS.value])


if __name__ == '__main__':
  app.run(experiment.guarded(main))
