"""Which sum of sparse gradients is fastest, `python benchmarks/s2.py --data=wikitext2/`, in a network lab.

Three loads: rows of an embedding that is 99.1% sparse (the words of 20 x 35 tokens of WikiText-2 a worker, 200 numbers
each), one that is 95.17% sparse (more tokens), and 1/32 of a gradient's blocks of 256. Contenders take turns on the
same inputs; times are of the slowest host, bytes are counted by the hosts' interfaces. Prints a table for each
setting, what the cost model says of more workers, draws a picture, and ends with a line of JSON.
"""

from __future__ import annotations

import json
import pathlib
import sys
import time

import jax
import matplotlib.figure
import numpy as np
from absl import app, flags
from jax.sharding import PartitionSpec as P
from sparse_loads import doubling, in_blocks, parallax, stream_of, text_rows, top_blocks
from timing import finish, interface_sent, result_in_lab, table

import dct_jax
from dct_jax import netlab, tables, train
from dct_jax.collectives import costs as model
from dct_jax.netlab.calibrate import Probe, calibrate
from dct_jax.train import pictures

DATA = flags.DEFINE_string('data', '', 'Directory with the files of WikiText-2; a synthetic text without it.')
SETTINGS = flags.DEFINE_list('settings', ['8x100mbit', '4x100mbit', '8x1gbit', '4x1gbit', '2x100mbit', '6x100mbit'],
                             'Numbers of hosts and rates of every link.')
LOADS = flags.DEFINE_list('loads', ['words', 'more_words', 'blocks'], 'Names of the loads that are measured.')
LAMBDAS = flags.DEFINE_list('lambdas', ['0.25', '0.5', '0.57', '1', '2'], "Lambdas of the union, for S2's sketch.")
PASSING = flags.DEFINE_float('lam', 2.0, 'The smallest lambda of the union with which embeddings train as well.')
PASSING_BLOCKS = flags.DEFINE_float('block_lam', 0.5, 'The smallest lambda with which blocks train as well.')
REPEATS = flags.DEFINE_integer('repeats', 7, 'Number of runs with fresh data.')
PROBE = flags.DEFINE_float('probe', 20.0, 'Seconds for the calibration of the cost model.')
PICTURE = flags.DEFINE_string('picture', 'runs/s2.png', 'Where the picture goes.')
WORKER = flags.DEFINE_string('worker', '', 'Internal: the setting, on one of the hosts.')
train.define_flags()

EXACT = ('dense', 'all-gather', 'SSAR split', 'union_sum')  # what auto chooses from


def load_named(name):
  if name == 'blocks':
    return top_blocks('1/32 of the blocks')
  # 1,607 of 33,278 rows are 4.83%: that many different words are in some 4,600 tokens.
  tokens = {'words': 700, 'more_words': 4600}[name]
  return text_rows(DATA.value, {'words': 'embedding, 99.1% sparse', 'more_words': 'embedding, 95.17% sparse'}[name],
                   tokens)


def contenders(load, transport, costs):
  """name -> (reducer, load as it sees it)."""
  all_of = {
      'dense': tables.dense_rows(transport=transport),
      'all-gather': tables.gather_rows(transport=transport),
      'SSAR split': tables.split_rows(transport),
      'SSAR doubling': doubling(transport, load.universe, load.unit),
      'union_sum': tables.union_rows(transport=transport),
      'Parallax': parallax(transport),
      'auto': tables.auto_rows(costs, transport),
      'all-gather, XLA': tables.gather_rows(),
      'union_sum, XLA': tables.union_rows(),
  }
  all_of |= {f'S2, {lam}': tables.sketch_rows(float(lam), of='union', transport=transport) for lam in LAMBDAS.value}
  out = {name: (reducer, load) for name, reducer in all_of.items()}
  if load.unit != 256:
    out['OmniReduce'] = tables.split_rows(transport), in_blocks(load)
  return out


class Contender:
  """One reducer on one load, compiled."""

  def __init__(self, reducer, load, mesh, transport):
    self._load, self._mesh, self._transport = load, mesh, transport
    self._capacity = load.most(transport.size)
    self._state = train.replicate(reducer.init(), mesh)
    one = lambda stream, state: reducer.reduce(dct_jax.Stream(*(x[0] for x in stream)), load.universe, state, 'data')
    self._run = jax.jit(jax.shard_map(one, mesh=mesh, in_specs=(P('data'), P()), out_specs=P(), check_vma=False))

  def seconds(self, step, probe):
    """How long it takes on this worker, and the bytes that its interface sends."""
    stream = train.shard_batch(stream_of(self._load, self._transport.rank, step, self._capacity), self._mesh)
    jax.block_until_ready(stream)
    probe.together(np.zeros(1))
    before, start = interface_sent(), time.perf_counter()
    out = jax.block_until_ready(self._run(stream, self._state))
    took = time.perf_counter() - start
    self._state = out.state
    probe.together(np.zeros(1))
    return took, float((interface_sent() - before)[1])


def worker():
  train.start(**train.flag_values())
  mesh = dct_jax.make_mesh()
  transport = dct_jax.connect(mesh, timeout=300)
  costs = calibrate(transport, seconds=PROBE.value)
  probe, rows = Probe(transport), []
  for name in LOADS.value:
    load = load_named(name)
    made = {n: Contender(r, seen, mesh, transport) for n, (r, seen) in contenders(load, transport, costs).items()}
    found = {n: [] for n in made}
    for step in range(REPEATS.value + 1):
      for n, contender in made.items():
        if n == 'dense' and step > 2:  # always the same, and slow
          continue
        took = probe.together(np.array(contender.seconds(step, probe)))
        if step:  # the first one compiles
          found[n].append([float(x) for x in took])
    counts = [len(load.ids(w, 1)) for w in range(transport.size)]
    union = len(np.unique(np.concatenate([load.ids(w, 1) for w in range(transport.size)])))
    rows.append({'load': name, 'title': load.name, 'times': {n: [t for t, _ in x] for n, x in found.items()},
                 'bytes': {n: float(np.median([b for _, b in x])) for n, x in found.items()},
                 'rows': float(np.mean(counts)), 'union': union, 'universe': load.universe, 'unit': load.unit})
  if transport.rank == 0:
    print('RESULT ' + json.dumps({'setting': WORKER.value, 'workers': transport.size, 'rows': rows}), flush=True)


def medians(row):
  return {name: float(np.median(times)) for name, times in row['times'].items()}


def tables_of(results):
  for result in results:
    for row in result['rows']:
      middle = medians(row)
      lines = [('', 'ms', '25-75%', 'KB sent', 'against all-gather')]
      for name in sorted(middle, key=middle.get):
        low, high = np.quantile(row['times'][name], [0.25, 0.75])
        lines.append((name, f'{1e3 * middle[name]:.1f}', f'{1e3 * low:.1f}-{1e3 * high:.1f}',
                      f'{row["bytes"][name] / 1e3:.0f}', f'{middle["all-gather"] / middle[name]:.2f}'))
      title = (f'{result["setting"]}, {row["title"]}: {row["rows"]:.0f} of {row["universe"]} blocks of {row["unit"]} a '
               f'worker, the union has {row["union"] / row["rows"]:.2f} times as many; others had '
               f'{result["stolen"]:.1%} of the machine')
      table(f'{result["setting"]}_{row["load"]}', title, lines)


def keys(results):
  """The numbers that this benchmark is for."""
  by = {(r['setting'], row['load']): medians(row) for r in results for row in r['rows']}
  out = {}
  slow = by.get(('8x100mbit', 'words'))
  if slow:
    best = f'S2, {PASSING.value:g}'
    out |= {'s2_over_allgather_8': slow['all-gather'] / slow[best], 's2_over_ssar_8': slow['SSAR split'] / slow[best],
            'union_over_xla_allgather_8': slow['all-gather, XLA'] / slow['union_sum, XLA']}
  blocks = by.get(('8x100mbit', 'blocks'))
  if blocks:
    out['s2_blocks_over_allgather_8'] = blocks['all-gather'] / blocks[f'S2, {PASSING_BLOCKS.value:g}']
  out['auto_over_best'] = max(m['auto'] / min(m[n] for n in EXACT) for m in by.values())
  return {name: round(x, 3) for name, x in out.items()}


def unions(load, counts):
  """workers -> blocks that one of them has, on real data."""
  return {p: len(np.unique(np.concatenate([load.ids(w, 0) for w in range(p)]))) for p in counts}


def bytes_by_model(load, workers, union):
  """KB that a worker sends, by what the cost model counts."""
  each = np.mean([len(load.ids(w, 0)) for w in range(8)]) * load.unit
  # Rows that are split are never sent dense.
  instance = model.Instance(workers, load.universe * load.unit, each, union * load.unit, dense_result=False,
                            delta=np.inf, unit=load.unit, summed_unit=load.unit)
  names = ('all-gather', 'SSAR doubling', 'SSAR split', 'DSAR', 'dense', 'union_sum')
  sent = dict(zip(names, model.features(instance)[:, 1], strict=True))
  lam = PASSING.value * union * load.unit / each
  return sent | {'S2': model.s2_features(instance, lam)[1], 'OmniReduce': model.omni_features(instance)[1],
                 'Parallax': model.parallax_features(instance)[1]}


def scaling():
  """What the model says of up to 1,024 workers, and from how many on the union is less than an all-gather."""
  load, counts = load_named('words'), (2, 4, 8, 16, 32, 64, 256, 1024)
  found = unions(load, counts)
  lines = [('MB a worker sends', *(f'{p}' for p in counts))]
  columns = [bytes_by_model(load, p, found[p]) for p in counts]
  lines += [(name, *(f'{c[name] / 1e6:.2f}' for c in columns)) for name in columns[0]]
  table('model', f'{load.name}, by the cost model; unions are of real index sets, S2 has a lambda of {PASSING.value:g} '
        'of them', lines)
  each = float(np.mean([len(load.ids(w, 0)) for w in range(8)]))
  cross = model.union_crossover(load.universe * load.unit, each * load.unit,
                                lambda p: load.unit * unions(load, (p,))[p], unit=load.unit, most=128)
  return columns, counts, cross


def draw(results, columns, counts, path):
  """Time against workers as measured, and bytes against workers as modelled."""
  figure = matplotlib.figure.Figure(figsize=(13, 4.2), layout='constrained', dpi=110)
  left, right = figure.subplots(1, 2)
  slow = sorted((r for r in results if r['setting'].endswith('x100mbit')), key=lambda r: r['workers'])
  shown = ('all-gather', 'SSAR split', 'union_sum', 'OmniReduce', 'Parallax', *(f'S2, {x}' for x in LAMBDAS.value))
  for name in shown:
    points = [(r['workers'], 1e3 * medians(row)[name]) for r in slow for row in r['rows']
              if row['load'] == 'words' and name in row['times']]
    if points:
      left.plot(*zip(*points, strict=True), marker='.', linestyle='--' if name.startswith('S2') else '-', label=name)
  left.set(xlabel='workers', ylabel='ms a sum', title='measured at 100 Mbit/s, embedding rows')
  for name in columns[0]:
    right.plot(counts, [c[name] / 1e6 for c in columns], marker='.', label=name)
  right.set(xscale='log', yscale='log', xlabel='workers', ylabel='MB a worker sends', title='by the cost model')
  pictures.plain_ticks(left, right)
  for panel in (left, right):  # colours differ: there are more methods than colours
    panel.legend(fontsize=7, loc='upper left', bbox_to_anchor=(1, 1))
  figure.savefig(path)


def main(argv):
  if WORKER.value:
    return worker()
  netlab.end_on_sigterm()
  path = pathlib.Path(PICTURE.value)
  path.parent.mkdir(parents=True, exist_ok=True)
  results = []
  for setting in SETTINGS.value:
    hosts, rate = setting.split('x')
    print(f'== {setting}', file=sys.stderr, flush=True)
    with netlab.Lab(int(hosts), rate=None if rate == 'unshaped' else rate) as lab:
      command = [sys.executable, argv[0], *sys.argv[1:], f'--worker={setting}']
      results.append(result_in_lab(lab, command))
    path.with_suffix('.json').write_text(json.dumps(results))
  tables_of(results)
  columns, counts, cross = scaling()
  draw(results, columns, counts, path)
  print(f'picture: {path}')
  finish(keys(results) | {'union_crossover': cross}, seed=[0, 1, 2])


if __name__ == '__main__':
  app.run(main)
