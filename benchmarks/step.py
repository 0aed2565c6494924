"""A training step of DLRM's MLPs, dense against DCT at 99%: `python benchmarks/step.py`.

Four processes on the loopback interface, batch 128 each. Steps alternate in one run: computation alone,
dense means, DCT-DP, and PyTorch's DDP when torch is installed. With `--lab` the processes are hosts of a
network lab, at several rates, messages travel over our own transport, and bytes are those that the operating
system counted. Contenders take turns in blocks of a few steps, so that an exchange that is still on its way
when a block ends does not run under somebody else's time. The last line is JSON.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags
from jax.experimental import multihost_utils
from timing import finish, interface_sent, result_in_lab, result_of, table

import dct_jax
from dct_jax import netlab, train
from dct_jax.netlab.calibrate import calibrate
from dct_jax.train.launch import launch

PROCESSES = flags.DEFINE_integer('processes', 4, 'Number of workers, one process each.')
BLOCK = flags.DEFINE_integer('block', 4, 'Steps of one contender before the next one; the first is not timed.')
BATCH = flags.DEFINE_integer('batch', 128, 'Number of examples of a worker in a step.')
ROUNDS = flags.DEFINE_integer('rounds', 150, 'Number of rounds that are timed.')
WARM_UP = flags.DEFINE_integer('warm_up', 200, 'Steps before timing, while the residual fills.')
SPARSITY = flags.DEFINE_float('sparsity', 0.99, 'Share of the gradient that stays behind with DCT.')
LIFESPAN = flags.DEFINE_integer('lifespan', 1000, 'Number of steps for which DCT keeps a threshold.')
TRACKING = flags.DEFINE_float('tracking', 0.1, "How fast DCT's thresholds follow their counts; 0 keeps them.")
VALUES = flags.DEFINE_string('value_codec', 'float16', 'Type in which values travel: float32, float16 or bfloat16.')
LAB = flags.DEFINE_bool('lab', False, 'Whether to use shaped networks instead of the loopback interface.')
RATES = flags.DEFINE_list('rates', ['10mbit', '100mbit', '1gbit'], 'Rates of every link of the lab, as tc writes them.')
TORCH = flags.DEFINE_bool('torch', True, "Whether to time PyTorch's DDP as well, if torch is installed.")
WORKER = flags.DEFINE_bool('worker', False, 'Internal: this is one of the processes.')
train.define_flags()

LOSS_BYTES = 28 + 96 + 4  # a frame with one number: the mean of the loss travels beside the gradient
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


def contenders(transport):
  """Name -> optimizer. Two dense ones: what everybody writes, and ours with its checks and accounts."""
  sgd = optax.sgd(0.01)
  pmean = optax.stateless(lambda grads, _: jax.lax.pmean(grads, 'data'))
  dct = lambda **options: dct_jax.dct_dp(
      SPARSITY.value, LIFESPAN.value, 'data', value_codec=VALUES.value, **options)
  group = {'dense_mean': dct_jax.dense_mean('data')}
  if transport is None:
    group = {'dense pmean': pmean} | group | {'DCT': dct(tracking=TRACKING.value), 'DCT as in the paper': dct()}
  else:
    costs = calibrate(transport, seconds=20)
    exchange = lambda: dct_jax.sparse_all_reduce('auto', transport, costs=costs)
    ours = lambda: dct(tracking=TRACKING.value, dense_below=0, collective=exchange())
    group |= {'DCT': ours(), 'DCT, one step late': dct_jax.stale_mean(ours())}
  return {name: optax.chain(mean, sgd) for name, mean in group.items()}


class Contender:
  """Steps and remembers: times, accounted bytes, and what the interface sent."""

  def __init__(self, step):
    self.step = step
    self.times, self.encoded, self.sent, self.losses, self.counted = [], [], [], [], []

  def run(self, batch, timed):
    before, start = interface_sent() if LAB.value else 0, time.perf_counter()
    metrics = self.step(batch)
    elapsed = time.perf_counter() - start
    self.losses.append(metrics['loss'])
    if timed:
      self.times.append(elapsed)
      self.encoded.append(metrics.get('encoded_bytes', 0))
      self.sent.append(metrics.get('sent_bytes', 0))
      self.counted.append(interface_sent() - before if LAB.value else np.zeros(2))

  def summary(self):
    return {'seconds': statistics.median(self.times), 'encoded': statistics.mean(self.encoded),
            'sent': statistics.mean(self.sent), 'counted': np.mean(self.counted, axis=0).tolist(),
            'loss': statistics.mean(self.losses[-20:])}


def jax_step(tx, mesh, transport=None):
  """A training step of an optimizer with its own parameters, as a function of the batch."""
  params, state, specs = dct_jax.init(tx, init_params(), mesh)
  step = train.make_step(loss_fn, tx, mesh, specs, transport=transport)

  def run(batch):
    nonlocal params, state
    params, state, metrics = step(params, state, batch)
    return jax.tree.map(float, metrics)  # waits

  return run


def torch_step(workers):
  """The same step with PyTorch's DistributedDataParallel over gloo; None without torch."""
  try:
    import torch
    import torch.distributed as dist
  except ImportError:
    return None
  host, port = os.environ['DCT_JAX_COORDINATOR'].rsplit(':', 1)
  dist.init_process_group('gloo', init_method=f'tcp://{host}:{int(port) + 1}', world_size=workers,
                          rank=jax.process_index())

  class Both(torch.nn.Module):
    def __init__(self):
      super().__init__()
      for name, layers in init_params().items():
        parts = []
        for layer in layers:
          linear = torch.nn.Linear(*layer['w'].shape)
          linear.weight.data = torch.tensor(layer['w'].T.copy())
          linear.bias.data = torch.tensor(layer['b'])
          parts += [linear, torch.nn.ReLU()]
        setattr(self, name, torch.nn.Sequential(*parts[:-1]))

    def forward(self, dense, mixed):
      return self.top(torch.cat([self.bottom(dense), mixed], dim=1))[:, 0]

  torch.set_num_threads(1)
  model = torch.nn.parallel.DistributedDataParallel(Both())
  optimizer = torch.optim.SGD(model.parameters(), 0.01)
  loss_of = torch.nn.BCEWithLogitsLoss()

  def run(batch):
    local = {k: torch.tensor(np.asarray(v.addressable_shards[0].data)) for k, v in batch.items()}
    optimizer.zero_grad()
    loss = loss_of(model(local['dense'], local['mixed']), local['label'])
    loss.backward()
    optimizer.step()
    return {'loss': loss.item()}

  return run


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
  transport = dct_jax.connect(mesh) if LAB.value else None
  group = {name: Contender(jax_step(tx, mesh, transport)) for name, tx in contenders(transport).items()}
  ddp = torch_step(workers) if TORCH.value else None
  if ddp:
    group['PyTorch DDP'] = Contender(ddp)
  alone, alone_times = compute_alone(mesh)
  local = slice(jax.process_index() * BATCH.value, (jax.process_index() + 1) * BATCH.value)
  place = lambda batch: train.shard_batch(jax.tree.map(lambda x: x[local], batch), mesh)
  block, warm_up = (BLOCK.value, WARM_UP.value) if LAB.value else (1, WARM_UP.value)
  for batch in map(place, make_batches(warm_up, workers, seed=2)):
    for name, contender in group.items():
      if name.startswith('DCT') or not LAB.value:  # the residual has to fill; the others only have to compile
        contender.run(batch, False)
  batches = map(place, make_batches(block * ROUNDS.value, workers, seed=3))
  for rows in zip(*[batches] * block, strict=True):
    for contender in group.values():
      for i, batch in enumerate(rows):
        contender.run(batch, timed=i > 0 or block == 1)
      time.sleep(0.2 if LAB.value else 0)  # what is still on its way must not meet the next one
    for batch in rows:
      alone(batch)
  for contender in group.values():  # accounts are means over workers: so are these
    contender.counted = multihost_utils.process_allgather(np.mean(contender.counted, axis=0)).reshape(-1, 2)
  if jax.process_index() == 0:
    told = {name: c.summary() for name, c in group.items()}
    print('RESULT ' + json.dumps({'alone': statistics.median(alone_times), 'group': told}), flush=True)


def show(name, found):
  """Shows a table of all contenders; returns how many times each is as fast as the best dense one."""
  group, bytes_of = found['group'], lambda x: f'{x:,.0f}' if x else ''
  best_dense = min(c['seconds'] for key, c in group.items() if not key.startswith('DCT'))
  faster = {key: best_dense / c['seconds'] for key, c in group.items()}
  rows = [('', 'ms a step', 'over computation', 'faster', 'encoded bytes', 'sent bytes', 'last loss',
           *(('counted', 'without headers') if LAB.value else ()))]
  rows.append(('computation alone', f'{1e3 * found["alone"]:.2f}', '1.00', *[''] * (len(rows[0]) - 3)))
  for key, c in group.items():
    rows.append((key, f'{1e3 * c["seconds"]:.2f}', f'{c["seconds"] / found["alone"]:.2f}', f'{faster[key]:.2f}',
                 bytes_of(c['encoded']), bytes_of(c['sent']), f'{c["loss"]:.4f}',
                 *(map(bytes_of, c['counted']) if LAB.value else ())))
  table(name, f'DLRM MLPs, {parameters():,} parameters, {PROCESSES.value} processes, batch {BATCH.value}, {name}; '
        f'others had {found["stolen"]:.1%} of the machine', rows)
  return faster


def parameters():
  return sum(x.size for x in jax.tree.leaves(init_params()))


def on_loopback(command):
  """All processes on the loopback interface of this machine; returns what the benchmark tells last."""
  found = result_of(lambda output: launch(command, PROCESSES.value, output=output))
  return {'step_speedup': round(show('loopback', found)['DCT'], 3),
          'bytes_ratio': round(4 * parameters() / found['group']['DCT']['encoded'], 2),
          'sparsity': SPARSITY.value, 'lifespan': LIFESPAN.value, 'tracking': TRACKING.value,
          'value_codec': VALUES.value}


def in_the_lab(command):
  """All rates, one lab; returns what the benchmark tells last."""
  every, faster = {}, {}
  netlab.end_on_sigterm()
  with netlab.Lab(PROCESSES.value) as lab:
    for rate in RATES.value:
      print(f'\n== {PROCESSES.value} hosts, {rate}', flush=True)
      lab.reshape(rate=rate)
      every[rate] = result_in_lab(lab, command)
      faster[rate] = show(rate, every[rate])
  show_rates(every, faster)
  told = {f'speedup_{rate}': round(x['DCT'], 3) for rate, x in faster.items()}
  told |= {f'late_speedup_{rate}': round(x['DCT, one step late'], 3) for rate, x in faster.items()}
  return told | {'counter_error': round(max(map(counter_error, every.values())), 4)}


def show_rates(every, faster):
  """One table of all rates: rate -> what was found, and rate -> contender -> how many times faster."""
  first = next(iter(every.values()))
  rows = [('', *every), ('computation alone', *(f'{1e3 * found["alone"]:.1f}' for found in every.values()))]
  for key in first['group']:
    factor = lambda rate, key=key: f' ({faster[rate][key]:.1f})' if key.startswith('DCT') else ''
    rows.append((key, *(f'{1e3 * x["group"][key]["seconds"]:.1f}{factor(rate)}' for rate, x in every.items())))
  table('rates', 'ms a step (times faster than the best dense one)', rows)


def counter_error(found):
  """How far what the interfaces counted, without headers, is from the accounts of DCT."""
  ours = found['group']['DCT']
  return abs(ours['counted'][1] / (ours['sent'] + (PROCESSES.value - 1) * LOSS_BYTES) - 1)


def main(argv):
  if WORKER.value:
    return worker()
  command = [sys.executable, *argv[:1], '--worker', *sys.argv[1:]]
  finish(in_the_lab(command) if LAB.value else on_loopback(command), seed=[0, 1, 2, 3])


if __name__ == '__main__':
  app.run(main)
