"""How fast a fleet of groups would be, and how fast the clock tells it: `python benchmarks/hierarchical.py`.

Ten groups of 6 trainers and 6 servers against 40 trainers with a copy each, by the clock alone, for a DLRM with 300
sparse features and 223 MB of dense parameters (the paper's Model-A: 1.6 and, for each trainer, 1.07). Then real runs on
Ray of some settings that the clock was not calibrated on, and tensors by Ray's calls beside our connections. The last
line is JSON.
"""

from __future__ import annotations

import functools
import pathlib
import sys

from absl import app, flags
from timing import finish, table

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / 'experiments'))  # the net is that of the figures
from shared.hierarchical import clocks

BATCHES = flags.DEFINE_integer('batches', 8, 'Number of batches of every net.')
RAY = flags.DEFINE_integer('ray', 400, 'Number of batches of a run on Ray; 0 leaves these runs out.')
TRAINERS, GROUPS, EACH = 40, 10, 6


@functools.cache
def fleets():
  """Name -> its virtual run."""
  return {'40 trainers': clocks.run(clocks.plan(0, 1), TRAINERS, BATCHES.value),
          '10 groups of 6 + 6': clocks.run(clocks.plan(EACH, EACH), GROUPS, BATCHES.value)}


def speeds():
  """Examples a second of groups over those of trainers alone, in all and for each trainer."""
  alone, groups = (run.examples_per_second(clocks.BATCH) for run in fleets().values())
  return {'ht_over_easgd': groups / alone,
          'ht_over_easgd_per_trainer': groups / alone * TRAINERS / (GROUPS * EACH)}


def events():
  """How many events of a large fleet the clock handles in a second."""
  run = fleets()['10 groups of 6 + 6']
  return {'events_per_second': run.events / run.wall_seconds}


def on_ray():
  """How far the clock is from real runs, and what our connections gain over Ray's calls."""
  if not RAY.value:
    return {}
  import cluster_runs  # Ray is an extra
  return cluster_runs.measures(RAY.value)


MEASURES = [speeds, events, on_ray]  # each gives some keys of the last line


def main(argv):
  del argv
  rows = [(name, f'{run.examples_per_second(clocks.BATCH):,.0f}', f'{run.seconds:.1f}', f'{run.events:,}',
           f'{run.wall_seconds:.1f}') for name, run in fleets().items()]
  table('fleets', 'virtual time', [('fleet', 'examples/s', 'virtual seconds', 'events', 'seconds'), *rows])
  finish({key: value for measure in MEASURES for key, value in measure().items()}, seed=0)


if __name__ == '__main__':
  app.run(main)
