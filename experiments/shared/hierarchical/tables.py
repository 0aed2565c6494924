"""Tables of what `results/hierarchical.json` has; `docs/papers/hierarchical.md` shows them."""

import numpy as np

from dct_jax.train import results

# What the paper's text says of its figures; it prints no other numbers.
PAPER = {('figure 3', 'easgd40'): '+0.25%', ('figure 4', 'nets96'): '+0.02%', ('figure 7', 'ht5'): 'below -0.2%',
         ('figure 7', 'ht10'): 'neutral', ('figure 8', 'ht10'): '1.6', ('figure 8 each', 'ht10'): '1.07',
         ('figure 11', 'without rules and greedy'): 'below -40%', ('figure 11', 'without compression'): 'does not pay',
         ('figure 11', 'without greedy'): '"considerably" less'}
WHOLE = ('synthetic', 'model_b')  # sets with figures of their own; of the others there are endpoints
TRAINERS = {'easgd40': 40, 'ht5': 30, 'ht8': 48, 'ht10': 60}


def tables(found):
  """Tables of a file of results, by set or model and figure: `synthetic_figure3`, `Model-A_figure8`."""
  others = {k: v for k, v in found['quality'].items() if k not in WHOLE}
  made = {(name, figure): _quality(figure, rows) for name in WHOLE if name in found['quality']
          for figure, rows in found['quality'][name].items()}
  if others:
    made['endpoints', 'all'] = _endpoints(others)
  for model, numbers in found['clock'].items():
    made.update({(model, 'figure 8'): _speeds(numbers['figure 8']), (model, 'figure 9'): _use(numbers['figure 9']),
                 (model, 'figure 11'): _ablations(numbers['figure 11'])})
    made.update({(model, f'figure {k}'): _scaling(numbers[f'figure {k}'], label) for k, label in (
        ('10a', 'groups of 6 + 6'), ('10b', 'trainers and servers of each of 8 groups'))})
  if found.get('batches'):
    made['Model-A', 'batches'] = _batches(found['batches'])
  return {f'{name}_{figure.replace(" ", "")}': table for (name, figure), table in made.items()}


def percent(row):
  """A difference with its interval, where there are seeds to tell one."""
  if row['plus_minus'] is None:
    return f'{row["percent"]:+.2f}%'
  return f'{row["percent"]:+.2f} ± {row["plus_minus"]:.2f}%'


def _quality(figure, rows):
  """At the end; for Figure 7 also on the way there."""
  base = next(iter(rows.values()))['against']
  shares = (0.3, 0.6, 1.0) if figure == 'figure 7' else (1.0,)
  head = ['', 'NE', f'against {base}' + (' at 30%' if shares[1:] else ''), *('at 60%', 'at the end')[:len(shares) - 1],
          'staleness: dense', 'tables', 'paper']

  def cells(v, row):
    over = row['over_the_run']
    apart = ['' if v == base else percent(over[round(share * len(over)) - 1]) for share in shares]
    stale = [f'{row[k]:.1f}' for k in ('dense_staleness', 'table_staleness')]
    return [v, f'{np.mean(row["ne"]):.4f}', *apart, *stale, PAPER.get((figure, v), '')]

  return results.table(head, [cells(v, row) for v, row in rows.items()])


def _endpoints(sets):
  """A line for each pair of variants: normalized entropy of both, and how far they are apart."""
  def cell(rows):
    (_, base), (_, other) = rows.items()
    return f'{np.mean(base["ne"]):.4f}, {np.mean(other["ne"]):.4f}: {percent(other)}'

  figures = next(iter(sets.values()))
  return results.table(['', *sets], [
      [f'{figure.capitalize()}: {", ".join(rows)}', *(cell(of[figure]) for of in sets.values())]
      for figure, rows in figures.items()])


def _speeds(numbers):
  base = np.array(numbers['easgd40'])
  rows = []
  for v, speeds in numbers.items():
    over = float(np.mean(np.array(speeds) / base))
    each = over * TRAINERS['easgd40'] / TRAINERS[v]
    rows.append([v, f'{np.mean(speeds):,.0f}', f'{over:.2f}', PAPER.get(('figure 8', v), ''), f'{each:.2f}',
                 PAPER.get(('figure 8 each', v), '')])
  return results.table(['', 'examples/s', 'over easgd40', 'paper', 'for each trainer', 'paper'], rows)


def _use(numbers):
  return results.table(['', 'processor', 'in', 'out'], [
      [name, *(f'{100 * use[k]:.0f}%' for k in ('processor', 'in', 'out'))] for name, use in numbers.items()])


def _scaling(numbers, label):
  first = next(iter(numbers.values()))
  times = [f'{v / first:.2f}' for v in numbers.values()]
  return results.table([label, *map(str, numbers)], [['times the first', *times]])


def _ablations(numbers):
  whole = numbers['all']
  return results.table(['', 'examples/s', 'against all', 'paper'], [
      [name, f'{v:,.0f}', '' if name == 'all' else f'{100 * (v / whole - 1):+.0f}%', PAPER.get(('figure 11', name), '')]
      for name, v in numbers.items()])


def _batches(numbers):
  """Examples a second, and how much more than with the smallest batch."""
  sizes = list(next(iter(numbers.values())))
  return results.table(['examples a batch', *sizes], [
      [name, *(f'{speed:,.0f} ({speed / next(iter(of.values())):.2f})' for speed in of.values())]
      for name, of in numbers.items()])
