"""What non-blocking exchanges save, and a timeline that shows it: `python benchmarks/overlap.py`.

An MLP on hosts of a network lab at a rate where an exchange takes about as long as the computation. Contenders
take turns in blocks of steps: blocking, buckets whose exchanges overlap the backward pass, and one step late.
The last line is JSON.
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
import optax
from absl import app, flags
from timing import finish, result_in_lab, table

import dct_jax
from dct_jax import netlab, train
from dct_jax.train import pictures

HOSTS = flags.DEFINE_integer('hosts', 2, 'Number of hosts of the lab.')
RATE = flags.DEFINE_string('rate', '50mbit', 'Rate of every link, as tc writes it.')
WIDTH, DEPTH, BATCH = 1024, 8, 256
KEPT = flags.DEFINE_float('kept', 0.01, 'Share of the gradient that is sent.')
ROUNDS = flags.DEFINE_integer('rounds', 6, 'Blocks of each contender.')
BLOCK = flags.DEFINE_integer('block', 6, 'Steps of a block; the first is not timed.')
PICTURE = flags.DEFINE_string('picture', 'runs/overlap.png', 'Where the timeline goes.')
WORKER = flags.DEFINE_bool('worker', False, 'Internal: this is one of the hosts.')
train.define_flags()


def loss_fn(params, batch):
  x = batch['x']
  for w in params:
    x = jax.nn.relu(x @ w)
  return jnp.mean((x - batch['y']) ** 2)


def contenders(transports):
  """Name -> a compressed mean on a transport of its own, whose timeline is its own, too."""
  def mean(name):
    compressor = dct_jax.error_feedback(dct_jax.top_k(KEPT.value))
    exchange = dct_jax.sparse_all_reduce('all_gather', transports[name])
    return dct_jax.compressed_mean(compressor, exchange, 'data')
  return {'blocking': mean('blocking'),
          '4 buckets': dct_jax.bucketed_mean(lambda: mean('4 buckets'), 4),
          'one step late': dct_jax.stale_mean(mean('one step late'))}


def worker():
  train.start(**train.flag_values())
  mesh = dct_jax.make_mesh()
  transports = {name: dct_jax.connect(mesh) for name in ('blocking', '4 buckets', 'one step late')}
  metrics = dct_jax.connect(mesh)
  rng = np.random.default_rng(0)
  params = [jnp.asarray(rng.normal(0, (2 / WIDTH) ** 0.5, (WIDTH, WIDTH)), jnp.float32) for _ in range(DEPTH)]
  steps = {}
  for name, mean in contenders(transports).items():
    tx = optax.chain(mean, optax.sgd(1e-2))
    placed, state, specs = dct_jax.init(tx, params, mesh)
    steps[name] = [train.make_step(loss_fn, tx, mesh, specs, transport=metrics), placed, state, [], []]
  alone, alone_times = jax.jit(jax.value_and_grad(loss_fn)), []
  rng = np.random.default_rng(jax.process_index())
  for r in range(ROUNDS.value):
    for entry in steps.values():
      for i in range(BLOCK.value):
        batch = {'x': rng.standard_normal((BATCH, WIDTH), np.float32)}
        batch['y'] = np.tanh(batch['x'])
        placed = train.shard_batch(batch, mesh)
        begin = time.perf_counter()
        entry[1], entry[2], out = entry[0](entry[1], entry[2], placed)
        float(out['loss'])
        entry[4].append((begin, time.perf_counter()))
        if i and r:
          entry[3].append(entry[4][-1][1] - begin)
      time.sleep(0.5)  # what is still on its way must not meet the next one
    begin = time.perf_counter()
    jax.block_until_ready(alone(params, batch))
    alone_times.append(time.perf_counter() - begin)
  if jax.process_index() == 0:
    spans = {name: {'steps': entry[4][-3:], 'exchanges': exchanges(transports[name], entry[4][-3][0])}
             for name, entry in steps.items()}
    print('RESULT ' + json.dumps({
        'times': {name: entry[3] for name, entry in steps.items()}, 'alone': alone_times[1:],
        'bytes': float(out['encoded_bytes']), 'spans': spans}), flush=True)


def exchanges(transport, since):
  """(channel, begin, end) of the rounds since then."""
  out = []
  for channel, events in enumerate(transport.timeline()):
    open_at = None
    for what, at in events:
      if what == '(':
        open_at = at
      elif what == ')' and open_at is not None and at > since:
        out.append((channel, open_at, at))
  return out


def draw(spans, path):
  """Three steps of each contender: whole steps above, what was on the network below."""
  figure = matplotlib.figure.Figure(figsize=(10.5, 1.6 * len(spans)), layout='constrained', dpi=110)
  axes = figure.subplots(len(spans), 1, sharex=True)
  for ax, (name, span) in zip(axes, spans.items(), strict=True):
    zero = span['steps'][0][0]
    bar = lambda y, begin, end, zero=zero, ax=ax, **style: ax.barh(
        y, 1e3 * (end - begin), left=1e3 * (begin - zero), **style)
    for begin, end in span['steps']:
      bar(1, begin, end, height=0.5, color='lightgray', edgecolor='k', label='step')
    several = len({channel for channel, *_ in span['exchanges']}) > 1
    for channel, begin, end in span['exchanges']:
      label, color = (f'exchange of bucket {channel}', channel + 1) if several else ('exchange of all layers', 0)
      bar(0.38 - 0.12 * channel if several else 0.2, begin, end, height=0.1, color=f'C{color}', label=label)
    ax.set(title=name, yticks=[0.2, 1], yticklabels=['exchange', 'step'], ylim=(-0.15, 1.35))
  axes[-1].set(xlabel='ms since the first of these steps began')
  pictures.legend_beside(figure, fontsize=8)
  pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(path)


def main(argv):
  if WORKER.value:
    return worker()
  netlab.end_on_sigterm()
  with netlab.Lab(HOSTS.value, rate=RATE.value) as lab:
    result = result_in_lab(lab, [sys.executable, argv[0], *sys.argv[1:], '--worker'])
  median = {name: float(np.median(times)) for name, times in result['times'].items()}
  alone = float(np.median(result['alone']))
  rows = [('', 'ms a step', 'saved'), ('computation alone', f'{1e3 * alone:.1f}', '')]
  rows += [(name, f'{1e3 * t:.1f}', f'{1 - t / median["blocking"]:.0%}') for name, t in median.items()]
  table('steps', f'{WIDTH * WIDTH * DEPTH:,} parameters, {HOSTS.value} hosts at {RATE.value}, {KEPT.value:.1%} sent, '
        f'{result["bytes"]:,.0f} bytes a message', rows)
  draw(result['spans'], PICTURE.value)
  pathlib.Path(PICTURE.value).with_suffix('.json').write_text(json.dumps(result['spans']))
  print(f'timeline: {PICTURE.value}')
  finish({'late_saving': round(1 - median['one step late'] / median['blocking'], 3),
          'bucket_saving': round(1 - median['4 buckets'] / median['blocking'], 3)}, seed=0)


if __name__ == '__main__':
  app.run(main)
