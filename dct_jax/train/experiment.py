"""What every experiment does around its training: flags, processes, the table at the end."""

from __future__ import annotations

import json
import os
import pathlib
import runpy
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from absl import app, flags, logging

from dct_jax import commands
from dct_jax.train import checkpoint, claims, distributed, launch, networks, preflight, report, results
from dct_jax.train.metrics import read_metrics

flags.disclaim_key_flags()  # what is defined here are flags of the script that asks for them: --help lists them
FLAGS = flags.FLAGS
KINDS: dict[type, Callable] = {
    int: flags.DEFINE_integer, float: flags.DEFINE_float, str: flags.DEFINE_string, bool: flags.DEFINE_bool}
COMMON = {'workers': (int, 'Number of workers that share the data.'),
          'steps': (int, 'Number of steps that the training takes.'),
          'seed': (int, 'Seed of the parameters and of the order of the data.')}
WHOLE = 'whole_batch'  # what was asked for, in a configuration whose batch was cut for its workers
_overrides: list[str] = []  # names of the flags that take precedence over the configuration


def define_flags(config: str | os.PathLike, overrides: Mapping[str, tuple[type, str]]) -> None:
  """Defines the flags of an experiment.

  These are --config, --method, --launch, --restarts, --min_workers, --workdir, --resume, --figure_rate, --results,
  --results_name, those of `distributed`, and flags that take precedence over the configuration: --workers, --steps,
  --seed and `overrides`.

  Args:
    config: path of a file with `get_config(variant)`, which returns a ConfigDict with `workers`.
    overrides: type (int, float, str or bool) and help text of further settings, by name.
  """
  distributed.define_flags()
  flags.DEFINE_string('config', os.fspath(config), 'Path of the file whose get_config(variant) has all settings.')
  flags.DEFINE_list('method', 'compare', "Variants of the configuration to train; 'compare' takes the usual ones.")
  flags.DEFINE_enum('launch', 'devices', ['devices', 'processes'],
                    'Whether a worker is a device of this process or a process of its own.')
  flags.DEFINE_integer('restarts', 0, 'Number of failures of a process, with --launch=processes, after which all are '
                       'started again, to go on from their last checkpoint.', lower_bound=0)
  flags.DEFINE_integer('min_workers', None, 'Number of workers that training may go on with if others stay away; all '
                       'of them unless given.', lower_bound=1)
  flags.DEFINE_string('workdir', None, 'Directory for logs, checkpoints and figures; a new one unless given.')
  flags.DEFINE_bool('resume', False, 'Whether to go on from the checkpoints in --workdir.')
  flags.DEFINE_string('figure_rate', '100mbit', 'Rate of links for which the figure has the time that runs would take.')
  flags.DEFINE_string('results', None, 'JSON file that the tables at the end are put into, beside those it has.')
  flags.DEFINE_string('results_name', None, 'Name that these tables have in --results; by default names of their own.')
  for name, (kind, text) in (COMMON | dict(overrides)).items():
    KINDS[kind](name, None, text)
  _overrides.extend((*COMMON, *overrides))


def main(train_one: Callable, compare: Sequence[str], columns: Sequence[str],
         more: Callable[[report.Histories], str] | None = None, curve: str = 'train_loss',
         predict: Callable | None = None) -> Callable:
  """The function for `app.run`.

  Args:
    train_one: (config, directory) -> None; trains with one variant, and logs with a `MetricsWriter`
      in that directory.
    compare: the variants that --method=compare stands for.
    columns: what the table shows of the evaluation, besides bytes.
    more: histories by variant -> another table.
    curve: what the figure shows of the evaluation.
    predict: (config, directory of a trained variant, path) -> None; writes what its checkpoint says of the test set
      to the file that the flag --predict names, which experiments without it do not have.
  """
  if predict is not None:
    flags.DEFINE_string('predict', None, 'File for predictions of --workdir\'s checkpoint for the test set; nothing is '
                        'trained then.')

  def run(argv):
    if argv[1:]:
      raise app.UsageError(f'there are only flags, got {argv[1:]}')
    if FLAGS.resume and not FLAGS.workdir:
      raise app.UsageError('--resume needs the --workdir of the run to resume')
    names = tuple(compare) if FLAGS.method == ['compare'] else tuple(FLAGS.method)
    _go_on(names)
    configs = {name: config_of(name) for name in names}
    networks.rate_text(FLAGS.figure_rate)
    predicts = predict is not None and FLAGS.predict
    if predicts:
      _check_predict(names)
    workers = configs[names[0]].workers * configs[names[0]].get('stages', 1)
    workdir = pathlib.Path(FLAGS.workdir or _new_directory())
    _say_beginnings(preflight.place(workdir, names, FLAGS.resume or predicts), workdir)
    if FLAGS.launch == 'processes':
      os.environ.setdefault(results.COMMAND, results.running())
      return _launch(workdir, workers, configs[names[0]].get('stages', 1))
    begin(workers)
    if predict is not None and FLAGS.predict:
      predict(configs[names[0]], workdir / names[0], FLAGS.predict)
      return 0
    if jax.process_index() == 0:
      claims.claim(workdir)
    for name, config in configs.items():
      train_one(config, workdir / name)
    if jax.process_index() == 0:
      runs = {name: read_metrics(workdir / name) for name in names}
      runs, rate, times = _on_networks(runs, configs)
      texts = {'main': report.table(runs, columns), 'sent': report.sent_table(runs)}
      show(texts | ({'more': more(runs)} if more else {}) | times, sorted({config.seed for config in configs.values()}))
      report.plot(runs, workdir / 'loss.png', f'eval/{curve}', curve.replace('_', ' '), rate)
      print(f'figure: {workdir / "loss.png"}')
    return 0

  return guarded(run)


def _go_on(names):
  """A process that a launcher has started again goes on from the last checkpoint, with the workers that there are."""
  if not int(os.environ.get(launch.STARTS, 0)) or not FLAGS.workdir:
    return
  FLAGS['resume'].value = bool(preflight.those_begun(pathlib.Path(FLAGS.workdir), names))
  devices = int(os.environ['DCT_JAX_NUM_PROCESSES']) * int(os.environ['DCT_JAX_LOCAL_DEVICES'])
  FLAGS['workers'].value = devices // config_of(names[0]).get('stages', 1)


def _launch(workdir, processes, stages):
  """Runs this script again, in a process for each worker."""
  again = [sys.executable, *sys.argv, '--launch=devices', f'--workdir={workdir}']
  least = None if FLAGS.min_workers is None else FLAGS.min_workers * stages
  return launch.launch(again, processes, failures=launch.Elastic(FLAGS.restarts, least, multiple=stages))


def guarded(main: Callable[[list[str]], Any]) -> Callable[[list[str]], Any]:
  """A function for `app.run` that says what is wrong with flags, settings or files in one line, with exit code 2.

  Wrong flags end the program here already. DCT_JAX_TRACEBACK=1 in the environment shows where else it came from.
  """
  name = pathlib.Path(sys.argv[0]).name
  app.define_help_flags()  # so that they are known below, as app.run has them
  try:
    FLAGS(sys.argv)
  except flags.Error as error:
    commands.say(name, f'{error} (--help lists all flags)')
    sys.exit(commands.WRONG)

  def run(argv):
    code = commands.attempt(name, lambda: main(argv), (ValueError, OSError, FloatingPointError, app.UsageError))
    if code == commands.WRONG:
      distributed.leave(code)
    return code

  return run


def _check_predict(names):
  """Refuses to predict without one trained variant, or to a file that cannot be written."""
  if len(names) > 1 or not FLAGS.workdir:
    raise app.UsageError('--predict needs the --workdir of a trained model and one --method')
  if not preflight.has_checkpoint(pathlib.Path(FLAGS.workdir, names[0])):
    raise FileNotFoundError(f'--predict: there is no checkpoint of {names[0]} in {FLAGS.workdir}')
  if not os.access(pathlib.Path(FLAGS.predict).absolute().parent, os.W_OK):
    raise FileNotFoundError(f'--predict: {FLAGS.predict} is in no directory that can be written to')


def _on_networks(runs, configs):
  """Lines with the times of --figure_rate, that rate, and a table and a sentence of what steps would take.

  Runs without what the model of costs needs are returned as they are, with nothing else.
  """
  workers, stages = ({name: configs[name].get(key, 1) for name in runs} for key in ('workers', 'stages'))
  if jax.process_count() > 1 or max(stages.values()) > 1 or not networks.applies(runs, workers):
    return runs, None, {}
  last = list(runs)[-1]
  said = networks.explained(runs[last][-1], workers[last])
  timed = {name: networks.timed(lines, workers[name], FLAGS.figure_rate) for name, lines in runs.items()}
  return timed, FLAGS.figure_rate, {'time': report.lines(networks.table(runs, workers)), 'how': said}


def _say_beginnings(names, workdir):
  """Of what --resume does not resume, on one process."""
  if FLAGS.resume and names and not distributed.several():
    print(f'no checkpoint in {workdir} of {", ".join(names)}: begun at step 0', file=sys.stderr)


def show(texts: Mapping[str, str], seed: Any = None) -> None:
  """Prints tables, and puts them into the file of --results if there is one.

  Args:
    texts: name -> lines. Those of `report.lines` are tables of a file of results; other text is printed only.
    seed: of the runs; one, or several.
  """
  name = FLAGS.results_name
  for text in filter(None, texts.values()):
    print(text)
  if FLAGS.results:
    made = {key: text.made for key, text in texts.items() if isinstance(text, report.TableText)}
    results.add(FLAGS.results, {f'{name}_{key}' if name else key: one for key, one in made.items()}, seed=seed)
    print(f'results: {FLAGS.results}')


def begin(workers: int) -> None:
  """Starts this process, with a device for each worker unless a launcher knows better."""
  logging.set_verbosity(logging.WARNING)  # orbax tells much
  os.environ.setdefault('DCT_JAX_LOCAL_DEVICES', str(workers))
  distributed.start(**distributed.flag_values())


def settings(config: Any, free: Sequence[str] = ('workers', 'data')) -> dict[str, Any]:
  """What checkpoints are of: a configuration without what a resumed run may change."""
  asked = {'batch': config[WHOLE]} if WHOLE in config else {}
  return {k: v for k, v in (config.to_dict() | asked).items() if k not in (*free, WHOLE)}


def resume(checkpoints: Any, params: Any, opt_state: Any, specs: Any, mesh: Any) -> tuple[Any, Any, int]:
  """What --resume asks for: parameters, state and step of the newest checkpoint, or those given and 0."""
  if FLAGS.resume and checkpoints.latest() is not None:
    return checkpoints.restore(params, opt_state, specs, mesh)
  return params, opt_state, 0


def once(train_one: Callable, config: Any, directory: pathlib.Path,
         ends_with: str | None = None) -> list[dict[str, float]]:
  """The log of one of many runs, which is made unless it is there: a stopped series goes on where it was.

  Args:
    train_one: as of `main`; a run that was stopped in between goes on from its last checkpoint, if it has any.
    config: with `steps`.
    directory: of this run. `config.json` and `seconds` are written beside its log.
    ends_with: what the last line has if the run is complete, beside the last step.

  Raises:
    ValueError: if the run in that directory had other settings.
  """
  _keep_settings(config, directory / 'config.json')
  lines = read_metrics(directory) if (directory / 'metrics.jsonl').exists() else []
  if not lines or lines[-1]['step'] < config.steps or (ends_with and ends_with not in lines[-1]):
    if 'resume' in FLAGS:
      FLAGS['resume'].value = True
    spent, started = directory / 'seconds', time.monotonic()
    before = float(spent.read_text()) if spent.exists() else 0.0
    try:
      train_one(config, directory)
    finally:  # also of a run that goes on later
      spent.write_text(f'{before + time.monotonic() - started:.1f}')
    lines = read_metrics(directory)
  return lines


def _keep_settings(config, path):
  """Writes them once; a table must not mix runs of different settings."""
  mine = json.loads(json.dumps(config.to_dict()))
  if not path.exists():
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(mine, indent=1, sort_keys=True) + '\n')
    return
  theirs = json.loads(path.read_text())
  if other := checkpoint.differing(theirs, mine):
    raise ValueError(f'{path.parent} has a run of other settings; take another --workdir: ' + ', '.join(
        f'{k} was {theirs.get(k)!r}, got {mine.get(k)!r}' for k in other))


def choose(config: Any, variants: Mapping[str, Mapping[str, Any]], variant: str) -> Any:
  """A configuration with what makes one variant differ; for `get_config` of a configuration file."""
  if variant not in variants:
    raise ValueError(f'the method must be one of {", ".join(variants)}, got {variant!r}')
  config.method = variant
  config.update(variants[variant])
  return config


def changed(changes: Mapping[str, Any]) -> Any:
  """The configuration of one of many runs: a variant (`method`, or the baseline), flags, then changes."""
  config = config_of(changes.get('method', 'baseline'))
  config.update(changes)
  return config


def config_of(variant: str) -> Any:
  """A variant of the configuration with the flags that take precedence.

  Raises:
    ValueError: for what cannot work, as far as it is known before anything is loaded: by `preflight.settings`, and
      by `check(config)` of the configuration file, if it has that.
    OSError: for paths that lead nowhere.
  """
  found = runpy.run_path(FLAGS.config)
  default, config = found['get_config'](variant), found['get_config'](variant)
  config.update({k: FLAGS[k].value for k in _overrides if FLAGS[k].value is not None})
  preflight.settings(config, default)
  if 'check' in found:
    found['check'](config)
  return config


def even_batch(config: Any) -> None:
  """Takes so many examples of a batch that all workers, and all parts of their shares, have equally many."""
  parts = config.workers * config.get('microbatches', 1)
  if config.batch < parts:
    raise ValueError(f'--batch must have an example for each of {parts} (workers x microbatches), got {config.batch}')
  if left := config.batch % parts:
    if not distributed.several():
      print(f'batches of {config.batch - left} examples, not {config.batch}: all of {parts} (workers x microbatches) '
            'have equally many', file=sys.stderr)
    with config.unlocked():
      config[WHOLE] = config.batch  # what a run is of, whatever number of workers goes on with it
    config.batch -= left


def _new_directory():
  if distributed.several():
    raise app.UsageError('several processes need a --workdir that they share')
  return pathlib.Path('runs', pathlib.Path(sys.argv[0]).stem, time.strftime('%Y%m%d-%H%M%S'))
