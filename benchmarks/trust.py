"""What it costs to believe nothing: `python benchmarks/trust.py`.

Processes on the loopback interface, where the network is as fast as memory and a check costs most. The same training
step as in benchmarks/step.py, over our own transport: with checksums in frames and without, and encrypted; and an
exchange alone, which does little but send. Contenders take turns, in an order that moves on by one each time, and
are compared by medians over the same rounds. Then what it costs to compare all replicas now and then. The last line is
JSON.
"""

from __future__ import annotations

import inspect
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
import step as steps
from absl import app, flags
from timing import finish, result_of, table

import dct_jax
from dct_jax import train
from dct_jax.train.launch import launch
from dct_jax.transport import Tls, mean

VALUES = flags.DEFINE_integer('values', 2**20, 'Number of float32 values of the exchange.')
CERTIFICATES = flags.DEFINE_string('certificates', None, 'Internal: the directory of the certificates.')

KEYS = {'DCT step': '', 'dense step': '_dense', 'exchange': '_exchange'}  # what a ratio's key ends with
# Name -> what its transport is told. Frames are checked unless DCT_JAX_FRAME_CRC=0 says that only their cost matters.
CONTENDERS: dict[str, dict] = {
    'plain': {'environment': {'DCT_JAX_FRAME_CRC': '0'}},
    'crc': {},
    'tls': {'encrypted': True},
}


class Environment:
  """Variables of the environment, for as long as channels are opened."""

  def __init__(self, values):
    self._values = values

  def __enter__(self):
    os.environ.update(self._values)

  def __exit__(self, *unused):
    for name in self._values:
      del os.environ[name]


def step_over(transport, mesh) -> Callable[[dict], dict]:
  """The step of DCT in benchmarks/step.py; messages go to everybody, as `auto` chooses on a fast network."""
  mean = dct_jax.dct_dp(
      steps.SPARSITY.value, steps.LIFESPAN.value, 'data', value_codec=steps.VALUES.value,
      tracking=steps.TRACKING.value, dense_below=0, collective=dct_jax.sparse_all_reduce('all_gather', transport))
  return steps.jax_step(optax.chain(mean, optax.sgd(0.01)), mesh, transport)


def dense_step_over(transport, mesh) -> Callable[[dict], dict]:
  """The same with a dense mean, which sends some 60 times as much."""
  mean = dct_jax.compressed_mean(dct_jax.identity(), dct_jax.psum(transport), 'data')
  return steps.jax_step(optax.chain(mean, optax.sgd(0.01)), mesh, transport)


def exchange_over(transport) -> Callable[[], object]:
  """Everybody's vector to everybody, alone."""
  channel = transport.open()
  call = jax.jit(lambda x: mean(x, channel, transport.size))
  x = jnp.ones(VALUES.value, jnp.float32)
  return lambda: jax.block_until_ready(call(x))


def time_in_turns(calls: dict[str, Callable], arguments) -> dict[str, float]:
  """Median seconds of each contender; a call waits for its result."""
  times: dict[str, list[float]] = {name: [] for name in calls}
  names = list(calls)
  for turn, args in enumerate(arguments):
    for name in names[turn % len(names):] + names[:turn % len(names)]:
      begin = time.perf_counter()
      calls[name](*args)
      times[name].append(time.perf_counter() - begin)
  return {name: statistics.median(t[len(t) // 10 + 1:]) for name, t in times.items()}


def worker():
  train.start(**train.flag_values())
  warnings.simplefilter('ignore', RuntimeWarning)  # that frames are not checked is what is measured
  mesh = dct_jax.make_mesh()
  groups: dict[str, dict] = {name: {} for name in KEYS}
  for name, options in CONTENDERS.items():
    transport = dct_jax.connect(mesh, tls=Tls.of(CERTIFICATES.value) if options.get('encrypted') else None)
    with Environment(options.get('environment', {})):
      groups['DCT step'][name] = step_over(transport, mesh)
      groups['dense step'][name] = dense_step_over(transport, mesh)
      groups['exchange'][name] = exchange_over(transport)
  local = slice(jax.process_index() * steps.BATCH.value, (jax.process_index() + 1) * steps.BATCH.value)
  place = lambda batch: train.shard_batch(jax.tree.map(lambda x: x[local], batch), mesh)
  batches = lambda count, seed: ((place(b),) for b in steps.make_batches(count, mesh.size, seed))
  time_in_turns(groups['DCT step'], batches(steps.WARM_UP.value, 2))  # until residuals are full
  found = {group: time_in_turns(calls, batches(steps.ROUNDS.value, 3) if 'step' in group
                                else ((),) * steps.ROUNDS.value) for group, calls in groups.items()}
  hashing = replica_hash(mesh)
  if jax.process_index() == 0:
    print('RESULT ' + json.dumps({'found': found, 'hashing': hashing}), flush=True)


def replica_hash(mesh, repeats=30) -> float:
  """Median seconds of comparing the step's parameters on all workers."""
  params = train.replicate(steps.init_params(), mesh)
  calls = {'hash': lambda: train.check_replicas(params)}
  return time_in_turns(calls, ((),) * repeats)['hash']


def share_of_hashing(hashing, step) -> float:
  """Steps with comparisons, as often as the loop makes them, over the same without."""
  every = inspect.signature(train.run).parameters['compare_every'].default
  return 1 + hashing / (every * step)


def show(found, stolen) -> dict[str, float]:
  """Shows a table, and returns the ratios by the keys of the last line."""
  others = [name for name in CONTENDERS if name != 'plain']
  rows = [('', *(f'{name}, ms' for name in CONTENDERS), *(f'{name} over plain' for name in others))]
  ratios = {}
  for group, medians in found.items():
    ratios |= {f'{name}_over_plain{KEYS[group]}': round(medians[name] / medians['plain'], 3) for name in others}
    rows.append((group, *(f'{1e3 * medians[name]:.2f}' for name in CONTENDERS),
                 *(f'{medians[name] / medians["plain"]:.3f}' for name in others)))
  table('trust', f'{steps.PROCESSES.value} processes, DLRM MLPs, batch {steps.BATCH.value}; the exchange has '
        f'{VALUES.value:,} values; others had {stolen:.1%} of the machine', rows)
  return ratios


def make_certificates(directory):
  """An authority and one certificate for all workers, as docs/security.md has it."""
  run = lambda *words: subprocess.run(['openssl', *words], cwd=directory, check=True, capture_output=True)
  curve = ('-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes')
  run('req', '-x509', *curve, '-keyout', 'authority.key', '-out', 'authority.pem', '-days', '2', '-subj', '/CN=run')
  run('req', *curve, '-keyout', 'key.pem', '-out', 'request.pem', '-subj', '/CN=worker')
  run('x509', '-req', '-in', 'request.pem', '-CA', 'authority.pem', '-CAkey', 'authority.key', '-CAcreateserial',
      '-days', '2', '-out', 'certificate.pem')


def main(argv):
  if steps.WORKER.value:
    return worker()
  with tempfile.TemporaryDirectory() as directory:
    make_certificates(directory)
    command = [sys.executable, *argv[:1], '--worker', *sys.argv[1:], f'--certificates={directory}']
    told = result_of(lambda output: launch(command, steps.PROCESSES.value, output=output))
  ratios, step = show(told['found'], told['stolen']), told['found']['DCT step']['crc']
  print(f'\ncomparing all replicas takes {1e3 * told["hashing"]:.2f} ms')
  ratios['replica_hash_over_plain'] = round(share_of_hashing(told['hashing'], step), 5)
  finish(ratios, seed=[0, 1, 2, 3])


if __name__ == '__main__':
  app.run(main)
