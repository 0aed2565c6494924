"""A table and a figure that put runs side by side."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from dct_jax.train import networks, pictures, results

Histories = Mapping[str, Sequence[Mapping[str, float]]]  # by the name of the run


def table(histories: Histories, evaluated: Sequence[str] = ('train_loss', 'test_loss')) -> str:
  """The end of each run as lines of text.

  Bytes are those of a worker's messages with gradients: encoded, what codecs made of them; sent, what left the
  worker. Where nothing was sent, as of a worker alone, nothing is said of compression. `sent_table` has all else.

  Args:
    histories: as `run` or `read_metrics` return them.
    evaluated: which results of `evaluate` to show, from the last line; empty where a run has none.
  """
  head = ['', *(name.replace('_', ' ') for name in evaluated), 'gradients: encoded B/step',
          'compression', 'sent B/step', 'sent MB']
  return _aligned([head, *(_row(name, lines[-1], evaluated) for name, lines in histories.items())])


class TableText(str):
  """A table as text; `made` is the table itself, as a file of results has it."""

  made: dict[str, Any]


def lines(made: Mapping[str, Any]) -> TableText:
  """A table of `results.table` as text, with its columns aligned."""
  rows = [made['head'], *made['rows']]
  widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
  text = TableText('\n'.join('  '.join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows))
  text.made = dict(made)
  return text


def _aligned(rows):
  return lines(results.table(rows[0], rows[1:]))


def _row(name, last, evaluated):
  steps, sent = last['step'], last['total_sent_bytes']
  return [name, *(f'{last["eval/" + key]:.5f}' if 'eval/' + key in last else '' for key in evaluated),
          f'{last["total_encoded_bytes"] / steps:,.0f}',
          f'{last["total_dense_bytes"] / last["total_encoded_bytes"]:.1f}x' if sent else '',
          f'{sent / steps:,.0f}', f'{sent / 1e6:,.2f}']


def sent_table(histories: Histories) -> str | TableText:
  """What a worker, all of its stages together, has sent of gradients, of rows and of activations; '' if only the first.

  Args:
    histories: with `total_row_bytes` in their lines if there are tables, `total_crossed_bytes` if there are stages.
  """
  more = ('total_row_bytes', 'total_crossed_bytes')
  if not any(name in lines[-1] for lines in histories.values() for name in more):
    return ''
  rows = [['sent by a worker', 'gradients B/step', 'rows B/step', 'activations B/step', 'all MB']]
  for name, lines in histories.items():
    sent = [lines[-1].get(key, 0) for key in ('total_sent_bytes', *more)]
    rows.append([name, *(f'{x / lines[-1]["step"]:,.0f}' for x in sent), f'{sum(sent) / 1e6:,.2f}'])
  return _aligned(rows)


def one_pass(history: Sequence[Mapping[str, float]], steps: int) -> dict[str, float]:
  """What to log of a pass over the data: its last line, and the seconds of the whole pass.

  Args:
    history: of every step, from `run` with a step of `make_sectioned_step`.
    steps: of a whole pass. A resumed run has seen fewer, and its mean stands for the others.
  """
  names = ('local_seconds', 'exchange_seconds', 'update_seconds')
  means = {k: sum(line[k] for line in history) / len(history) for k in names}
  seconds = {f'pass_{k}': steps * v for k, v in means.items()} | {'pass_seconds': steps * sum(means.values())}
  return {k: v for k, v in history[-1].items() if k not in ('step', *names)} | seconds


def pass_table(histories: Histories, baseline: str = 'dense') -> TableText:
  """Seconds of a pass over the data, communication in brackets, as SparCML's table 2 has them.

  Args:
    histories: with lines of `one_pass`; all passes of a run are averaged.
    baseline: the run that others are compared with; without it there is no comparison.
  """
  mean = lambda lines, key: sum(line[key] for line in lines) / len(lines)
  times = {name: (mean(lines, 'pass_seconds'), mean(lines, 'pass_exchange_seconds'))
           for name, lines in histories.items()}
  show = lambda pair: f'{pair[0]:.3f} ({pair[1]:.3f})'
  rows = [['algorithm', 'baseline s (comm.)', 'time s (comm.)', 'speedup (comm.)', 'sent MB a pass']]
  for name, (whole, part) in times.items():
    last = histories[name][-1]
    sent = last['total_sent_bytes'] / len(histories[name]) / 1e6
    base = times.get(baseline)
    speedup = f'{base[0] / whole:.2f} ({base[1] / max(part, 1e-9):.2f})' if base else ''
    rows.append([name, show(base) if base else '', show((whole, part)), speedup, f'{sent:,.2f}'])
  return _aligned(rows)


def activation_table(histories: Histories) -> str | TableText:
  """Bytes of a worker's activations at the cuts of its model in the last step, both ways; '' without any cut.

  Cuts between stages send them. Those inside of a worker send nothing: bytes are what would cross.

  Args:
    histories: with `activation_forward_bytes`, `activation_backward_bytes` and `activation_dense_bytes` (of one
      way) in their lines; runs without a cut have zeros, or none of these.
  """
  if not any(lines[-1].get('activation_dense_bytes') for lines in histories.values()):
    return ''
  rows = [['at the cuts, encoded', 'forward B/step', 'backward B/step', 'dense B/step, each', 'compression', 'sent']]
  for name, lines in histories.items():
    forward, backward, dense = (lines[-1].get(f'activation_{k}_bytes', 0.0) for k in ('forward', 'backward', 'dense'))
    both = f'{2 * dense / (forward + backward):.1f}x' if dense else ''
    sent = ('yes' if 'total_crossed_bytes' in lines[-1] else 'no') if dense else ''
    rows.append([name, f'{forward:,.0f}', f'{backward:,.0f}', f'{dense:,.0f}', both, sent])
  return _aligned(rows)


def row_table(histories: Histories) -> TableText:
  """Bytes that a worker sends for rows of embedding tables in the last step, beside those of all other gradients.

  Args:
    histories: with `row_bytes` in their lines; runs without tables have none.
  """
  rows = [['sent in the last step', 'rows B', 'other gradients B']]
  for name, lines in histories.items():
    mine = lines[-1].get('row_bytes')
    rows.append([name, '' if mine is None else f'{mine:,.0f}', f'{lines[-1]["sent_bytes"]:,.0f}'])
  return _aligned(rows)


def evaluations(history: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
  """What `evaluate` said during a run, by name, and `step`: columns to draw.

  Args:
    history: as `run` or `read_metrics` return it; lines without an evaluation are skipped.
  """
  names = [key for key in history[-1] if key.startswith('eval/')]
  lines = [line for line in history if all(name in line for name in names)]
  return {key.removeprefix('eval/'): [line[key] for line in lines] for key in ('step', *names)}


def plot(histories: Histories, path: str | os.PathLike, key: str = 'eval/train_loss', label: str = 'training loss',
         rate: str | None = None) -> None:
  """Draws a metric against steps, bytes of gradients that a worker has sent, and time on a network.

  It needs matplotlib. The best value that can be expected is drawn in where lines have it: `eval/best_test_loss` for
  `eval/test_loss`.

  Args:
    histories: as `run` or `read_metrics` return them.
    path: of the PNG.
    key: which metric; lines without it are skipped.
    label: of the vertical axis.
    rate: of the links, as in '100mbit', if lines have the time on such a network (`networks.timed`).
  """
  import matplotlib.figure  # not pyplot: nothing global, no window

  sent = any(lines[-1].get('total_sent_bytes') for lines in histories.values())  # one worker alone sends nothing
  axes = {'step': ('step', 1, 'linear'),
          'total_sent_bytes': ('MB of gradients sent by a worker', 1e6, 'log' if sent else 'linear')}
  if rate:
    axes[networks.KEY] = (f'seconds at {networks.rate_text(rate)}, by the cost model', 1, 'log')
  figure = matplotlib.figure.Figure(figsize=(1.5 + 4.5 * len(axes), 4), layout='constrained', dpi=120)
  panels = figure.subplots(1, len(axes), sharey=True)
  for panel, (column, (name, unit, scale)) in zip(panels, axes.items(), strict=True):
    for run, lines in histories.items():
      shown = [line for line in lines if line.get(key) is not None]
      panel.plot([line[column] / unit for line in shown], [line[key] for line in shown], label=run,
                 **pictures.points(shown))
    panel.set(xlabel=name, xscale=scale, yscale='log')
    panel.grid(visible=True, which='major', alpha=0.3)
    _draw_best(panel, histories, key.replace('eval/', 'eval/best_'))
  panels[0].set_ylabel(label)
  pictures.plain_ticks(*panels)
  pictures.legend_beside(figure)
  figure.savefig(path)


def _draw_best(panel, histories, key):
  """A line at the best value that can be expected, where it is known."""
  known = {line[key] for lines in histories.values() for line in lines if line.get(key) is not None}
  for best in known:
    panel.axhline(best, linestyle='--', color='gray', label=f'best possible: {best:.3f}')
