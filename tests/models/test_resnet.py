"""ResNet against published sizes and a PyTorch twin; moving averages that follow the first worker."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dct_jax
from dct_jax import train
from dct_jax.models.batch_stats import follow_first_worker
from dct_jax.models.resnet import ResNet, is_kernel

pytestmark = pytest.mark.plain_code

WORKERS = 4


def shapes_of(model, shape=(1, 32, 32, 3)):
  return jax.eval_shape(model.init, jax.random.PRNGKey(0), jnp.zeros(shape))


@pytest.mark.parametrize(('depth', 'millions'), [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85), (110, 1.73)])
def test_published_sizes(depth, millions):  # He et al., table 6; 1.7 there for 110
  count = sum(x.size for x in jax.tree.leaves(shapes_of(ResNet(depth))['params']))
  assert round(count / 1e6, 2) == millions


@pytest.mark.parametrize('bad', [{'depth': 2}, {'depth': 18}, {'depth': 21}, {'width': 0}, {'stem_stride': 0}])
def test_bad_arguments(bad):
  with pytest.raises(ValueError, match=f'got self.{next(iter(bad))}'):
    ResNet(**bad)


@pytest.mark.parametrize('shape', [(2, 32, 32, 3), (2, 8, 8, 1)])
def test_shapes_and_width(shape):
  model = ResNet(8, width=2)
  variables = shapes_of(model, shape)
  assert jax.eval_shape(model.apply, variables, jnp.zeros(shape)).shape == (2, 10)
  assert variables['params']['Dense_0']['kernel'].shape == (128, 10)
  assert variables['params']['Conv_0']['kernel'].shape == (3, 3, shape[-1], 32)


def test_kernels_are_convolutions_and_the_last_layer():
  variables = shapes_of(ResNet(8))
  shapes, chosen = jax.tree.leaves(variables), jax.tree.leaves(is_kernel(variables))
  assert chosen == [len(x.shape) > 1 for x in shapes]
  assert sum(jax.tree.leaves(is_kernel(variables))) == 8
  assert not any(jax.tree.leaves(is_kernel(variables)['batch_stats']))


def torch_forward(torch, variables, x, train):
  """The paper's network with PyTorch's functions, and our weights; new averages are not looked at."""
  tensor = lambda a: torch.from_numpy(np.array(a))
  f = torch.nn.functional

  def layer(x, node, stats, i, stride=1):
    kernel = tensor(node[f'Conv_{i}']['kernel']).permute(3, 2, 0, 1)
    norm, moving = node[f'BatchNorm_{i}'], stats[f'BatchNorm_{i}']
    x = f.conv2d(x, kernel, stride=stride, padding=1)
    return f.batch_norm(x, tensor(moving['mean']), tensor(moving['var']), tensor(norm['scale']),
                        tensor(norm['bias']), training=train, eps=1e-5)

  params, stats = variables['params'], variables['batch_stats']
  x = torch.relu(layer(tensor(x).permute(0, 3, 1, 2), params, stats, 0))
  blocks = sorted((k for k in params if k.startswith('Block')), key=lambda k: int(k.split('_')[1]))
  for i, name in enumerate(blocks):
    stride = 2 if i and i % (len(blocks) // 3) == 0 else 1
    y = torch.relu(layer(x, params[name], stats[name], 0, stride))
    y = layer(y, params[name], stats[name], 1)
    if stride == 2:
      new = x.shape[1] // 2
      x = f.pad(f.avg_pool2d(x, 1, stride=2), (0, 0, 0, 0, new, new))
    x = torch.relu(x + y)
  dense = params['Dense_0']
  return (x.mean((2, 3)) @ tensor(dense['kernel']) + tensor(dense['bias'])).numpy()


@pytest.mark.parametrize('train', [False, True])
@pytest.mark.parametrize('shape', [(3, 32, 32, 3), (3, 8, 8, 1)])
def test_forward_pass_as_in_pytorch(train, shape):
  torch = pytest.importorskip('torch', reason='PyTorch, which this is compared with, is not installed')
  rng = np.random.default_rng(0)
  model, x = ResNet(14), rng.normal(size=shape).astype(np.float32)
  draw = lambda a: (rng.uniform(0.5, 1.5, a.shape) / np.sqrt(max(np.prod(a.shape[:-1]), 1))).astype(np.float32)
  signed = lambda a: draw(a) * rng.choice([-1, 1], a.shape).astype(np.float32)
  shapes = shapes_of(model, shape)
  variables = {name: jax.tree.map(f, shapes[name]) for name, f in [('params', signed), ('batch_stats', draw)]}
  ours, _ = jax.jit(partial(model.apply, train=train, mutable=['batch_stats']))(variables, x)
  np.testing.assert_allclose(ours, torch_forward(torch, variables, x, train), rtol=2e-4, atol=2e-4)


def quadratic(variables, batch):
  """A loss whose new averages are 0.9 of the old and 0.1 of this worker's batch."""
  old = variables['batch_stats']
  new = {'mean': jax.lax.stop_gradient(0.9 * old['mean']) + 0.1 * batch.mean(0)}
  loss = jnp.mean((batch - variables['params']) ** 2)
  return follow_first_worker(loss, old, new, 'data'), loss


def make_tx():
  optimizers = {'params': optax.sgd(0.1, momentum=0.9), 'batch_stats': optax.sgd(1.0)}
  return optax.chain(dct_jax.dense_mean('data'), optax.multi_transform(optimizers, lambda t: {k: k for k in t}))


def test_averages_become_the_first_workers():
  batch = np.random.default_rng(1).normal(3, 1, (WORKERS * 6, 5)).astype(np.float32)
  start = {'params': jnp.zeros(5), 'batch_stats': {'mean': jnp.arange(5.0)}}
  want = 0.9 * np.arange(5) + 0.1 * batch[:6].mean(0)

  mesh, tx = dct_jax.make_mesh(WORKERS), make_tx()
  variables, state, specs = dct_jax.init(tx, start, mesh)
  step = train.make_step(lambda v, b: quadratic(v, b)[0], tx, mesh, specs)
  variables, _, metrics = step(variables, state, train.shard_batch(batch, mesh))
  np.testing.assert_allclose(variables['batch_stats']['mean'], want, rtol=1e-6)
  assert metrics['loss'] == pytest.approx(np.mean(batch**2), rel=1e-6)  # the term has no value
  np.testing.assert_allclose(variables['params'], 0.1 * 2 * batch.mean(0) / 5, rtol=1e-5)

  update, state = dct_jax.simulate(make_tx(), start, WORKERS)
  grads = jax.vmap(jax.grad(lambda v, b: quadratic(v, b)[0]), (None, 0), axis_name='data')(
      start, batch.reshape(WORKERS, 6, 5))
  assert not np.any(grads['batch_stats']['mean'][1:])
  simulated = optax.apply_updates(start, update(grads, state, start)[0])
  np.testing.assert_allclose(simulated['batch_stats']['mean'], want, rtol=1e-6)


def test_the_model_moves_its_averages_by_its_own_gradient():
  model = ResNet(8)
  x = jax.random.normal(jax.random.PRNGKey(1), (4, 8, 8, 1)) + 1
  variables = jax.jit(model.init)(jax.random.PRNGKey(0), x)

  def loss_fn(old):
    logits, new = model.apply(variables | {'batch_stats': old}, x, train=True, mutable=['batch_stats'])
    return follow_first_worker(jnp.mean(logits**2), old, new['batch_stats']), new['batch_stats']

  grads, new = jax.jit(jax.grad(loss_fn, has_aux=True))(variables['batch_stats'])
  moved = jax.tree.map(jnp.subtract, variables['batch_stats'], grads)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), moved, new)
