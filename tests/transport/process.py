"""What one of several real processes does: trainings over a transport, one that dies, one that goes on.

    python process.py TASK DIRECTORY
"""

import os
import pathlib
import signal
import sys
import time

import jax
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / 'train'))

import program
from reference import s2 as reference

import dct_jax
from dct_jax import tables, train
from dct_jax.collectives import Costs, all_gather, s2, sparse_all_reduce, union_sum
from dct_jax.transport import door

WORKERS, STEPS, DEATH, LAST = 3, 5, 6, 8
COSTS = Costs.of_network(WORKERS, 1e3, 0.0)  # bytes decide
# name -> transport or None -> collective. Without a transport they go through XLA.
COLLECTIVES = {
    'gather_messages': lambda t: all_gather(transport=t),
    'all_gather': lambda t: sparse_all_reduce('all_gather', t),
    'split_all_gather': lambda t: sparse_all_reduce('split_all_gather', t),
    'recursive_double': lambda t: sparse_all_reduce('recursive_double', t),
    'auto': lambda t: sparse_all_reduce('auto', t, costs=COSTS, dense_fallback=False),
    'union_sum': lambda t: union_sum(transport=t),
    's2': lambda t: s2(0.5, transport=t),
}
# name -> transport -> reducer of rows
REDUCERS = {
    'gather': lambda t: tables.gather_rows(transport=t),
    'split': tables.split_rows,
    'union': lambda t: tables.union_rows(transport=t),
    'sketch': lambda t: tables.sketch_rows(0.5, 3, transport=t),
    'narrow': lambda t: tables.sketch_rows(2.0, values='int16', transport=t),
    'dense': lambda t: tables.dense_rows(transport=t),
    'auto': lambda t: tables.auto_rows(COSTS, t),
}
ROWS, WIDTH, IDS = 97, 5, 24


def draw_rows(workers):
  return reference.draw_rows(workers, ROWS, WIDTH, IDS)


def make_reduction(reducer, mesh):
  """(ids, values) of all workers -> their sum, as a jitted function of global arrays."""
  one = lambda ids, values: reducer.reduce(
      tables.as_stream(ids[0], values[0], ROWS), ROWS, reducer.init(), 'data')
  return jax.jit(jax.shard_map(one, mesh=mesh, in_specs=P('data'), out_specs=P()))


def make_server(transport=None):
  """The parameter server, with room for every message: then lengths do not depend on who carries them."""
  ternary = dct_jax.error_feedback(dct_jax.three_lc(1.5, dense_below=200))  # w2's slices travel whole
  sgd = optax.sgd(0.05, momentum=0.9)
  server = dct_jax.push_pull(ternary, ternary, sgd, 'data', workers=WORKERS, rungs=1, transport=transport)
  return program.Program(WORKERS, optax.chain(server))


def make(name, transport=None, losses=None):
  """`losses`: the transport that averages them, or XLA's collectives do."""
  if name == 'push_pull':
    return make_server(transport)
  mean = dct_jax.compressed_mean(
      dct_jax.error_feedback(dct_jax.top_k(0.05)), COLLECTIVES[name](transport), 'data')
  return program.Program(WORKERS, optax.chain(mean, optax.sgd(0.05, momentum=0.9)), losses)


def batches(mesh, start=0):
  """Those of `program`, the third one without numbers on worker 1."""
  for step, batch in enumerate(program.make_batches(mesh, start), start):
    if step == 2:
      row = np.arange(4 * WORKERS)[:, None] // 4
      holes = np.where(row == 1, np.nan, 1.0).astype(np.float32)
      bad = jax.make_array_from_callback(holes.shape, batch['x'].sharding, lambda at: holes[at])
      batch = batch | {'x': batch['x'] * bad}
    yield batch


def run(p, steps, params=None, state=None, start=0, **kwargs):
  return train.run(p.step, p.params if params is None else params, p.state if state is None else state,
                   batches(p.mesh, start), steps=steps, start=start, log_every=1, progress=False, **kwargs)


def save(path, result, **numbers):
  """Parameters and residuals of this process, which do not depend on the collective; and a few numbers."""
  state = result.opt_state[0]
  state = getattr(state, 'residual', None) or (state.push_residual, state.pull_residual)
  losses = np.array([line['loss'] for line in result.history])
  np.savez(path, *program.local_bytes((result.params, state)), losses=losses,
           skipped=np.asarray(result.opt_state[0].stats.nonfinite),
           sent=result.history[-1]['total_sent_bytes'], **numbers)


def among_strangers(directory):
  """Trains with two processes, and tells everybody the ports at which it waits for the other, and takes its time."""
  real = door.Door.__init__

  def tell(self, *args, **kwargs):
    real(self, *args, **kwargs)
    with open(directory / 'ports', 'a') as file:
      file.write(f'{self.address[1]}\n')
    time.sleep(0.5)

  door.Door.__init__ = tell
  transport = dct_jax.connect(dct_jax.make_mesh(), timeout=20.0)
  mean = dct_jax.compressed_mean(
      dct_jax.error_feedback(dct_jax.top_k(0.05)), sparse_all_reduce('split_all_gather', transport), 'data')
  p = program.Program(2, optax.chain(mean, optax.sgd(0.05)), transport)
  time.sleep(0.5)
  result = p.run(6)
  print(f'trained {len(result.history)} steps', flush=True)


def main(task, directory):
  train.start()
  if task == 'among_strangers':
    return among_strangers(pathlib.Path(directory))
  directory, me = pathlib.Path(directory), jax.process_index()
  transport = dct_jax.connect(dct_jax.make_mesh(), timeout=20.0)
  checkpoints = train.Checkpoints(directory / 'saved', {})
  if task == 'train':
    for name in (*COLLECTIVES, 'push_pull'):
      before = transport.traffic().sent_bytes
      result = run(make(name, transport), STEPS)
      save(directory / f'{name}{me}.npz', result, traffic=transport.traffic().sent_bytes - before)
    given = train.share_batch(draw_rows(WORKERS), dct_jax.make_mesh())
    for name, make_reducer in REDUCERS.items():
      reducer, before = make_reducer(transport), transport.traffic().sent_bytes
      ids, values, _, sent, _ = jax.device_get(make_reduction(reducer, dct_jax.make_mesh())(*given))
      np.savez(directory / f'rows_{name}{me}.npz', ids=ids, values=values, sent=sent,
               traffic=transport.traffic().sent_bytes - before)
  elif task == 'die':
    p, calls = make('split_all_gather', transport, losses=transport), iter(range(LAST))
    step = p.step

    def dangerous(*args):
      if next(calls) == DEATH - 1 and me == 1:
        os.kill(os.getpid(), signal.SIGKILL)
      return step(*args)

    p.step = dangerous
    run(p, LAST, checkpoints=checkpoints, checkpoint_every=2)
  else:
    p = make('split_all_gather', transport)
    params, state, at = checkpoints.restore(p.params, p.state, p.specs, p.mesh)
    print(f'resumed at step {at}', flush=True)
    result = run(p, LAST, params, state, at)
    save(directory / f'resumed{me}.npz', result, step=np.asarray(result.opt_state[0].collective.step))


if __name__ == '__main__':
  main(*sys.argv[1:])
