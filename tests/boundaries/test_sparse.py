"""DCT-MP's boundary against Algorithm 2 written out, and what crosses it."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import dct_mp

from dct_jax import kernels
from dct_jax.boundaries import SparseBoundary, row_threshold, sparse_boundary
from dct_jax.boundaries.sparse import crossing_bytes

SPARSITIES = (0.01, 0.29, 0.5, 0.75, 0.9, 0.95, 0.98, 1.0)


def draw(kind, rows, width, seed=0):
  x = np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)
  return {'normal': x, 'relu': np.maximum(x, 0), 'zeros': 0 * x, 'ties': np.round(x), 'equal': np.ones_like(x),
          'one sided': -np.abs(x)}[kind]


@functools.partial(jax.jit, static_argnames=('sparsity', 'native'))
def both_passes(x, gradient, *, sparsity, native):
  with kernels.use_native(native):
    out, back = jax.vjp(lambda x: sparse_boundary(x, sparsity), x)
    return out, back(gradient)[0]


@pytest.mark.parametrize('native', [True, False])
@pytest.mark.parametrize('kind', ['normal', 'relu', 'zeros', 'ties', 'equal', 'one sided'])
def test_both_passes_are_algorithm_2(kind, native):
  for width in (1, 7, 100, 256):
    x = draw(kind, 5, width, seed=width)
    gradient = draw('normal', 5, width, seed=width + 1)
    for sparsity in SPARSITIES:
      out, back = both_passes(x, gradient, sparsity=sparsity, native=native)
      np.testing.assert_array_equal(out, dct_mp.forward(x, sparsity))
      np.testing.assert_array_equal(back, dct_mp.backward(x, gradient, sparsity))


def test_thresholds_are_those_of_the_paper():
  x = draw('normal', 9, 100)
  for sparsity in SPARSITIES:
    want = [dct_mp.threshold(row, sparsity) for row in x]
    np.testing.assert_array_equal(row_threshold(jnp.asarray(x), sparsity), np.array(want, np.float32))
  # 100 - 29 + 1 entries pass: 0.29 * 100 is 29, though not in floating point.
  assert np.count_nonzero(sparse_boundary(jnp.asarray(x[:1]), 0.29)) == 72


@pytest.mark.parametrize('codec', ['float32', 'float16', 'int8'])
@pytest.mark.parametrize('dtype', ['bfloat16', 'float16', 'float32'])
def test_types_stay(dtype, codec, native):
  x, gradient = (jnp.asarray(draw('normal', 4, 50, seed=s)).astype(dtype) for s in (0, 1))
  out, back = jax.vjp(lambda x: sparse_boundary(x, 0.5, value_codec=codec), x)
  (back,) = back(gradient)
  assert out.dtype == back.dtype == x.dtype
  wide = sparse_boundary(x.astype(jnp.float32), 0.5, value_codec=codec)
  np.testing.assert_array_equal(out, wide.astype(dtype))
  assert not ((back != 0) & (out == 0)).any()  # what is small in its row may become 0 in int8
  assert ((back != 0) | (out == 0)).mean() >= (0.9 if codec == 'int8' else 1)


def test_apart_lets_the_gradient_choose_for_itself():
  x, gradient = draw('normal', 4, 50), draw('normal', 4, 50, seed=3)
  out, back = jax.vjp(lambda x: sparse_boundary(x, 0.9, masks='apart'), x)
  np.testing.assert_array_equal(out, dct_mp.forward(x, 0.9))
  np.testing.assert_array_equal(back(gradient)[0], dct_mp.forward(gradient, 0.9))


@pytest.mark.parametrize('codec, error', [('float16', 2**-11), ('int8', 1 / 127 / 2)])
def test_values_are_rounded_in_both_passes_and_zeros_stay(codec, error):
  x, gradient = draw('relu', 6, 64), draw('normal', 6, 64, seed=5)
  out, back = jax.vjp(lambda x: sparse_boundary(x, 0.75, value_codec=codec), x)
  for got, want in ((out, dct_mp.forward(x, 0.75)), (back(gradient)[0], dct_mp.backward(x, gradient, 0.75))):
    scale = np.abs(want).max(axis=1, keepdims=True) if codec == 'int8' else np.abs(want)
    assert (np.abs(got - want) <= error * scale * 1.001).all()
    assert (np.asarray(got)[want == 0] == 0).all()
    assert np.abs(got - want).max() > 0
  zero = jnp.zeros((2, 8))
  np.testing.assert_array_equal(sparse_boundary(zero, 0.5, value_codec=codec), zero)


def test_rows_are_the_last_axis_whatever_comes_before_under_jit_and_vmap():
  x = draw('normal', 12, 30)
  flat = sparse_boundary(x, 0.8)
  cut = lambda x: sparse_boundary(x, 0.8)
  for got in (cut(x.reshape(3, 4, 30)), jax.jit(cut)(x.reshape(3, 4, 30)),
              jax.vmap(cut)(x.reshape(3, 4, 30)), jax.vmap(jax.vmap(cut))(x.reshape(3, 4, 30))):
    np.testing.assert_array_equal(got.reshape(12, 30), flat)
  np.testing.assert_array_equal(cut(x[0]), flat[0])


@pytest.mark.parametrize('arguments', [
    {'sparsity': -0.1}, {'sparsity': 1.5}, {'sparsity': float('nan')}, {'sparsity': lambda step: 0.5},
    {'sparsity': 0.5, 'value_codec': 'float8'}, {'sparsity': 0.5, 'masks': 'two'}])
def test_bad_arguments_are_refused(arguments):
  with pytest.raises(ValueError, match='got'):
    sparse_boundary(jnp.ones((2, 4)), **arguments)


def test_bytes_are_those_of_a_bitmap_and_the_values():
  mask = jnp.asarray(draw('relu', 10, 100) > 1)
  kept = int(mask.sum())
  assert tuple(map(float, crossing_bytes(mask))) == (4 * kept + 10 * 13, 4 * kept)
  assert tuple(map(float, crossing_bytes(mask, 'float16'))) == (2 * kept + 10 * 13, 2 * kept + 4)
  assert tuple(map(float, crossing_bytes(mask, 'int8'))) == (kept + 40 + 10 * 13, kept + 40)


def test_the_module_tells_its_traffic_and_changes_nothing_else():
  class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
      x = nn.relu(nn.Dense(64)(x))
      return nn.Dense(1)(SparseBoundary(0.9, name='cut')(x))

  x, model = draw('normal', 8, 5), Model()
  params = {'params': model.init(jax.random.PRNGKey(0), x)['params']}
  out, state = model.apply(params, x, mutable=['traffic'])
  np.testing.assert_array_equal(out, model.apply(params, x))
  hidden = np.maximum(x @ params['params']['Dense_0']['kernel'] + params['params']['Dense_0']['bias'], 0)
  kept = dct_mp.mask_of(hidden, 0.9)
  traffic = {k: float(v) for k, v in state['traffic']['cut'].items()}
  assert traffic['backward_bytes'] == 4 * kept.sum()
  assert traffic['forward_bytes'] == 4 * kept.sum() + 8 * 8
  assert traffic['dense_bytes'] == 4 * 8 * 64
  want = np.mean([dct_mp.threshold(r, 0.9) for r in hidden])
  np.testing.assert_allclose(traffic['threshold'], want, rtol=1e-5)


def test_without_sparsity_everything_passes_and_is_measured():
  x = draw('normal', 3, 20)
  out, state = SparseBoundary(0.0, watch=0.75).apply({}, x, mutable=['traffic'])
  np.testing.assert_array_equal(out, x)
  assert float(state['traffic']['forward_bytes']) == 4 * 60
  assert float(state['traffic']['threshold']) == pytest.approx(np.mean([dct_mp.threshold(r, 0.75) for r in x]))
