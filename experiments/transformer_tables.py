"""Table 4 of the DCT paper: a translation model whose hidden activations are thresholded at 1, 2 and 4 cuts.

    python experiments/transformer_tables.py --data=multi30k/ --workdir=runs/table4

Every row has the same seed and order of the data. Runs that are in the work directory already are not repeated. With
--results=FILE tables go to that file, too.
"""

import pathlib
import runpy
import statistics
import sys

import numpy as np
import transformer_iwslt
from absl import app, flags

from dct_jax.train import experiment, report, results

flags.adopt_module_key_flags(transformer_iwslt)
SPARSITIES = flags.DEFINE_list('sparsities', ['0.9', '0.95'],
                                'Sparsities of hidden activations at the cuts; each is a row of the table.')
WORKERS = flags.DEFINE_list('mp_workers', ['2', '3', '5'],
                             'Numbers of workers of one model, one more than cuts; each is a row of the table.')
# The paper's Table 4: losses of the training and of the test set, BLEU.
PAPER = {'baseline': '3.150, 3.883, 35.17', '90%, 2 workers': '3.159, 3.879, 35.23',
         '95%, 2 workers': '3.157, 3.882, 35.18', '90%, 3 workers': '3.151, 3.881, 35.22',
         '95%, 3 workers': '3.148, 3.882, 35.19', '90%, 5 workers': '3.157, 3.882, 35.20',
         '95%, 5 workers': '3.188, 3.890, 35.15'}
COLUMNS = ('train_loss', 'test_loss', 'test_nll', 'test_bleu')


def rows():
  """Rows by name -> what differs from the baseline."""
  cuts = runpy.run_path(flags.FLAGS.config)['CUTS']
  if unknown := set(WORKERS.value) - set(map(str, cuts)):
    raise app.UsageError(f'--mp_workers must be some of {sorted(cuts)}, got {sorted(unknown)}')
  return {'baseline': {}} | {
      f'{100 * float(s):g}%, {n} workers': {'splits': cuts[int(n)], 'mp_sparsity': float(s)}
      for n in WORKERS.value for s in SPARSITIES.value}


def finished(name, changes, workdir):
  """The log of one run; it is made if there is none, or none with a BLEU at its end."""
  directory = workdir / name.replace('%', '').replace(', ', '-').replace(' ', '-')
  lines = experiment.once(transformer_iwslt.train_one, experiment.changed(changes), directory,
                          ends_with='eval/test_bleu')
  print(f'{name}: test BLEU {lines[-1]["eval/test_bleu"]:.2f}', file=sys.stderr, flush=True)
  return lines, float((directory / 'seconds').read_text())


def learnt(runs):
  """Table 4: what was learnt, and the difference to the baseline."""
  base = runs['baseline'][0][-1]
  unit = lambda column: '' if column == 'test_bleu' else ', nats'
  name_of = lambda column: column.replace('_', ' ').replace('bleu', 'BLEU') + unit(column)
  heads = ['', *map(name_of, COLUMNS), 'BLEU against the baseline', 'minutes', 'paper: train loss, test loss, BLEU']
  rows = []
  for name, (log, seconds) in runs.items():
    last = log[-1]
    cells = [f'{last["eval/" + c]:.{2 if c == "test_bleu" else 4}f}' for c in COLUMNS]
    cells += [f'{last["eval/test_bleu"] - base["eval/test_bleu"]:+.2f}', f'{seconds / 60:.0f}', PAPER.get(name, '')]
    rows.append([name, *cells])
  return report.lines(results.table(heads, rows))


def traffic(runs):
  """Bytes of a step at every cut, means over the log, both ways, and with what has to cross as it is."""
  heads = ('', 'cut', 'forward', 'back', 'dense, each way', 'as they are, each way', 'times less', 'in all')
  rows = []
  for name, (log, _) in runs.items():
    cuts = sorted(k.split('/')[0] for k in log[-1] if k.endswith('/forward_bytes'))
    parts = {cut: np.array([statistics.mean(line[f'{cut}/{what}_bytes'] for line in log)
                            for what in ('forward', 'backward', 'dense', 'beside')]) for cut in cuts}
    if shared := log[-1].get('embeddings/beside_bytes'):
      # Two stages have the decoder's embeddings then, and add their gradients up.
      parts['embeddings'] = np.array([0, 0, 0, shared])
    if len(parts) > 1:
      parts['all'] = sum(parts.values())
    for cut, (forward, back, dense, beside) in parts.items():
      less = f'{2 * dense / (forward + back):.1f}' if dense else ''
      rows.append([name, cut, *(f'{x:,.0f}' for x in (forward, back, dense, beside)), less,
                   f'{2 * (dense + beside) / (forward + back + 2 * beside):.2f}'])
  return report.lines(results.table(heads, rows))


def main(argv):
  del argv
  config = experiment.config_of('baseline')
  experiment.begin(config.workers * config.stages)
  workdir = pathlib.Path(flags.FLAGS.workdir or 'runs/transformer_tables')
  runs = {name: finished(name, changes, workdir) for name, changes in rows().items()}
  experiment.show({'table4': learnt(runs), 'traffic': traffic(runs)}, config.seed)


if __name__ == '__main__':
  app.run(experiment.guarded(main))
