"""Figures 3, 4 and 7 to 11 of hierarchical training: a small DLRM trained in virtual time, a large one by the clock.

    python experiments/hierarchical_figures.py     # 33 trainings of about a minute; what is there is not repeated
    python experiments/hierarchical_figures.py --frappe=DIRECTORY --criteo=FILE    # with real rows, too
    python experiments/hierarchical_figures.py --sets=model_b --clock=0    # this part alone; the file keeps the others

What is measured goes to `results/hierarchical.json`, from which pictures are drawn; `docs/papers/hierarchical.md`
shows its tables.
"""

import concurrent.futures
import json
import multiprocessing
import os
import pathlib

import hierarchical_dlrm
import numpy as np
from absl import app, flags

from dct_jax.models.dlrm import Dlrm
from dct_jax.train import experiment, report, results
from shared.hierarchical import clocks, pictures, tables

flags.adopt_module_key_flags(hierarchical_dlrm)
SEEDS = flags.DEFINE_integer('seeds', 3, 'Number of seeds: of data, parameters and jitter.')
OUT = flags.DEFINE_string('out', 'results/hierarchical.json', 'File that all numbers go to.')
PICTURES = flags.DEFINE_string('pictures', 'docs/pictures', 'Directory that pictures go to.')
PROCESSES = flags.DEFINE_integer('processes', os.cpu_count(),
                                 'Number of trainings that go on at the same time; 1 for this process alone.')
FRAPPE = flags.DEFINE_string('frappe', None, "Directory with Frappe's files; without it that part is left out.")
CRITEO = flags.DEFINE_string('criteo', None, 'Criteo TSV for the endpoints; without it that part is left out.')
FULL = flags.DEFINE_bool('full', True, "Whether the endpoints are trained with the DCT paper's DLRM, too.")
CLOCK = flags.DEFINE_integer('clock', 8, 'Number of batches of every net, by the clock alone; 0 leaves that out.')
SETS = flags.DEFINE_list('sets', None, 'Some of the sets synthetic, model_b, full, frappe, criteo; all unless given.')
VARIANTS = flags.DEFINE_list('variants', None, 'Variants that are trained, with those that they are compared with.')
MEASURED = ('settings', 'best_ne', 'quality', 'clock', 'batches')  # what the file keeps if it is not made again
BASES = {'figure 3': 'easgd10', 'figure 4': 'nets12', 'figure 7': 'easgd40'}
ENDPOINTS = {'figure 3': ('easgd10', 'easgd40'), 'figure 4': ('nets12', 'nets96'), 'figure 7': ('easgd40', 'ht5')}
COMPARED = {'figure 3': ('easgd5', 'easgd10', 'easgd20', 'easgd40'),
            'figure 4': ('nets12', 'nets24', 'nets48', 'nets96'), 'figure 7': ('easgd40', 'ht5', 'ht8', 'ht10')}
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # 97.5% quantiles, by the number of seeds


def sets():
  """Name -> what is changed in the configuration: nothing for the small DLRM on synthetic rows, with all figures."""
  found = {'synthetic': {}, 'model_b': {'fc': 'int8'}}
  if FULL.value:
    found['full'] = {'bottom': Dlrm.bottom, 'top': Dlrm.top, 'rows': 256_000}
  if FRAPPE.value:
    found['frappe'] = {'data': FRAPPE.value, 'passes': 4}
  if CRITEO.value:
    found['criteo'] = {'data': CRITEO.value, 'passes': 10}
  if missing := set(SETS.value or ()) - set(found):
    raise ValueError(f'there are the sets {", ".join(found)} with these flags, got --sets={",".join(sorted(missing))}')
  return {name: change for name, change in found.items() if SETS.value is None or name in SETS.value}


def all_runs(workdir):
  """Set -> (variant, seed) -> what was found."""
  changes = sets()
  config = lambda name, v, s: experiment.changed({**changes[name], 'method': v, 'seed': s})
  jobs = {(name, v, s): (config(name, v, s), workdir / name / f'{v}-{s}.json')
          for name in changes for s in range(seeds(name)) for v in variants(name)}
  if PROCESSES.value == 1:
    done = {key: hierarchical_dlrm.train_one(*job) for key, job in jobs.items()}
  else:
    context = multiprocessing.get_context('spawn')
    with concurrent.futures.ProcessPoolExecutor(PROCESSES.value, mp_context=context) as pool:
      started = {key: pool.submit(hierarchical_dlrm.train_one, *job) for key, job in jobs.items()}
      done = {key: future.result() for key, future in started.items()}
  return {name: {key[1:]: run for key, run in done.items() if key[0] == name} for name in changes}


def seeds(name):
  """How many there are on a set: Model-B has one, and so has the full DLRM, which takes some ten times as long."""
  return 1 if name in ('full', 'model_b') else SEEDS.value


def figures_of(name):
  """Figure -> variants that it compares, if two or more of them are wanted."""
  wanted = lambda of: [v for v in of if VARIANTS.value is None or v in VARIANTS.value]
  compared = {'synthetic': COMPARED, 'model_b': {'figure 7': COMPARED['figure 7']}}.get(name, ENDPOINTS)
  return {figure: wanted(of) for figure, of in compared.items() if wanted(of)[1:]}


def variants(name):
  """What is trained on a set, each once."""
  return tuple(dict.fromkeys(v for of in figures_of(name).values() for v in of))


def against(mine, base):
  """Mean difference in percent over seeds, and half of its 95% interval, paired by seed; None for one seed."""
  apart = 100 * (np.array(mine) / np.array(base) - 1)
  half = STUDENT.get(len(apart), 2.5) * np.std(apart, ddof=1) / len(apart) ** 0.5 if apart[1:].size else None
  return {'percent': float(np.mean(apart)), 'plus_minus': None if half is None else float(half)}


def quality(name, runs):
  """Figure -> variant -> NE of every seed, how far that is from the figure's base, and over the run."""
  ne = lambda v: [runs[v, s]['ne'] for s in range(seeds(name))]
  late = lambda v: [[said['ne'] for _, said in runs[v, s]['evaluations']] for s in range(seeds(name))]
  found = {}
  for figure, of in figures_of(name).items():
    base = BASES[figure]
    found[figure] = {v: {
        'ne': ne(v), 'against': base, **against(ne(v), ne(base)),
        'over_the_run': [against(*pair) for pair in zip(np.transpose(late(v)), np.transpose(late(base)), strict=True)],
        **staleness(runs[v, 0]), 'batches': runs[v, 0]['batches']} for v in of}
  return found


def staleness(run):
  """Writes of others between a net's read and its write, in the mean: of dense parameters, and of tables."""
  dense = [s for node, s in run['staleness'].items() if not node.startswith('sparse')]
  return {'dense_staleness': float(np.mean(dense)), 'table_staleness': run['staleness'].get('sparse0', 0.0)}


def once(path, make):
  """What a file has, or, if there is none yet, what is made then."""
  return json.loads(path.read_text()) if path.exists() else write(make(), path)


def clock(workdir):
  """Figures 8 to 11 of both models, and of the first one with other batches."""
  of = lambda name, make: once(workdir / f'{name}-{CLOCK.value}-{SEEDS.value}.json', make)
  found = {name: of(name, lambda: clocks.figures(model, CLOCK.value, SEEDS.value))
           for name, model in clocks.MODELS.items()}
  choice = {name: tuple(split) for name, split in found['Model-A']['splits'].items()}
  return {'clock': found, 'batches': of('batches', lambda: clocks.batch_sizes(choice, CLOCK.value))}


def trained(runs):
  """What trainings have given, and the settings that most of them share."""
  found = {'quality': {name: quality(name, of) for name, of in runs.items()}}
  if 'synthetic' in runs:
    first = [runs['synthetic'][variants('synthetic')[0], s] for s in range(SEEDS.value)]
    found |= {'settings': first[0]['settings'], 'best_ne': [run['best_ne'] for run in first]}
  return found


def write(found, path):
  """Writes the file, and reads it back: keys are strings from here on, as whoever reads it has them."""
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(json.dumps(found, indent=1) + '\n')
  return json.loads(path.read_text())


def main(argv):
  del argv
  workdir, folder = pathlib.Path(flags.FLAGS.workdir or 'runs/hierarchical'), pathlib.Path(PICTURES.value)
  path = pathlib.Path(OUT.value)
  before = json.loads(path.read_text()) if path.exists() else {'quality': {}, 'clock': {}, 'batches': {}}
  new = trained(all_runs(workdir)) | (clock(workdir) if CLOCK.value else {})
  found = {key: before[key] for key in MEASURED if key in before} | new
  found |= {'seeds': SEEDS.value, 'quality': {**before['quality'], **new['quality']}}
  found = results.write(path, command='python experiments/hierarchical_figures.py', seed=list(range(SEEDS.value)),
                        tables=tables.tables(found), **found)
  pictures.quality(found, folder / 'hierarchical_quality.png')
  for model, numbers in found['clock'].items():
    which = '' if model == 'Model-A' else f'_{model}'
    pictures.clock(numbers, folder / f'hierarchical_clock{which}.png')
  for name, table in found['tables'].items():
    print(f'{name}\n\n{report.lines(table)}\n')


if __name__ == '__main__':
  app.run(experiment.guarded(main))
