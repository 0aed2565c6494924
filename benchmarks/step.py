"""A training step of DLRM's MLPs, dense against DCT at 99%: `python benchmarks/step.py`.

Four processes on the loopback interface, batch 128 each. Steps alternate in one run: computation alone,
dense means, DCT-DP. The last line is JSON.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags
from timing import table

import dct_jax
from dct_jax import train
from dct_jax.train.launch import launch

PROCESSES = flags.DEFINE_integer('processes', 4, 'Workers, one process each.')
BATCH = flags.DEFINE_integer('batch', 128, 'Examples a worker.')
ROUNDS = flags.DEFINE_integer('rounds', 150, 'Timed rounds.')
WARM_UP = flags.DEFINE_integer('warm_up', 200, 'Steps before timing, while the residual fills.')
SPARSITY = flags.DEFINE_float('sparsity', 0.99, 'Of DCT.')
LIFESPAN = flags.DEFINE_integer('lifespan', 1000, 'Of DCT.')
TRACKING = flags.DEFINE_float('tracking', 0.1, 'Of DCT: thresholds follow their counts.')
VALUES = flags.DEFINE_string('value_codec', 'float16', 'How values travel.')
WORKER = flags.DEFINE_bool('worker', False, 'Internal: this is one of the processes.')
train.define_flags()

BOTTOM, TOP = (13, 512, 256, 64, 16), (367, 512, 256, 128, 1)


def init_params(seed=0):
  rng = np.random.default_rng(seed)
  layer = lambda i, o: {'w': rng.normal(0, (2 / i) ** 0.5, (i, o)).astype(np.float32),
                        'b': np.zeros(o, np.float32)}
  return {name: [layer(i, o) for i, o in itertools.pairwise(sizes)]
          for name, sizes in (('bottom', BOTTOM), ('top', TOP))}


def mlp(layers, x):
  for layer in layers[:-1]:
    x = jax.nn.relu(x @ layer['w'] + layer['b'])
  return x @ layers[-1]['w'] + layers[-1]['b']


def loss_fn(params, batch):
  """Both MLPs with DLRM's sizes; the embeddings in between do not matter here."""
  dense = mlp(params['bottom'], batch['dense'])
  mixed = jnp.concatenate([dense, batch['mixed']], axis=1)
  logits = mlp(params['top'], mixed)[:, 0]
  return optax.sigmoid_binary_cross_entropy(logits, batch['label']).mean()


def make_batches(count, workers, seed):
  """A learnable task: labels from a random linear teacher, a new batch every step."""
  rng = np.random.default_rng(1)
  teacher = rng.standard_normal(13 + 351) / 8
  rng = np.random.default_rng(seed)
  for _ in range(count):
    x = rng.standard_normal((BATCH.value * workers, 13 + 351)).astype(np.float32)
    label = (x @ teacher + 0.5 * rng.standard_normal(len(x)) > 0).astype(np.float32)
    yield {'dense': x[:, :13], 'mixed': x[:, 13:], 'label': label}


def contenders():
  """Name -> optimizer. Two dense ones: what everybody writes, and ours with its checks and accounts."""
  sgd = optax.sgd(0.01)
  pmean = optax.stateless(lambda grads, _: jax.lax.pmean(grads, 'data'))
  dct = lambda **options: dct_jax.dct_dp(
      SPARSITY.value, LIFESPAN.value, 'data', value_codec=VALUES.value, **options)
  return {'dense pmean': optax.chain(pmean, sgd),
          'dense_mean': optax.chain(dct_jax.dense_mean('data'), sgd),
          'DCT': optax.chain(dct(tracking=TRACKING.value), sgd),
          'DCT as in the paper': optax.chain(dct(), sgd)}


class Contender:
  """An optimizer with its own parameters, that steps and remembers."""

  def __init__(self, tx, mesh):
    self.params, self.state, specs = dct_jax.init(tx, init_params(), mesh)
    self.step = train.make_step(loss_fn, tx, mesh, specs)
    self.times, self.encoded, self.sent, self.losses = [], [], [], []

  def run(self, batch, timed):
    start = time.perf_counter()
    self.params, self.state, metrics = self.step(self.params, self.state, batch)
    metrics = jax.tree.map(float, metrics)  # waits
    elapsed = time.perf_counter() - start
    self.losses.append(metrics['loss'])
    if timed:
      self.times.append(elapsed)
      self.encoded.append(metrics.get('encoded_bytes', 0))
      self.sent.append(metrics.get('sent_bytes', 0))


def compute_alone(mesh):
  """Forward, backward and update without any exchange."""
  params = jax.tree.map(jnp.asarray, init_params())
  tx = optax.sgd(0.01)

  @jax.jit
  def step(params, batch):
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    updates, _ = tx.update(grads, tx.init(params))
    return optax.apply_updates(params, updates), loss

  times = []

  def run(batch):
    nonlocal params
    local = jax.tree.map(lambda x: x.addressable_shards[0].data, batch)
    start = time.perf_counter()
    params, loss = step(params, local)
    loss.block_until_ready()
    times.append(time.perf_counter() - start)

  return run, times


def worker():
  train.start(**train.flag_values())
  mesh = dct_jax.make_mesh()
  workers = mesh.size
  group = {name: Contender(tx, mesh) for name, tx in contenders().items()}
  alone, alone_times = compute_alone(mesh)
  local = slice(jax.process_index() * BATCH.value, (jax.process_index() + 1) * BATCH.value)
  total = WARM_UP.value + ROUNDS.value
  for i, batch in enumerate(make_batches(total, workers, seed=2)):
    batch = train.shard_batch(jax.tree.map(lambda x: x[local], batch), mesh)
    timed = i >= WARM_UP.value
    for contender in group.values():
      contender.run(batch, timed)
    if timed:
      alone(batch)
  if jax.process_index() == 0:
    report(group, alone_times, workers)


def report(group, alone_times, workers):
  dense_bytes = 4 * sum(x.size for x in jax.tree.leaves(init_params()))
  median = {name: statistics.median(c.times) for name, c in group.items()}
  alone = statistics.median(alone_times)
  rows = [('', 'ms a step', 'over computation', 'encoded bytes', 'sent bytes', 'last loss')]
  rows.append(('computation alone', f'{1e3 * alone:.2f}', '1.00', '', '', ''))
  for name, c in group.items():
    rows.append((name, f'{1e3 * median[name]:.2f}', f'{median[name] / alone:.2f}',
                 f'{statistics.mean(c.encoded):,.0f}', f'{statistics.mean(c.sent):,.0f}',
                 f'{statistics.mean(c.losses[-20:]):.4f}'))
  table(f'DLRM MLPs, {dense_bytes // 4:,} parameters, {workers} processes, batch {BATCH.value}', rows)
  encoded = statistics.mean(group['DCT'].encoded)
  print(json.dumps({
      'step_speedup': round(min(median['dense pmean'], median['dense_mean']) / median['DCT'], 3),
      'bytes_ratio': round(dense_bytes / encoded, 2),
      'sparsity': SPARSITY.value, 'lifespan': LIFESPAN.value, 'tracking': TRACKING.value,
      'value_codec': VALUES.value}), flush=True)


def main(argv):
  if WORKER.value:
    return worker()
  command = [sys.executable, *argv[:1], '--worker', *sys.argv[1:]]
  sys.exit(launch(command, PROCESSES.value))


if __name__ == '__main__':
  app.run(main)
