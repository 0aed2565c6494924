"""A grid of flags of an experiment: what is wrong with it is found before anything runs."""

import hashlib
import inspect
import itertools
import json
import pathlib
import runpy
from typing import NamedTuple

from absl import flags

from dct_jax.train import experiment

FOLDER = pathlib.Path(__file__).parents[2]
# What a sweep says to its runs itself, and what a run of several processes would need.
RESERVED = ('workdir', 'resume', 'launch', 'results', 'results_name', 'predict', 'coordinator', 'num_processes',
            'process_id', 'local_devices')


class Run(NamedTuple):
  """One point of a grid."""

  name: str  # of its directory: flags of the grid, and a digest of all settings
  script: pathlib.Path
  method: str
  changes: dict[str, str]  # flags of the grid
  arguments: tuple[str, ...]  # all flags, but for the method
  config: dict  # all settings


def experiments():
  """Names of all experiments that train one variant at a time."""
  return sorted(path.stem for path in FOLDER.glob('*.py') if 'experiment.main(' in path.read_text())


def parse(texts):
  """Flag -> values, of texts as in 'seed=0,1'; values that have commas themselves are separated by semicolons.

  Raises:
    ValueError: for another form, or a flag that comes twice.
  """
  found = {}
  for text in texts:
    name, equals, values = text.partition('=')
    name = name.lstrip('-')
    listed = [value.strip() for value in values.split(';' if ';' in values else ',')]
    if not (name and equals and all(listed)):
      raise ValueError(f'a grid must look like seed=0,1, got {text!r}')
    if name in found:
      raise ValueError(f'--{name} is twice in the grid')
    found[name] = list(dict.fromkeys(listed))
  return found


def expand(name, grid, fixed):
  """All runs of a grid, in the order of its flags.

  Args:
    name: of the experiment.
    grid: flag -> values.
    fixed: further arguments of all runs, as in '--steps=100'.

  Raises:
    ValueError: for names and values that the experiment does not know.
  """
  if name not in experiments():
    raise ValueError(f'there is no experiment {name!r} to sweep, only {", ".join(experiments())}')
  if not grid:
    raise ValueError('there is nothing to vary: give a --grid')
  script = FOLDER / f'{name}.py'
  runpy.run_path(str(script), run_name='sweep')  # defines its flags
  _check_names(grid, fixed)
  runs = {}
  for values in itertools.product(*grid.values()):
    run = _run(name, script, dict(zip(grid, values, strict=True)), fixed)
    runs.setdefault(json.dumps([run.method, run.config], sort_keys=True), run)  # 0.1 and 0.10 are one run
  return list(runs.values())


def _check_names(grid, fixed):
  given = [argument.lstrip('-').partition('=')[0] for argument in fixed if argument.startswith('-')]
  for name in [*grid, *given]:
    if name in RESERVED or name.removeprefix('no') in RESERVED:
      raise ValueError(f'--{name} is not for sweeps, which start one process for each run')
  for name in grid:
    if name not in flags.FLAGS:
      raise ValueError(f'the experiment has no flag --{name}')
    if name in given:
      raise ValueError(f'--{name} is in the grid, and behind -- as well')


def _run(name, script, changes, fixed):
  arguments = (*fixed, *(f'--{key}={value}' for key, value in changes.items()))
  try:
    rest = flags.FLAGS([str(script), *arguments])[1:]
  except flags.Error as error:
    raise ValueError(str(error).splitlines()[0]) from error
  if rest:
    raise ValueError(f'there are only flags behind --, got {" ".join(rest)}')
  method = _method()
  config = experiment.config_of(method).to_dict()
  digest = hashlib.sha256(json.dumps([name, method, config], sort_keys=True).encode()).hexdigest()[:10]
  said = ','.join(f'{key}={value}' for key, value in changes.items()).replace('/', '_')[:100]
  kept = tuple(a for a in arguments if not a.lstrip('-').startswith('method='))
  return Run(f'{said}-{digest}', script, method, changes, kept, json.loads(json.dumps(config)))


def _method():
  """The variant to train: the one that was asked for, or the configuration's own choice."""
  chosen = flags.FLAGS.method
  if chosen == ['compare']:
    function = runpy.run_path(flags.FLAGS.config)['get_config']
    return inspect.signature(function).parameters['variant'].default
  if len(chosen) != 1:
    raise ValueError(f'a run has one method; vary it in the grid, got --method={",".join(chosen)}')
  return chosen[0]
