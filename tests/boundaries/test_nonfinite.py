"""NaN and infinity cross a boundary, in every codec, native and twin: a diverged model has no finite loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import dct_mp

from dct_jax.boundaries import Cut, SparseBoundary, row_threshold, sparse_boundary
from dct_jax.wire.activations import pack

NAN, INF = np.nan, np.inf
KINDS = {'nan': [NAN], 'infinity': [INF, -INF], 'both': [NAN, INF, -INF]}
CODECS = ('float32', 'float16', 'int8')
ARRIVES = {'float32': lambda x: x, 'float16': dct_mp.float16, 'int8': dct_mp.int8_rows}
COMES_BACK = ARRIVES | {'float16': dct_mp.scaled_float16}


def rows_with(kind, rows=6, width=40, seed=0):
  """Rows of which the first two are finite; the others have more and more entries that are not."""
  rng = np.random.default_rng(seed)
  x = rng.standard_normal((rows, width)).astype(np.float32)
  x[x < -1] = 0  # as some are after a ReLU
  for i, share in enumerate((0.02, 0.1, 0.6, 1.0), start=2):
    places = rng.permutation(width)[:max(1, int(share * width))]
    x[i, places] = rng.choice(np.float32(KINDS[kind]), places.size)
  return x


def assert_alike(got, want, codec):
  """What is not finite stands in the same places; the rest is equal, or off by the rounding of a scale."""
  exact = np.testing.assert_array_equal
  exact(np.isnan(got), np.isnan(want))
  exact(np.isinf(got) * np.sign(got), np.isinf(want) * np.sign(want))
  finite = np.isfinite(want)
  got, want = np.asarray(got)[finite], want[finite]
  np.testing.assert_allclose(got, want, rtol=1e-6 if codec == 'int8' else 0)


def through_a_cut(cut):
  """Both ways through bytes, as between two processes."""
  leave, come_back, arrive = jax.jit(cut.leave), jax.jit(cut.come_back), jax.jit(cut.arrive)

  def cross(x, gradient):
    parcel, _ = cut.read(pack(leave(x)))
    back, _ = cut.read(pack(come_back(gradient, parcel.mask), with_mask=False), parcel.mask)
    return arrive(parcel), arrive(back)

  return cross


def both_passes(boundary):
  def cross(x, gradient):
    out, back = jax.vjp(boundary, x)
    return out, back(gradient)[0]

  return jax.jit(cross)


def inside_a_program(cut):
  return both_passes(lambda x: sparse_boundary(x, cut.sparsity, value_codec=cut.value_codec))


def by_a_module(cut):
  return both_passes(lambda x: SparseBoundary(cut.sparsity, cut.value_codec).apply({}, x))


@pytest.mark.parametrize('way', [inside_a_program, by_a_module, through_a_cut])
@pytest.mark.parametrize('codec', CODECS)
def test_both_passes_carry_them_in_their_places(codec, way, native):
  for sparsity in (0.5, 0.95, 1.0):
    cross = way(Cut(sparsity, codec))
    for kind in KINDS:
      x, gradient = rows_with(kind), rows_with(kind, seed=1)[::-1].copy()
      out, back = cross(x, gradient)
      assert_alike(out, ARRIVES[codec](dct_mp.forward(x, sparsity)), codec)
      assert_alike(back, COMES_BACK[codec](dct_mp.backward(x, gradient, sparsity)), codec)


def test_the_issue_by_hand(native):
  cut = lambda row, **kwargs: sparse_boundary(jnp.array([row]), 0.75, **kwargs)[0].tolist()
  assert str(cut([NAN, 1.0, 2.0, 3.0])) == '[nan, 0.0, 0.0, 3.0]'  # the two largest, of which NaN is one
  assert str(cut([NAN] * 4)) == '[nan, nan, nan, nan]'
  assert cut([1.0, -INF, 0.0, 3.0]) == [0.0, -INF, 0.0, 3.0]
  assert cut([INF, 1e6, 2.0, 1.0], value_codec='float16') == [INF, 65504.0, 0.0, 0.0]  # what is finite stays so
  assert cut([INF, 3.0, -INF, 1.0], value_codec='int8') == [INF, 0.0, -INF, 0.0]
  assert str(cut([NAN, 3.0, 2.0, 1.0], value_codec='int8')) == '[nan, nan, nan, nan]'


def test_thresholds_count_nan_as_infinity(native):
  x = rows_with('both')
  for sparsity in (0.01, 0.5, 0.95, 1.0):
    want = np.array([dct_mp.threshold(row, sparsity) for row in x], np.float32)
    np.testing.assert_array_equal(row_threshold(jnp.asarray(x), sparsity), want)


@pytest.mark.parametrize('codec', CODECS)
def test_other_rows_do_not_notice(codec, native):
  """A float16 gradient has one scale for all rows, so that this is no matter of course."""
  x, gradient = rows_with('both'), rows_with('both', seed=1)
  zeroed = [np.where(np.isfinite(a), a, 0) for a in (x, gradient)]
  run = inside_a_program(Cut(0.75, codec))
  for got, want in zip(run(x, gradient), run(*zeroed), strict=True):
    np.testing.assert_array_equal(got[:2], want[:2])


@pytest.mark.parametrize('codec', CODECS)
def test_apart_masks_carry_them_too(codec):
  x, gradient = rows_with('both'), rows_with('both', seed=1)
  cross = both_passes(lambda x: sparse_boundary(x, 0.9, value_codec=codec, masks='apart'))
  assert_alike(cross(x, gradient)[1], COMES_BACK[codec](dct_mp.forward(gradient, 0.9)), codec)


@pytest.mark.parametrize('codec', CODECS)
def test_a_diverged_model_has_no_finite_loss_and_gradient(codec, native):
  """One bad weight before the cut is seen in the loss, and in gradients on both sides."""

  @jax.jit
  @jax.value_and_grad
  def loss(params, x):
    hidden = sparse_boundary(x @ params['before'], 0.9, value_codec=codec)
    return jnp.mean((hidden @ params['after']) ** 2)

  rng = np.random.default_rng(0)
  before, after, x = (rng.standard_normal(s).astype(np.float32) for s in ((8, 32), (32, 2), (4, 8)))
  assert np.isfinite(loss({'before': before, 'after': after}, x)[0])
  for bad in KINDS['both']:
    before[3, 5] = bad
    value, grads = loss({'before': before, 'after': after}, x)
    assert not np.isfinite(value)
    assert not np.isfinite(grads['after']).all()
    assert not np.isfinite(grads['before']).all()
