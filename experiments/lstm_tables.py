"""How small a sketch may be: the language model with S2 Reducer at several lambdas, beside the exact sum.

    python experiments/lstm_tables.py --data=wikitext2/ --steps=2240 --workdir=runs/lambdas

The exact sum is trained with several seeds, which gives a spread. A lambda passes if the perplexity of the test set is
within that spread, or within 2% of its mean. Sketches are of the gradients of input rows; lambda is that of the union.
Runs that are in the work directory already are not repeated. Prints a table, which goes to --results=FILE, too, and
draws the curves.
"""

import pathlib
import statistics
import sys

import lstm_wikitext
import matplotlib.figure
from absl import app, flags

from dct_jax.train import experiment, pictures, report, results

flags.adopt_module_key_flags(lstm_wikitext)
SEEDS = flags.DEFINE_list('seeds', ['0', '1', '2'], 'Seeds of runs with the exact sum; sketches have the first.')
LAMBDAS = flags.DEFINE_list('lambdas', ['0.25', '0.57', '1', '2'], "Numbers of a sketch over the union's entries.")
SKETCHES = flags.DEFINE_list('sketches', ['1'], 'Numbers of rows of a sketch; each lambda has a run with each.')
EXACT = flags.DEFINE_string('exact', 'dense', 'Variant whose sum is exact: dense, gather or union.')
CLOSE = 0.02  # of the mean of exact runs


def runs():
  """Name -> what differs from the exact variant's configuration."""
  exact = {f'{EXACT.value}, seed {s}': {'method': EXACT.value, 'seed': int(s)} for s in SEEDS.value}
  sketch = {'method': 's2', 'seed': int(SEEDS.value[0]), 'lam_of': 'union'}
  sketched = {f'S2, lambda {lam}' + (f', {rows} rows' if rows != '1' else ''):
              sketch | {'lam': float(lam), 'sketch_rows': int(rows)}
              for rows in SKETCHES.value for lam in LAMBDAS.value}
  return exact | sketched


def finished(name, changes, workdir):
  """The log of one run; it is made if there is none."""
  config = experiment.changed(changes | {'output_rows': 'gather'})
  lines = experiment.once(lstm_wikitext.train_one, config, workdir / name.replace(', ', '-').replace(' ', '_'),
                          'eval/test_perplexity')
  print(f'{name}: {lines[-1]["eval/test_perplexity"]:.2f}', file=sys.stderr)
  return lines


def table(logs):
  """Perplexities, against the mean of exact runs, and whether that is close enough."""
  last = {name: lines[-1] for name, lines in logs.items()}
  exact = [x['eval/test_perplexity'] for name, x in last.items() if not name.startswith('S2')]
  mean, limit = statistics.mean(exact), max(max(exact), statistics.mean(exact) * (1 + CLOSE))
  heads, rows = ('sum of input rows', 'lambda of a worker', 'validation', 'test', 'against the mean', 'passes'), []
  for name, x in last.items():
    lam = f'{x["s2_lambda"]:.2f}' if 's2_lambda' in x else ''
    perplexity = x['eval/test_perplexity']
    rows.append([name, lam, f'{x["eval/valid_perplexity"]:.1f}', f'{perplexity:.1f}',
                 f'{100 * (perplexity / mean - 1):+.1f}%', 'yes' if perplexity <= limit else 'no'])
  return report.lines(results.table(heads, rows))


def draw(logs, path):
  """Perplexities of the validation set against steps; bytes differ by input rows alone, which are not all of them."""
  figure = matplotlib.figure.Figure(figsize=(7, 4), layout='constrained', dpi=120)
  axis = figure.subplots()
  for name, lines in logs.items():
    points = [(line['step'], line['eval/valid_perplexity']) for line in lines if 'eval/valid_perplexity' in line]
    axis.plot(*zip(*points, strict=True), marker='.', linestyle='--' if name.startswith('S2') else '-', label=name)
  axis.set(xlabel='step', ylabel='perplexity of the validation set', yscale='log')
  axis.grid(visible=True, which='both', alpha=0.3)
  pictures.plain_ticks(axis)
  pictures.legend_beside(figure, fontsize=8)
  figure.savefig(path)


def main(argv):
  del argv
  experiment.begin(experiment.config_of(EXACT.value).workers)
  workdir = pathlib.Path(flags.FLAGS.workdir or 'runs/lstm_tables')
  logs = {name: finished(name, changes, workdir) for name, changes in runs().items()}
  experiment.show({'lambdas': table(logs)}, [int(seed) for seed in SEEDS.value])
  draw(logs, workdir / 'lambdas.png')
  print(f'figure: {workdir / "lambdas.png"}')


if __name__ == '__main__':
  app.run(experiment.guarded(main))
