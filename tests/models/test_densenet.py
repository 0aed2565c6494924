"""DenseNet against published sizes and a literal forward pass in NumPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from marks import slow

from dct_jax.models.densenet import DenseNet
from dct_jax.models.resnet import is_kernel

pytestmark = pytest.mark.plain_code


def shapes_of(model, shape=(1, 32, 32, 3)):
  return jax.eval_shape(model.init, jax.random.PRNGKey(0), jnp.zeros(shape))


@pytest.mark.parametrize(('changes', 'millions'), [
    ({'depth': 40}, 1.0), ({'depth': 100, 'bottleneck': True}, 0.8), *slow(
        ({'depth': 100}, 7.0), ({'depth': 100, 'growth': 24}, 27.2),
        ({'depth': 250, 'growth': 24, 'bottleneck': True}, 15.3))])
def test_published_sizes(changes, millions):  # Huang et al., table 2
  count = sum(x.size for x in jax.tree.leaves(shapes_of(DenseNet(**changes))['params']))
  assert round(count / 1e6, 1) == millions


def convolve(x, kernel, stride=1):
  """Of images [n, height, width, channels], pixel by pixel, with zeros around."""
  size, edge = kernel.shape[0], kernel.shape[0] // 2
  padded = np.pad(x, ((0, 0), (edge, edge), (edge, edge), (0, 0)))
  rows = range(0, x.shape[1], stride)
  return np.stack([np.stack([np.einsum('nhwc,hwcf->nf', padded[:, i:i + size, j:j + size], kernel)
                             for j in rows], 1) for i in rows], 1)


def forward(variables, x, group, bottleneck, train, stride=1):
  """The paper's network, with `group` layers in each of three groups."""
  params, stats = variables['params'], variables['batch_stats']

  def activate(x, node, moving, i):
    mean, var = ((x.mean((0, 1, 2)), x.var((0, 1, 2))) if train else
                 (moving[f'BatchNorm_{i}']['mean'], moving[f'BatchNorm_{i}']['var']))
    scaled = (x - mean) / np.sqrt(var + 1e-5) * node[f'BatchNorm_{i}']['scale']
    return np.maximum(scaled + node[f'BatchNorm_{i}']['bias'], 0)

  x = convolve(x, params['Conv_0']['kernel'], stride)
  for number in range(3 * group):
    if number and number % group == 0:
      edge = number // group
      x = convolve(activate(x, params, stats, edge - 1), params[f'Conv_{edge}']['kernel'])
      x = x.reshape(len(x), x.shape[1] // 2, 2, x.shape[2] // 2, 2, -1).mean((2, 4))
    node, moving, y = params[f'DenseLayer_{number}'], stats[f'DenseLayer_{number}'], x
    for i in range(2 if bottleneck else 1):
      y = convolve(activate(y, node, moving, i), node[f'Conv_{i}']['kernel'])
    x = np.concatenate([x, y], -1)
  x = activate(x, params, stats, 2).mean((1, 2))
  return x @ params['Dense_0']['kernel'] + params['Dense_0']['bias']


@pytest.mark.parametrize(('bottleneck', 'train', 'stride'), [
    (True, False, 1), *slow((True, True, 1), (False, False, 1)), (False, True, 2)])
def test_forward_pass_as_a_literal_one(bottleneck, train, stride):
  rng = np.random.default_rng(0)
  model = DenseNet(16 if bottleneck else 10, 3, bottleneck, stem_stride=stride)
  x = rng.normal(size=(2, 8 * stride, 8 * stride, 1)).astype(np.float32)
  draw = lambda a: rng.uniform(0.5, 1.5, a.shape).astype(np.float32)
  signed = lambda a: draw(a) * rng.choice([-1, 1], a.shape).astype(np.float32)
  shapes = shapes_of(model, x.shape)
  variables = {name: jax.tree.map(f, shapes[name]) for name, f in [('params', signed), ('batch_stats', draw)]}
  ours, new = jax.jit(partial(model.apply, train=train, mutable=['batch_stats']))(variables, x)
  theirs = forward(variables, x.astype(np.float64), 2, bottleneck, train, stride)
  np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3 * np.abs(theirs).max())
  first = lambda tree: tree['batch_stats']['DenseLayer_0']['BatchNorm_0']['mean']
  seen = convolve(x, variables['params']['Conv_0']['kernel'], stride).mean((0, 1, 2))
  share = 0.1 if train else 0.0  # of a batch in the moving mean
  np.testing.assert_allclose(first(new), (1 - share) * first(variables) + share * seen, rtol=1e-4, atol=1e-4)


def test_kernels_widest_and_stride():
  model = DenseNet(10, 12)
  variables = shapes_of(model)
  assert sum(jax.tree.leaves(is_kernel(variables))) == 10  # the depth
  assert variables['params']['Dense_0']['kernel'].shape == (model.widest, 10)  # 16 + 6 * 12
  bottleneck = DenseNet(16, 12, True)  # 24 + 24, half of which, + 24, half of which, + 24
  assert (bottleneck.widest, shapes_of(bottleneck)['params']['Dense_0']['kernel'].shape) == (48, (48, 10))
  assert shapes_of(DenseNet(10, stem_stride=2)) == variables


def test_overfits_a_few_images():
  model, rng = DenseNet(7, 4), np.random.default_rng(0)
  x, y = rng.normal(size=(8, 8, 8, 1)).astype(np.float32), np.arange(8)
  variables, tx = jax.jit(model.init)(jax.random.key(0), x), optax.adam(2e-2)

  @jax.jit
  def step(params, state):
    def loss_fn(params):
      logits, _ = model.apply(variables | {'params': params}, x, True, mutable=['batch_stats'])
      return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, state = tx.update(grads, state)
    return optax.apply_updates(params, updates), state, loss

  params, state = variables['params'], tx.init(variables['params'])
  for _ in range(60):
    params, state, loss = step(params, state)
  assert loss < 0.1


@pytest.mark.parametrize('bad', [
    {'depth': 4}, {'depth': 41}, {'depth': 13, 'bottleneck': True}, {'growth': 0}, {'stem_stride': 0}])
def test_bad_arguments(bad):
  with pytest.raises(ValueError, match=f'got self.{next(iter(bad))}'):
    DenseNet(**bad)
