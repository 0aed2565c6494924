"""SparCML's Figure 4: the time of a sparse allreduce against density, `python benchmarks/collectives.py`.

16M coordinates, hosts of a network lab, random indices, fresh data in every run. Contenders take turns at each
density: XLA's dense psum, our dense ring, the all-gather of streams, SparCML's three algorithms, the plain sum of
the union, and DSAR with 4 bits. `auto` is the algorithm that the cost model chooses after its own calibration, on
other sizes. Prints a table for each setting, draws a picture, and ends with a line of JSON.
"""

from __future__ import annotations

import json
import pathlib
import sys
import time

import jax
import jax.numpy as jnp
import matplotlib.figure
import numpy as np
from absl import app, flags
from jax.sharding import PartitionSpec
from timing import finish, result_in_lab, table

import dct_jax
from dct_jax import netlab, train
from dct_jax.collectives import ALGORITHMS
from dct_jax.collectives.costs import Instance, predict, random_union
from dct_jax.netlab.calibrate import Probe, calibrate
from dct_jax.train import pictures
from dct_jax.wire import Settings

SIZE = flags.DEFINE_integer('size', 2**24, 'Number of coordinates of a vector.')
HOSTS = flags.DEFINE_list('hosts', ['4', '8'], 'Numbers of hosts of the lab.')
RATES = flags.DEFINE_list('rates', ['100mbit', '1gbit', 'unshaped'], 'Rates of every link, as tc writes them.')
DENSITIES = flags.DEFINE_list('densities', ['1e-5', '1e-4', '1e-3', '1e-2', '1e-1', '0.3'],
                              'Shares of the coordinates that a worker has.')
SETS = flags.DEFINE_list('sets', ['random', 'disjoint', 'identical'], 'How the index sets of workers relate.')
REPEATS = flags.DEFINE_integer('repeats', 5, 'Number of runs with fresh data, unless they are slow.')
BUDGET = flags.DEFINE_float('budget', 12.0, 'Seconds for a contender at one density; two runs at least.')
PROBE = flags.DEFINE_float('probe', 45.0, 'Seconds for the calibration.')
PICTURE = flags.DEFINE_string('picture', 'runs/collectives.png', 'Where the picture goes.')
WORKER = flags.DEFINE_string('worker', '', 'Internal: the setting, on one of the hosts.')
train.define_flags()

CONTENDERS = ('psum', *ALGORITHMS, 'dsar, 4 bits')
SPARSE = ('all_gather', 'recursive_double', 'split_all_gather', 'union')
BULK = 1e6  # bytes on the wire from which bandwidth rules


class Bench:
  """The contenders of one worker process."""

  def __init__(self, transport, mesh):
    self.transport = transport
    self.exact, self.rounded = Probe(transport), Probe(transport, Settings(delta=0.5, bits=4))
    self._psum = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, 'data'), mesh=mesh,
                                       in_specs=PartitionSpec('data'), out_specs=PartitionSpec()))
    self._mesh, self._size = mesh, SIZE.value

  def data(self, count, kind, seed):
    """This worker's entries."""
    rng, workers, rank = np.random.default_rng(seed), self.transport.size, self.transport.rank
    total = count * workers if kind == 'disjoint' else count
    if kind == 'random':
      rng = np.random.default_rng([seed, rank])
    edges = np.linspace(0, self._size, total + 1).astype(np.int64)
    indices = (edges[:-1] + rng.integers(0, np.diff(edges))).astype(np.uint32)
    if kind == 'disjoint':
      indices = indices[rank::workers]
    return indices, np.random.default_rng([seed, rank, 1]).standard_normal(count, np.float32)

  def seconds(self, name, indices, values, capacity):
    if name == 'psum':
      self.exact.together(np.zeros(1))
      start = time.perf_counter()
      self._psum(self._dense).block_until_ready()
      return time.perf_counter() - start
    probe = self.rounded if '4 bits' in name else self.exact
    if name == 'dense':
      return probe.seconds(name, np.zeros(0, np.uint32), self._local, self._size)
    return probe.seconds(name.split(',')[0], indices, values, self._size,
                         capacity if name in SPARSE else None)

  def prepare_dense(self):
    rng = np.random.default_rng(self.transport.rank)
    self._local = jnp.asarray(rng.standard_normal(self._size, np.float32))
    self._dense = train.shard_batch(np.asarray(self._local)[None], self._mesh)

  def run(self, names, density, kind, seen):
    """name -> seconds of each run, the slowest worker's. Dense ones do not depend on the density: few runs."""
    count = max(1, int(self._size * density))
    capacity = min(self._size, count * self.transport.size)
    times, spent = {name: [] for name in names}, dict.fromkeys(names, 0.0)
    for i in range(REPEATS.value + 1):
      data = self.data(count, kind, seed=hash((density, i)) % 2**31)
      for name in names:
        if name in ('psum', 'dense') and len(seen.get(name, [])) >= REPEATS.value:
          continue
        if i > 2 and spent[name] > BUDGET.value:
          continue
        took = float(self.exact.together(np.array([self.seconds(name, *data, capacity)]))[0])
        spent[name] += took
        if i:  # the first one compiles
          (seen.setdefault(name, []) if name in ('psum', 'dense') else times[name]).append(took)
    return times | {name: seen[name] for name in names if name in seen}, count


def bound(workers, size, count, union, kind):
  """Bytes that a link has to carry, whatever the algorithm (section 4 of the paper), as encoded here."""
  gaps = lambda k: min(k * (np.log2(max(size / k, 1)) + 1.6) / 8, size / 8)
  encoded = lambda k: min(4 * k + gaps(k), 4 * size)
  share = (workers - 1) / workers
  if kind == 'identical':
    return 2 * share * encoded(count)
  if kind == 'disjoint':
    return (workers - 1) * encoded(count)
  return min(encoded(union) - encoded(count), 4 * size)  # random: what a worker does not have yet must come in


def worker():
  train.start(**train.flag_values())
  mesh = dct_jax.make_mesh()
  transport = dct_jax.connect(mesh, timeout=300)
  workers, size = transport.size, SIZE.value
  costs = calibrate(transport, seconds=PROBE.value)
  bench, rows, seen = Bench(transport, mesh), [], {}
  bench.prepare_dense()
  for kind in SETS.value:
    for density in map(float, DENSITIES.value):
      if kind != 'random' and (density < 1e-3 or density * workers > 0.5):
        continue  # bounds are for where bandwidth rules, and disjoint sets have to fit
      union = {'random': random_union(size, density, workers),
               'disjoint': size * workers * density}.get(kind, size * density)
      names = CONTENDERS if kind == 'random' else ('psum', 'dense', *SPARSE)
      times, count = bench.run(names, density, kind, seen)
      seconds = predict(costs, Instance(workers, size, count, union, dense_result=False))
      guess = dict(zip(ALGORITHMS, seconds, strict=True))
      rows.append({'kind': kind, 'density': density, 'times': times, 'auto': min(guess, key=guess.get),
                   'guess': {k: float(v) for k, v in guess.items()},
                   'bound_bytes': float(bound(workers, size, count, union, kind))})
  rate = line_rate(bench.exact)
  if transport.rank == 0:
    result = {'setting': WORKER.value, 'workers': workers, 'rate': rate, 'rows': rows}
    print('RESULT ' + json.dumps(result), flush=True)


def line_rate(probe):
  """Bytes a second that the transport itself reaches: every worker sends to the next one."""
  size = int(min(2**22, max(2**16, SIZE.value)))
  times = []
  for _ in range(3):
    indices, values = probe.stream(size, size)
    times.append(probe.seconds('dense', indices, values, size))
  seconds = float(np.median(probe.together(np.array(times))))
  workers = probe.transport.size
  return 8 * size * (workers - 1) / workers / seconds


def summary(results):
  """The worst of everything, and rows for tables."""
  worst = {'auto_over_best': 0.0, 'auto_over_dense': 0.0, 'best_over_bound': 0.0, 'model_error': 0.0}
  for result in results:
    setting = result['setting'].replace(', ', '_').replace(' ', '_')
    names = ('our ring' if name == 'dense' else name for name in CONTENDERS)
    rows = [('set', 'density', *names, 'auto chose', 'over best', 'over psum', 'best over bound')]
    for row in result['rows']:
      medians = {k: float(np.median(v)) for k, v in row['times'].items() if v}
      exact = {k: v for k, v in medians.items() if k in ALGORITHMS}
      best, dense = min(exact.values()), min(medians['psum'], medians['dense'])
      ratio = best / (row['bound_bytes'] / result['rate'])
      chosen = exact[row['auto']]
      if row['bound_bytes'] > BULK:
        worst['best_over_bound'] = max(worst['best_over_bound'], ratio)
      worst['auto_over_best'] = max(worst['auto_over_best'], chosen / min(best, medians['psum']))
      worst['auto_over_dense'] = max(worst['auto_over_dense'], chosen / medians['psum'])
      worst['model_error'] = max(worst['model_error'], abs(row['guess'][row['auto']] / chosen - 1))
      if 'dsar, 4 bits' in medians and row['density'] >= 1e-2:
        for key in ('dsar_4bit_over_dense', f'dsar_4bit_over_dense_{setting}'):
          worst[key] = min(worst.get(key, np.inf), dense / medians['dsar, 4 bits'])
      cell = lambda k: _cell(row['times'].get(k))
      rows.append((row['kind'], f'{row["density"]:g}', *map(cell, CONTENDERS), f'`{row["auto"]}`',
                   f'{chosen / best:.2f}', f'{chosen / medians["psum"]:.3f}',
                   f'{ratio:.2f}' if row['bound_bytes'] > BULK else ''))
    rate = result['rate'] / 1e6
    table(setting, f'{result["setting"]}: seconds, median (25-75%); the transport reaches {rate:.1f} MB/s, '
          f'others had {result["stolen"]:.1%} of the machine', rows)
  return {k: round(v, 3) for k, v in worst.items()}


def _cell(times):
  return '{1:.3f} ({0:.3f}-{2:.3f})'.format(*np.quantile(times, [0.25, 0.5, 0.75])) if times else ''


def draw(results, path):
  """One panel a setting, log-log, bands of the middle half of the runs."""
  pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
  columns = len(RATES.value)
  lines = -(-len(results) // columns)
  figure = matplotlib.figure.Figure(figsize=(1.8 + 4.5 * columns, 0.4 + 3.6 * lines), layout='constrained', dpi=110)
  axes = figure.subplots(lines, columns, squeeze=False)
  for ax, result in zip(axes.flat, results, strict=False):
    rows = [r for r in result['rows'] if r['kind'] == 'random']
    for name in CONTENDERS:
      points = [(r['density'], *np.quantile(r['times'][name], [0.25, 0.5, 0.75])) for r in rows if name in r['times']]
      if not points:
        continue  # older results have not all contenders
      x, low, middle, high = zip(*points, strict=True)
      line, = ax.plot(x, middle, label=name, color=f'C{CONTENDERS.index(name)}', marker='.',
                      linestyle='--' if name in ('psum', 'dense') else '-')
      ax.fill_between(x, low, high, alpha=0.2, color=line.get_color())
    best = [(r['density'], float(np.median(r['times'][r['auto']]))) for r in rows]
    ax.plot(*zip(*best, strict=True), 'ko', fillstyle='none', markersize=9, label='auto')
    ax.set(xscale='log', yscale='log', title=result['setting'], xlabel='density, share of coordinates',
           ylabel='seconds')
    pictures.plain_ticks(ax)
  for ax in axes.flat[len(results):]:
    ax.set_axis_off()
  figure.suptitle(f'Sum of vectors of {SIZE.value:,} float32 numbers, random indices; lines are medians, '
                  f'bands have the middle half of up to {REPEATS.value} runs')
  pictures.legend_beside(figure, fontsize=8)
  figure.savefig(path)


def main(argv):
  if WORKER.value:
    return worker()
  netlab.end_on_sigterm()
  results = []
  for hosts in map(int, HOSTS.value):
    with netlab.Lab(hosts) as lab:
      for rate in RATES.value:
        setting = f'{hosts} hosts, {rate}'
        print(f'== {setting}', file=sys.stderr, flush=True)
        lab.reshape(rate=None if rate == 'unshaped' else rate)
        command = [sys.executable, argv[0], *sys.argv[1:], f'--worker={setting}']
        results.append(result_in_lab(lab, command))
        draw(results, PICTURE.value)
        pathlib.Path(PICTURE.value).with_suffix('.json').write_text(json.dumps(results))
  worst = summary(results)
  print(f'picture: {PICTURE.value}')
  finish(worst)


if __name__ == '__main__':
  app.run(main)
