"""From which density on a sum should travel and be added dense: `python benchmarks/delta.py`.

Sums in the lab with several values of delta (docs/transport.md), random indices, contenders in turns. A sum is
dense from the round on in which its entries could exceed delta of the coordinates: with 4 hosts at a density of
0.15 and delta 0.25, after the first round of recursive doubling. The last line is JSON: the best deltas.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from absl import app, flags
from timing import finish, result_in_lab, table

import dct_jax
from dct_jax import netlab, train
from dct_jax.netlab.calibrate import Probe
from dct_jax.wire import Settings

SIZE = flags.DEFINE_integer('size', 2**22, 'Number of coordinates of a vector.')
HOSTS = flags.DEFINE_integer('hosts', 4, 'Number of hosts of the lab.')
RATES = flags.DEFINE_list('rates', ['100mbit', '1gbit', 'unshaped'], 'Rates of every link, as tc writes them.')
DENSITIES = flags.DEFINE_list('densities', ['0.02', '0.05', '0.1', '0.2'],
                              'Shares of the coordinates that a worker has.')
DELTAS = flags.DEFINE_list('deltas', ['0.05', '0.1', '0.25', '0.5', '1.0'], 'Values of delta that are compared.')
REPEATS = flags.DEFINE_integer('repeats', 5, 'Number of rounds that are timed.')
WORKER = flags.DEFINE_string('worker', '', 'Internal: the setting, on one of the hosts.')
train.define_flags()
ALGORITHMS = ('recursive_double', 'split_all_gather')


def worker():
  train.start(**train.flag_values())
  transport = dct_jax.connect(dct_jax.make_mesh(), timeout=300)
  probes = {delta: Probe(transport, Settings(delta=float(delta))) for delta in DELTAS.value}
  first, rows = probes[DELTAS.value[0]], []
  for density in map(float, DENSITIES.value):
    times = {(name, delta): [] for name in ALGORITHMS for delta in probes}
    for i in range(REPEATS.value + 1):
      data = first.stream(SIZE.value, int(SIZE.value * density))
      for name, delta in times:
        took = first.together(np.array([probes[delta].seconds(name, *data, SIZE.value)]))[0]
        if i:  # the first one compiles
          times[name, delta].append(float(took))
    rows += [(name, density, {d: float(np.median(times[name, d])) for d in probes}) for name in ALGORITHMS]
  if transport.rank == 0:
    print('RESULT ' + json.dumps({'rows': rows}), flush=True)


def main(argv):
  if WORKER.value:
    return worker()
  netlab.end_on_sigterm()
  best = {}
  with netlab.Lab(HOSTS.value) as lab:
    for rate in RATES.value:
      lab.reshape(rate=None if rate == 'unshaped' else rate)
      result = result_in_lab(lab, [sys.executable, argv[0], *sys.argv[1:], f'--worker={rate}'])
      rows = [('algorithm', 'density', *(f'delta {d}' for d in DELTAS.value))]
      for name, density, seconds in result['rows']:
        rows.append((name, density, *(f'{1e3 * seconds[d]:.1f} ms' for d in DELTAS.value)))
        best[f'{rate}_{name}_{density}'] = min(seconds, key=seconds.get)
      table(rate, f'{HOSTS.value} hosts, {rate}, {SIZE.value:,} coordinates', rows)
  finish(best)


if __name__ == '__main__':
  app.run(main)
