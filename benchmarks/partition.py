"""How well programs are placed on nodes: `python benchmarks/partition.py`.

Plans DLRM, an MLP of 12 layers and a Transformer for a group of trainers and servers, and tells the bottleneck of a
batch (the busiest node's seconds) for placements at random, by rules, refined, with split layers, and with codecs on
the wire: the paper's Figure 11, as the planner sees it. The last line is JSON.
"""

from __future__ import annotations

import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags
from timing import finish, table

from dct_jax import partition
from dct_jax.models.dlrm import Dlrm
from dct_jax.models.mlp import Mlp
from dct_jax.models.transformer import Transformer

SERVERS = flags.DEFINE_integer('servers', 3, 'Number of group servers, and of trainers.')
RATES = flags.DEFINE_list('rates', ['1', '10', '25'], 'Rates of a link in Gbit/s.')
MACHINE = flags.DEFINE_string('machine', '', 'File with the costs of this machine; measured if it is not there.')
SECONDS = flags.DEFINE_float('seconds', 5.0, 'Time of a search.')
EXACT_SECONDS = flags.DEFINE_float('exact_seconds', 60.0, 'Time of the exact solver.')
CODECS = partition.Codecs('int8', 'bfloat16')
DRAWS = 20  # random placements


def dlrm(batch=128):
  """The DCT paper's DLRM; rows come from elsewhere."""
  model = Dlrm()
  inputs = (jnp.zeros((batch, 13)), jnp.zeros((batch, 26, 16)), jnp.zeros(batch))
  params = jax.eval_shape(model.init, jax.random.key(0), *inputs[:2])
  loss = lambda p, x, rows, y: jnp.mean(optax.sigmoid_binary_cross_entropy(model.apply(p, x, rows), y))
  return loss, params, inputs


def mlp(batch=128, width=1024, layers=12):
  """Twelve wide layers."""
  model = Mlp((width,) * (layers - 1), 10)
  inputs = (jnp.zeros((batch, 256)), jnp.zeros(batch, jnp.int32))
  params = jax.eval_shape(model.init, jax.random.key(0), inputs[0])
  loss = lambda p, x, y: jnp.mean(optax.softmax_cross_entropy_with_integer_labels(model.apply(p, x), y))
  return loss, params, inputs


def transformer(layers=1, batch=16, length=32, width=256):
  """A Transformer with as many layers in the encoder and in the decoder."""
  model = Transformer(1000, 1000, width=width, hidden=4 * width, layers=layers)
  words = jnp.ones((batch, length), jnp.int32)
  params = jax.eval_shape(model.init, jax.random.key(0), words, words)
  loss = lambda p, source, target: jnp.mean(
      optax.softmax_cross_entropy_with_integer_labels(model.apply(p, source, target[:, :-1]), target[:, 1:]))
  return loss, params, (words, words)


PROGRAMS = {'DLRM, batch 128': dlrm, 'MLP, 12 layers of 1,024': mlp, 'Transformer, 1 + 1 layers': transformer}


def planned(program, rate, machine, **options):
  loss, params, inputs = program()
  nodes = partition.Nodes(group=SERVERS.value, trainers=SERVERS.value)
  linked = dataclasses.replace(machine, rate=float(rate) * 1.25e8)
  return partition.plan(loss, optax.adam(1e-3), params, *inputs, nodes=nodes, machine=linked, **options)


def ablation(program, rate, machine):
  """Name -> bottleneck in seconds."""
  bottleneck = lambda **options: planned(program, rate, machine, **options).load.bottleneck
  none = {'splits': None}
  return {
      'random': float(np.median([bottleneck(method='random', seed=s, **none) for s in range(DRAWS)])),
      'rules': bottleneck(method='rules', **none),
      'rules, greedy': bottleneck(seconds=SECONDS.value, **none),
      '... and splits': bottleneck(seconds=SECONDS.value, splits='auto'),
      '... and codecs': bottleneck(seconds=SECONDS.value, splits='auto', codec=CODECS),
      'exact, no splits': bottleneck(method='exact', seconds=EXACT_SECONDS.value, **none),
  }


def main(argv):
  del argv
  machine = partition.measure_machine(MACHINE.value or None)
  found = {(name, rate): ablation(program, rate, machine) for name, program in PROGRAMS.items() for rate in RATES.value}
  for name in PROGRAMS:
    rows = [(key, *(f'{found[name, rate][key] * 1e3:.2f}' for rate in RATES.value))
            for key in next(iter(found.values()))]
    table(PROGRAMS[name].__name__,
          f'{name}, {SERVERS.value} trainers and {SERVERS.value} servers: bottleneck of a batch of each, ms',
          [('placement', *(f'{rate} Gbit' for rate in RATES.value)), *rows])
  small = planned(dlrm, '1', machine, splits='auto', codec=CODECS)
  dense = 4 * sum(x.size for x in jax.tree.leaves(dlrm()[1]))
  start = time.perf_counter()
  large = planned(lambda: transformer(layers=12), '10', machine, seconds=SECONDS.value, splits=None)
  _ = large.programs
  seconds = time.perf_counter() - start
  finish({
      'greedy_over_exact': max(f['rules, greedy'] / f['exact, no splits'] for f in found.values()),
      'rules_over_greedy': max(f['rules'] / f['rules, greedy'] for f in found.values()),
      'traffic_over_dense_gradients': small.load.traffic / dense, 'plan_seconds': seconds}, seed=list(range(DRAWS)))


if __name__ == '__main__':
  app.run(main)
