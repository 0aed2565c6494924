"""An installed wheel: all of it is there, the kernels are in use, and a step of training works."""

import importlib
import importlib.metadata
import pathlib
import pkgutil

import jax

jax.config.update('jax_num_cpu_devices', 2)

import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
from jax import shard_map  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import dct_jax  # noqa: E402
from dct_jax import kernels  # noqa: E402


def check_files():
  """The package is the installed one, with its version and its types."""
  root = pathlib.Path(dct_jax.__file__).parent
  assert 'site-packages' in root.parts, f'this is not the installed package: {root}'
  version = importlib.import_module('dct_jax.version').__version__
  assert importlib.metadata.version('dct_jax') == version
  assert (root / 'py.typed').exists(), 'py.typed is missing'
  rooms = [m.name for m in pkgutil.iter_modules(dct_jax.__path__)]
  for room in rooms:
    importlib.import_module(f'dct_jax.{room}')
  assert kernels.native_in_use(), 'the wheel has no kernels: see what the build has said'
  return f'dct_jax {version}, {len(rooms)} rooms, native kernels in use'


def take_a_step():
  """Two workers, one step of SGD with thresholded gradients."""
  mesh = dct_jax.make_mesh(2)
  tx = optax.chain(dct_jax.dct_dp(0.99, lifespan=10, axis_name='data', dense_below=0), optax.sgd(0.1))
  params, state, specs = dct_jax.init(tx, {'w': jnp.zeros((64, 64))}, mesh)
  loss_fn = lambda params, x: jnp.mean((x @ params['w'] - x) ** 2)

  def step(params, state, batch):
    loss, grads = dct_jax.local_value_and_grad(loss_fn, 'data')(params, batch)
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state, jax.lax.pmean(loss, 'data')

  step = jax.jit(shard_map(step, mesh=mesh, in_specs=(P(), specs, P('data')), out_specs=(P(), specs, P())))
  new, state, loss = step(params, state, jax.random.normal(jax.random.key(0), (16, 64)))
  moved = int((new['w'] != 0).sum())
  assert loss > 0 and 40 <= moved <= 2 * 45, f'{moved} entries have moved'  # 1% of 4,096, by each of two workers
  return f'a step: {int(state[0].stats.receipt.encoded_bytes)} bytes instead of {4 * 64 * 64}'


if __name__ == '__main__':
  print(check_files())
  print(take_a_step())
