"""A tiny training program that tests run with several devices and with several processes.

    python program.py TASK DIRECTORY

Every process prints and saves what it has; the tests compare.
"""

import pathlib
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dct_jax
from dct_jax import train

SIZES = {'w1': (16, 96), 'w2': (96, 4)}  # w1 is compressed, w2 travels whole


def make_params():
  rng = np.random.default_rng(0)
  return {k: jnp.asarray(rng.standard_normal(s) * 0.3, jnp.float32) for k, s in SIZES.items()}


def loss_fn(params, batch):
  return jnp.mean((jnp.tanh(batch['x'] @ params['w1']) @ params['w2'] - batch['y']) ** 2)


def make_batches(mesh, start=0, per_worker=4):
  """Batches by step number: those of a resumed run are the same."""
  workers, step = mesh.size, start
  local = [i for i, d in enumerate(mesh.devices.flat) if d.process_index == jax.process_index()]
  rows = slice(local[0] * per_worker, (local[-1] + 1) * per_worker)
  while True:
    rng = np.random.default_rng([7, step])
    x = rng.standard_normal((workers * per_worker, 16)).astype(np.float32)
    y = np.stack([x[:, :4].sum(1), x[:, 4], x[:, 5] * x[:, 6], x[:, 7]], 1)
    yield train.shard_batch({'x': x[rows], 'y': y[rows]}, mesh)
    step += 1


def make_optimizer(sparsity=0.95, lifespan=4):
  return optax.chain(
      dct_jax.dct_dp(sparsity, lifespan, 'data'), optax.sgd(0.05, momentum=0.9))


class Program:
  """Everything that a run needs, for some number of workers."""

  def __init__(self, workers=None, tx=None, transport=None):
    self.mesh = dct_jax.make_mesh(workers)
    self.tx = make_optimizer() if tx is None else tx
    self.params, self.state, self.specs = dct_jax.init(self.tx, make_params(), self.mesh)
    self.step = train.make_step(loss_fn, self.tx, self.mesh, self.specs, transport=transport)

  def run(self, steps, params=None, state=None, start=0, **kwargs):
    kwargs = {'log_every': 1, 'progress': False} | kwargs
    return train.run(
        self.step, self.params if params is None else params,
        self.state if state is None else state, make_batches(self.mesh, start), steps=steps,
        start=start, **kwargs)


def local_bytes(tree):
  """This process's part of every leaf, for comparing bit for bit."""
  return [np.concatenate([np.atleast_1d(s.data) for s in x.addressable_shards])
          for x in jax.tree.leaves(tree)]


def save(path, result):
  losses = np.array([line['loss'] for line in result.history])
  np.savez(path, *local_bytes((result.params, result.opt_state)), losses=losses)


def elastic(program, directory, steps=200, rows=12, seconds=0.0):
  """Goes on from the last checkpoint, whatever number of workers there is; each step takes some time."""
  checkpoints = train.Checkpoints(directory / 'checkpoints', {})
  params, state, start = program.params, program.state, 0
  if checkpoints.latest() is not None:
    params, state, start = checkpoints.restore(params, state, program.specs, program.mesh)
  with train.MetricsWriter(directory) as writer:
    batches = make_batches(program.mesh, start, rows // program.mesh.size)
    slow = lambda params, state: time.sleep(seconds) or {}
    return train.run(program.step, params, state, batches, steps=steps, start=start, log_every=1, metrics=writer,
                     progress=False, checkpoints=checkpoints, checkpoint_every=20, evaluate=slow, evaluate_every=1)


def main(task, directory, steps=200):
  train.start()
  directory, me = pathlib.Path(directory), jax.process_index()
  if task == 'fail' and me == 1:
    raise OSError('a disk is full')
  program = Program()
  if task == 'train':
    save(directory / f'{me}.npz', program.run(6))
  elif task == 'resume':
    checkpoints = train.Checkpoints(directory / 'saved', {'sparsity': 0.95})
    result = program.run(4, checkpoints=checkpoints)
    save(directory / f'through{me}.npz',
         program.run(7, result.params, result.opt_state, start=4))
    fresh = Program()
    params, state, step = checkpoints.restore(
        fresh.params, fresh.state, fresh.specs, fresh.mesh)
    save(directory / f'restored{me}.npz', fresh.run(7, params, state, start=step))
  elif task == 'differ':
    program.params['w1'] += float(me)
    program.run(1)
  elif task == 'elastic':
    elastic(program, directory, int(steps), seconds=0.1)
  else:  # 'fail' and 'interrupt': until somebody ends it
    print('running', flush=True)
    program.run(10**6, checkpoints=train.Checkpoints(directory / 'saved', {}), log_every=1000,
                evaluate=lambda params, state: print('stepping', flush=True) or {}, evaluate_every=50)


if __name__ == '__main__':
  main(*sys.argv[1:])
