"""Runs an experiment over a grid of flags, as many runs at a time as there are cores, and compares what came out.

    python experiments/sweep.py dlrm_criteo --grid dp_sparsity=0.9,0.99 --grid seed=0,1 -- --method=dp --steps=500
    python experiments/sweep.py digits_mlp --grid method=dense,dct --grid seed=0,1,2 --rate=10mbit

Each run has one method: that of --method or of the grid, or the configuration's own choice. What is behind -- are
flags of all runs. A run that is there is not repeated, and one that was stopped goes on from its checkpoint, so that
the same command goes on with a sweep; runs of other settings have other directories. The work directory gets table.csv
and table.parquet, with a row a run: settings, final measures, bytes of a worker, seconds. And it gets pareto.png: the
measure against bytes and against time on a network, and the runs that no other run beats.
"""

import argparse
import pathlib
import sys

from dct_jax import netlab
from dct_jax.train import networks
from shared.sweeps import grid, runs, tables


class Parser(argparse.ArgumentParser):
  """Says what is wrong in one line."""

  def error(self, message):
    self.exit(2, f'{self.prog}: error: {message}\n')


def parse(arguments):
  """Flags of the sweep, and flags of its runs."""
  parser = Parser('sweep.py', description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('experiment', help='name of an experiment, as in dlrm_criteo')
  parser.add_argument('--grid', action='append', default=[], metavar='FLAG=VALUE,VALUE',
                      help='a flag of the experiment and its values; with semicolons between them if they have commas')
  parser.add_argument('--workdir', type=pathlib.Path, help='directory of all runs; runs/sweeps/EXPERIMENT unless given')
  parser.add_argument('--processes', type=int, default=networks.available_cores(),
                      help='runs at a time; as many as there are cores unless given')
  parser.add_argument('--rate', default='100mbit', help='rate of the links of the network whose time is drawn')
  parser.add_argument('--measure', help='column that is drawn; the loss on the test set unless given')
  behind = arguments.index('--') if '--' in arguments else len(arguments)
  options = parser.parse_args(arguments[:behind])
  try:
    if options.processes < 1:
      raise ValueError(f'--processes must be at least 1, got {options.processes}')
    networks.rate_text(options.rate)
    points = grid.expand(options.experiment, grid.parse(options.grid), arguments[behind + 1:])
    workdir = options.workdir or pathlib.Path('runs/sweeps', options.experiment)
    workdir.mkdir(parents=True, exist_ok=True)
  except (ValueError, TypeError, OSError) as error:
    parser.error(' '.join(str(error).split()))
  return options, points, workdir


def main(arguments):
  """Runs a sweep; 0 if all of its runs have ended well."""
  options, points, workdir = parse(arguments)
  netlab.end_on_sigterm()
  try:
    outcome = runs.run_all(points, workdir, min(options.processes, len(points)))
  except KeyboardInterrupt:
    print(f'interrupted; the same command goes on with what is in {workdir}', file=sys.stderr)
    return 130
  found = tables.table(points, outcome, workdir, options.rate)
  found.write_csv(workdir / 'table.csv')
  found.write_parquet(workdir / 'table.parquet')
  print(f'table: {workdir / "table.csv"} and .parquet, {len(outcome.done)} of {len(points)} runs are there')
  if outcome.done:
    try:
      measure = tables.measure_of(found, options.measure)
    except ValueError as error:
      print(f'sweep.py: error: {error}', file=sys.stderr)
      return 2
    tables.draw(found, measure, grid.parse(options.grid), options.rate, workdir / 'pareto.png')
    print(f'figure: {workdir / "pareto.png"}')
  return int(bool(outcome.failed))


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
