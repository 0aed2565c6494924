"""Figures 2 and 5 of the DCT paper on click data: thresholds of gradients and of activations during training.

    python experiments/dlrm_figures.py --workdir=runs/figures    # runs that are there are not repeated

With --results=FILE numbers go to that file, too.
"""

import json
import pathlib
from functools import partial

import dlrm_criteo
import matplotlib.figure
import numpy as np
from absl import app, flags

from dct_jax.train import experiment, pictures, report, results
from shared.dlrm import thresholds

flags.adopt_module_key_flags(dlrm_criteo)
GRADIENTS = flags.DEFINE_list('gradients', ['0.75', '0.9', '0.95', '0.98', '0.995'],
                               'Sparsities of gradients in Figure 2; none leaves the figure out.')
ACTIVATIONS = flags.DEFINE_list('activations', ['0.75', '0.9', '0.95'],
                                 'Sparsities of activations in Figure 5; none leaves the figure out.')
LAYER = flags.DEFINE_string('layer', 'top1', 'Layer whose kernel Figure 2 is about.')
WINDOW = flags.DEFINE_integer('window', 100,
                              'Number of steps of the running mean, which ends with the step in question.')
PLACES = ('bottom2', 'top2')  # the cuts of Figure 5, both in each run


def watched(workdir, name, evaluation, **changes):
  """What a run's evaluations have found, by name, with `step`; from its log, or a new run."""
  config = experiment.changed(changes)
  lines = experiment.once(partial(dlrm_criteo.train_one, evaluation=evaluation), config, workdir / name)
  return {k: np.array(v) for k, v in report.evaluations(lines).items()}


def figure2(workdir, axes):
  """Thresholds of one worker and their running means; and deviations from these, of all workers."""
  found, n = {}, WINDOW.value
  for s in map(float, GRADIENTS.value):
    # With a lifespan of 1, Algorithm 1 chooses a threshold in each step, from gradients with error feedback.
    run = watched(workdir, f'gradients-{s}', thresholds.of_gradients, dp_sparsity=s, lifespan=1,
                  tracking=0.0, value_codec='float32', evaluate_every=1)
    taus = np.array([tau for name, tau in run.items() if name.startswith(f'{LAYER.value}/')])
    means = np.lib.stride_tricks.sliding_window_view(taus, n, axis=1).mean(axis=-1)
    apart = np.abs(taus[:, n - 1:] / means - 1)
    line, = axes.plot(run['step'], taus[0], alpha=0.35, linewidth=0.6)
    axes.plot(run['step'][n - 1:], means[0], color=line.get_color(), label=f'{s:.1%}, mean of {n} steps')
    found[f'{s:.1%}'] = {'largest': apart.max(), 'median': np.median(apart),
                         'largest, later half': apart[:, apart.shape[1] // 2:].max()}
  axes.set(xlabel='iteration', ylabel=f'threshold of the gradient of {LAYER.value}', yscale='log')
  pictures.plain_ticks(axes)
  return found


def figure5(workdir, *panels):
  """A panel for each cut; dotted with DCT-MP."""
  sparsities = list(map(float, ACTIVATIONS.value))
  watch = partial(thresholds.of_activations, sparsities=sparsities)
  run = lambda name, s: watched(workdir, f'activations-{name}', watch, mp_sparsity=s, splits=','.join(PLACES),
                                evaluate_every=10)
  dense, found = run('dense-' + '-'.join(ACTIVATIONS.value), 0.0), {}
  for s in sparsities:
    sparse = run(s, s)
    for place, axes in zip(PLACES, panels, strict=True):
      without, applied = (r[f'{place}/{s}'] for r in (dense, sparse))
      line, = axes.plot(dense['step'], without, label=f'{s:.0%}', **pictures.points(without))
      axes.plot(sparse['step'], applied, color=line.get_color(), linestyle='dotted', label=f'{s:.0%}, DCT-MP',
                **pictures.points(applied))
      at = [0, len(without) // 3 - 1, -1]  # in 1,500 steps: the first of them, the 500th and the last
      found[f'{place}, {s:.0%}'] = {'without': [*without[at]], 'with': [*applied[at]]}
  for place, axes in zip(PLACES, panels, strict=True):
    axes.set(title=f'after {place}', xlabel='iteration', ylabel='mean threshold of a row', ylim=(0, None))
  return found


def table2(found):
  """How far thresholds are from their running mean."""
  return results.table(['sparsity', 'largest', 'later half', 'median'], [
      [name, f'{x["largest"]:.0%}', f'{x["largest, later half"]:.0%}', f'{x["median"]:.1%}']
      for name, x in found.items()])


def table5(found):
  """Thresholds at the start, after a third and at the end; and how they have changed since that third."""
  show = lambda taus: ', '.join(f'{tau:.3f}' for tau in taus)
  change = lambda taus: f'{taus[2] / taus[1] - 1:+.0%}'
  return results.table(['', 'without', 'DCT-MP', 'change since the second'], [
      [name, *map(show, x.values()), ', '.join(map(change, x.values()))] for name, x in found.items()])


def save(workdir, number, draw, panels):
  """A figure as a picture, and its numbers as JSON; returns them."""
  figure = matplotlib.figure.Figure(figsize=(3 + 4 * panels, 4), layout='constrained', dpi=110)
  numbers = draw(workdir, *figure.subplots(1, panels, squeeze=False)[0])
  pictures.legend_beside(figure, title='sparsity', fontsize='small')
  figure.savefig(workdir / f'figure{number}.png')
  (workdir / f'figure{number}.json').write_text(json.dumps(numbers, indent=2))
  return numbers


def main(argv):
  del argv
  config, made = experiment.config_of('baseline'), {}
  experiment.begin(config.workers)
  workdir = pathlib.Path(flags.FLAGS.workdir or 'runs/dlrm_figures')
  if GRADIENTS.value:
    made['figure2'] = report.lines(table2(save(workdir, 2, figure2, panels=1)))
  if ACTIVATIONS.value:
    made['figure5'] = report.lines(table5(save(workdir, 5, figure5, panels=len(PLACES))))
  experiment.show(made, config.seed)


if __name__ == '__main__':
  app.run(experiment.guarded(main))
