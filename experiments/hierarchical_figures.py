"""Figures 3, 4 and 7 to 11 of hierarchical training: a small DLRM trained in virtual time, a large one by the clock.

    python experiments/hierarchical_figures.py     # 48 trainings of a minute or less; what is there is not repeated
"""

import concurrent.futures
import datetime
import json
import multiprocessing
import os
import pathlib
import platform

import hierarchical_dlrm
import jax
import matplotlib.figure
import numpy as np
from absl import app, flags

from dct_jax.train import experiment
from shared.hierarchical import clocks, problem

flags.adopt_module_key_flags(hierarchical_dlrm)
SEEDS = flags.DEFINE_integer('seeds', 3, 'Number of seeds: of data, parameters and jitter.')
OUT = flags.DEFINE_string('out', 'results/hierarchical.json', 'File that all numbers go to.')
PICTURES = flags.DEFINE_string('pictures', 'docs', 'Directory that pictures go to.')
PROCESSES = flags.DEFINE_integer('processes', os.cpu_count(), 'Number of trainings that go on at the same time.')
FIGURE3, FIGURE4 = ('easgd5', 'easgd10', 'easgd20', 'easgd40'), ('nets12', 'nets24', 'nets48', 'nets96')
FIGURE7, FEW = ('easgd40', 'ht5', 'ht8', 'ht10'), ('easgd10few', 'easgd40few', 'ht5few', 'ht8few', 'ht10few')
VARIANTS = tuple(dict.fromkeys((*FIGURE7, *FIGURE3, *FIGURE4, *FEW)))


def train(config, path):
  """One training, in a process of its own."""
  return hierarchical_dlrm.train_one(config, path, problem.load(config))


def all_runs(workdir):
  """(variant, seed) -> what was found, in as many processes as there are cores."""
  jobs = {(v, s): (experiment.changed({'method': v, 'seed': s}), workdir / f'{v}-{s}.json')
          for s in range(SEEDS.value) for v in VARIANTS}
  context = multiprocessing.get_context('spawn')
  with concurrent.futures.ProcessPoolExecutor(PROCESSES.value, mp_context=context) as pool:
    started = {key: pool.submit(train, *job) for key, job in jobs.items()}
    return {key: future.result() for key, future in started.items()}


def against(runs, variant, base, key='ne'):
  """Mean relative difference in percent over seeds, and half of its 95% interval, paired by seed."""
  apart = [100 * (runs[variant, s][key] / runs[base, s][key] - 1) for s in range(SEEDS.value)]
  factor = {1: np.nan, 2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}.get(len(apart), 2.5)  # Student's t
  return float(np.mean(apart)), float(factor * np.std(apart, ddof=1) / len(apart) ** 0.5) if apart[1:] else None


def quality(runs):
  """Variant -> NE of every seed, and how far it is from the figure's base."""
  base = {**dict.fromkeys(FIGURE3, 'easgd10'), **dict.fromkeys(FIGURE4, 'nets12'), **dict.fromkeys(FIGURE7, 'easgd40'),
          **dict.fromkeys(FEW, 'easgd40few'), 'easgd40': 'easgd10'}
  found = {}
  for v in VARIANTS:
    some = runs[v, 0]
    mean, half = against(runs, v, base[v])
    found[v] = {'ne': [runs[v, s]['ne'] for s in range(SEEDS.value)], 'against': base[v], 'percent': mean,
                'plus_minus': half, 'staleness': some['staleness'], 'examples_per_second': some['examples_per_second']}
  return found


def draw_quality(runs, found, path):
  figure = matplotlib.figure.Figure((11, 3.4), layout='constrained')
  third, fourth, seventh = figure.subplots(1, 3)
  for axes, names, label in ((third, FIGURE3, 'trainers, each with a copy (12 nets)'),
                             (fourth, FIGURE4, 'nets of one trainer')):
    x = [int(''.join(c for c in n if c.isdigit())) for n in names]
    axes.errorbar(x, [found[n]['percent'] if n != 'easgd40' else against(runs, n, 'easgd10')[0] for n in names],
                  [found[n]['plus_minus'] or 0 for n in names], marker='o', capsize=3)
    axes.set(xlabel=label, ylabel='normalized entropy, % more', xscale='log', xticks=x, xticklabels=x)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
  for name in FIGURE7[1:]:
    steps = [done for done, _ in runs[name, 0]['evaluations']]
    ne = lambda v: np.mean([[said['ne'] for _, said in runs[v, s]['evaluations']] for s in range(SEEDS.value)], 0)
    seventh.plot(np.array(steps) * runs[name, 0]['settings']['batch'] / 1e6, 100 * (ne(name) / ne('easgd40') - 1),
                 marker='o', label=f'{name[2:]} groups of 6 + 6')
  seventh.axhline(0, color='black', linewidth=0.8)
  seventh.set(xlabel='million examples', ylabel='% against 40 trainers')
  seventh.legend()
  seventh.grid(alpha=0.3)
  for axes, title in zip((third, fourth, seventh), ('Figure 3', 'Figure 4', 'Figure 7'), strict=True):
    axes.set_title(title)
  figure.savefig(path, dpi=120)


def draw_clock(found, path):
  figure = matplotlib.figure.Figure((12, 6.4), layout='constrained')
  panels = figure.subplots(2, 3).ravel()
  bars = {'Figure 8: examples/s': found['figure 8'], 'Figure 11: examples/s, 5 groups': found['figure 11']}
  for axes, (title, numbers) in zip(panels, bars.items(), strict=False):
    axes.barh(list(numbers)[::-1], list(numbers.values())[::-1])
    axes.set_title(title)
  for axes, key, label in ((panels[2], 'figure 10a', 'groups of 6 + 6'),
                           (panels[3], 'figure 10b', 'trainers = servers of each of 8 groups')):
    x, y = map(np.array, zip(*((int(k), v) for k, v in found[key].items()), strict=True))
    axes.plot(x, y / y[0], marker='o', label='by the clock')
    axes.plot(x, x / x[0], linestyle=':', color='grey', label='linear')
    axes.set(title=f'Figure {key[7:]}', xlabel=label, ylabel='times the speed of the first')
    axes.legend()
  names = list(found['figure 9'])
  for k, (axes, what) in enumerate(((panels[4], ('processor',)), (panels[5], ('in', 'out')))):
    for i, resource in enumerate(what):
      axes.barh(np.arange(len(names)) + 0.4 * i, [100 * found['figure 9'][n][resource] for n in names],
                height=0.4 if k else 0.8, label=resource)
    axes.set(title='Figure 9: % busy', yticks=range(len(names)), yticklabels=[n.removeprefix('group0/') for n in names])
    axes.legend()
  figure.savefig(path, dpi=110)


def main(argv):
  del argv
  workdir, pictures = pathlib.Path(flags.FLAGS.workdir or 'runs/hierarchical'), pathlib.Path(PICTURES.value)
  runs = all_runs(workdir)
  found = {'command': 'python experiments/hierarchical_figures.py', 'seeds': SEEDS.value,
           'date': datetime.date.today().isoformat(), 'versions': {'jax': jax.__version__, 'numpy': np.__version__},
           'machine': f'{os.cpu_count()} cores, {platform.machine()}', 'quality': quality(runs),
           'settings': runs['ht5', 0]['settings'], 'best_ne': [runs['ht5', s]['best_ne'] for s in range(SEEDS.value)],
           'clock': clocks.figures()}
  out = pathlib.Path(OUT.value)
  out.parent.mkdir(parents=True, exist_ok=True)
  out.write_text(json.dumps(found, indent=1) + '\n')
  draw_quality(runs, found['quality'], pictures / 'hierarchical_quality.png')
  draw_clock(json.loads(out.read_text())['clock'], pictures / 'hierarchical_clock.png')
  for v, row in found['quality'].items():
    apart = f'{row["percent"]:+.2f}% +- {row["plus_minus"] or 0:.2f}'
    print(f'{v:12} {np.mean(row["ne"]):.5f} {apart} against {row["against"]}')
  print(json.dumps(found['clock'], indent=1))


if __name__ == '__main__':
  app.run(main)
