"""What came out of a sweep: one tidy table, and pictures with the runs that no other run beats."""

import math

import polars as pl

from dct_jax import train
from dct_jax.train import networks, pictures

MEASURES = ('test_loss', 'valid_loss', 'test_perplexity', 'train_loss')  # the first one that all runs have is drawn
BETTER_HIGHER = ('accuracy', 'auc', 'bleu')
BYTES = ('encoded', 'moved', 'sent', 'dense', 'row', 'crossed')


def table(runs, outcome, workdir, rate):
  """A row a run: all settings, what its last line says, bytes of a worker, seconds here and on a network."""
  return pl.DataFrame([row(run, outcome, workdir, rate) for run in runs], infer_schema_length=None, strict=False)


def row(run, outcome, workdir, rate):
  """One run's columns; what is not known of it is missing."""
  settings = {k: v if isinstance(v, int | float | str) else str(v) for k, v in run.config.items()}
  head = {'run': run.name, 'experiment': run.script.stem, **settings, 'method': run.method,
          'finished': run.name in outcome.done}
  if run.name not in outcome.done:
    return head
  noted, lines = outcome.done[run.name], train.read_metrics(workdir / run.name / run.method)
  last = lines[-1]
  found = {'last_step': last['step']}
  found |= {k.removeprefix('eval/'): x for k, x in last.items() if k.startswith('eval/')}
  found |= {f'total_{k}_bytes': last.get(f'total_{k}_bytes') for k in BYTES}
  found |= {'seconds': noted['seconds']} | on_network(run, lines, noted['cores'], rate)
  return head | {f'final_{k}' if k in head else k: x for k, x in found.items()}


def on_network(run, lines, cores, rate):
  """Seconds of a step's computation, and of the run on a network by the cost model, if that applies."""
  workers = run.config['workers']
  if run.config.get('stages', 1) > 1 or not networks.applies({run.name: lines}, {run.name: workers}):
    return {}
  return {'computation_seconds': networks.computation(lines, workers, cores),
          f'seconds_at_{rate}': networks.timed(lines, workers, rate, cores=cores)[-1][networks.KEY]}


def measure_of(found, wanted=None):
  """The column to draw: the one that was asked for, or the usual one of what was measured.

  Raises:
    ValueError: if there is no such column of numbers.
  """
  numbers = [name for name, kind in found.schema.items() if kind.is_numeric()]
  for name in [wanted] if wanted else MEASURES:
    if name in numbers:
      return name
  raise ValueError(f'runs have no measure {wanted or MEASURES!r}, only {", ".join(numbers)}')


def front(x, y, higher=False):
  """Numbers of the points that none is better than in both directions, by rising x: the Pareto front.

  Examples:
    >>> front([1, 2, 3, 4], [9, 5, 7, 1])
    [0, 1, 3]
  """
  found, best = [], math.inf
  for i in sorted(range(len(x)), key=lambda i: (x[i], -y[i] if higher else y[i])):
    value = -y[i] if higher else y[i]
    if value < best:
      found.append(i)
      best = value
  return found


def draw(found, measure, grid, rate, path):
  """Draws the measure at the end of every run against bytes and against time; names settings on the front.

  Args:
    found: from `table`.
    measure: column of the vertical axis.
    grid: names of the flags that differ. Runs that differ in their seed alone count with their mean.
    rate: of the network whose time is drawn, where it is known.
    path: of the PNG.
  """
  import matplotlib.figure
  seconds = f'seconds_at_{rate}'
  axes = {'total_sent_bytes': ('MB of gradients sent by a worker', 1e6)}
  if seconds in found.columns:
    axes[seconds] = (f'seconds at {networks.rate_text(rate)}, by the cost model', 1)
  figure = matplotlib.figure.Figure(figsize=(6 * len(axes), 4.5), layout='constrained', dpi=120)
  panels = figure.subplots(1, len(axes), sharey=True, squeeze=False)[0]
  for panel, (column, (label, unit)) in zip(panels, axes.items(), strict=True):
    shown = found.filter(pl.col(measure).is_not_null() & pl.col(column).is_not_null())
    shown = shown.with_columns(pl.col(column) / unit)
    _points(panel, shown, column, measure, [name for name in grid if name != 'seed'])
    panel.set(xlabel=label, xscale='log' if len(shown) and shown[column].min() > 0 else 'linear')
    panel.grid(visible=True, which='major', alpha=0.3)
  panels[0].set_ylabel(measure.replace('_', ' '))
  pictures.plain_ticks(*panels)
  pictures.legend_beside(figure)
  figure.savefig(path)


def _points(panel, shown, column, measure, settings):
  """All runs, and the front of the means over seeds, with the settings on it."""
  means = (shown.group_by(settings, maintain_order=True).agg(pl.col(column, measure).mean()) if settings else
           shown.select(pl.col(column, measure).mean()))
  x, y = means[column].to_list(), means[measure].to_list()
  best = front(x, y, any(word in measure for word in BETTER_HIGHER))
  panel.plot(shown[column], shown[measure], '.', color='tab:gray', label='a run')
  panel.plot(x, y, 'o', color='tab:blue', label='mean over seeds')
  panel.plot([x[i] for i in best], [y[i] for i in best], 'o-', color='tab:red', drawstyle='steps-post',
             label='Pareto front')
  panel.margins(x=0.2, y=0.2)
  for number, i in enumerate(best):
    text = ', '.join(f'{name}={means[name][i]}' for name in settings)
    panel.annotate(text, (x[i], y[i]), xytext=(4, -14 if number % 2 else 6), textcoords='offset points', fontsize=9)
