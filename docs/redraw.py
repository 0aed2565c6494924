"""Draws pictures again from the tables of results/*.json, where these have all that is shown: `python docs/redraw.py`.

The drawing is that of the scripts that measured; nothing is measured here.
"""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parents[1]
PICTURES = ROOT / 'docs/pictures'
sys.path[:0] = [str(ROOT / folder) for folder in ('experiments', 'benchmarks', '')]

import collectives  # noqa: E402
from absl import flags  # noqa: E402

from shared.resnet import figures  # noqa: E402

NAMES = {'our ring': 'dense'}  # as a table calls it -> as the benchmark does


def tables(name):
  """Tables of a file of results, each as rows that know their columns."""
  found = json.loads((ROOT / f'results/{name}.json').read_text())['tables']
  return {key: [dict(zip(table['head'], row, strict=True)) for row in table['rows']] for key, table in found.items()}


def numbers(cell):
  """All numbers of a cell, as in '2.15 (2.14–2.16)'."""
  return [float(x.replace(',', '')) for x in re.findall(r'\d[\d,.]*(?:e-?\d+)?', cell)]


def time_to_accuracy(path):
  """Figures 3 and 5 of the 3LC paper, from accuracies after so many steps and the time of a step."""
  rows = tables('resnet_tables')['designs']
  steps = {key: int(numbers(key)[0]) for key in rows[0] if key.endswith('steps')}
  runs = {(row['design'], key): [{'step': n, 'eval/test_accuracy': float(row[key]) / 100}]
          for row in rows for key, n in steps.items() if row[key]}
  times = {rate: {row['design']: numbers(row[f'{rate}, ms'])[0] / 1e3 for row in rows if row[f'{rate}, ms']}
           for rate in ('10 Mbit', '100 Mbit', '1 Gbit')}
  designs = [row['design'] for row in rows]
  figures.figure(path, 'runs of 25, 50, 75, 100% of the steps', len(times), figures.draw_times(runs, times, designs))


def time_of_collectives(path):
  """SparCML's Figure 4, from medians and quartiles."""
  flags.FLAGS(['redraw', '--repeats=3'])  # of these runs
  found = tables('collectives') | tables('collectives_1gbit')
  results = [{'setting': f'{hosts} hosts, {rate}', 'rows': [as_measured(row) for row in found[f'{hosts}_hosts_{rate}']]}
             for hosts in (4, 8) for rate in collectives.RATES.value]
  collectives.draw(results, path)


def as_measured(row):
  """A row of the table as the benchmark has it; three times with the quartiles and median that are known."""
  times = {NAMES.get(name, name): numbers(cell) for name, cell in row.items()}
  return {'kind': row['set'], 'density': float(row['density']), 'auto': row['auto chose'].strip('`'),
          'times': {name: spread(*times[name]) for name in collectives.CONTENDERS if times.get(name)}}


def spread(middle, low, high):
  """Five numbers with this median and these quartiles."""
  return [low, low, middle, high, high]


if __name__ == '__main__':
  time_to_accuracy(PICTURES / '3lc_time_accuracy.png')
  time_of_collectives(PICTURES / 'collectives.png')
