"""Kernels, native and twin, against NumPy oracles; both give the same bits."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import slow
from reference import select
from reference import wire as oracle

from dct_jax import kernels

DTYPES = ['float32', 'bfloat16', 'float16']


def layers_of(sizes, dtype='float32', seed=0, ties=False):
  rng = np.random.default_rng(seed)
  out = []
  for n in sizes:
    x = rng.standard_normal(n).astype(np.float32)
    out.append(jnp.asarray(np.round(4 * x) / 4 if ties else x).astype(dtype))
  return tuple(out)


def sums(layers, residual):
  if residual is None:
    return [np.asarray(x.astype(jnp.float32)) for x in layers]
  return [np.asarray(x.astype(jnp.float32)) + np.asarray(e)
          for x, e in zip(layers, residual, strict=True)]


@pytest.mark.parametrize('ties', [False, True])
@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('size', [1, 1000, 70001, *slow(7, 16385)])
def test_threshold_is_the_exact_order_statistic(native, size, dtype, ties):
  layers = layers_of([size, 33], dtype, ties=ties)
  residual = layers_of([size, 33], seed=1, ties=ties)
  find = jax.jit(functools.partial(kernels.threshold))
  for eta in (0.001, 0.5, 0.99, 1.0):
    ranks = [select.rank(x.size, eta) for x in layers]
    tau, quota = find(layers, residual, jnp.array(ranks, jnp.uint32))
    for x, r, t, q in zip(sums(layers, residual), ranks, tau, quota, strict=True):
      assert t == select.threshold(x, r)
      kept = x.size - r + 1
      assert q == kept - (np.abs(x) > np.asarray(t)).sum()


@pytest.mark.parametrize('value', [0.0, 1.5, 1e-30])
def test_threshold_of_equal_values(native, value):
  x = jnp.full(100_000, value, jnp.float32)
  tau, quota = kernels.threshold((x,), None, jnp.array([99_000], jnp.uint32))
  assert tau[0] == value
  assert quota[0] == 1001


def test_threshold_of_a_distribution_that_fools_samples(native):
  """Almost all of the mass where no sample looks, and heavy ties at both ends of the bracket."""
  x = np.zeros(200_000, np.float32)
  x[:3] = [5.0, 6.0, 7.0]
  x[1000:60_000] = 1.0
  for rank in (1, 141_000, 141_001, 199_997, 199_998, 199_999, 200_000):
    tau, _ = kernels.threshold((jnp.asarray(x),), None, jnp.array([rank], jnp.uint32))
    assert tau[0] == select.threshold(x, rank), rank


def test_threshold_keeps_the_old_one(native):
  layers = layers_of([100])
  tau, ties = kernels.threshold(layers, None, jnp.array([50], jnp.uint32),
                                old_tau=jnp.array([0.25]), refresh=0)
  assert tau[0] == 0.25
  assert int(ties[0]) == kernels.NO_QUOTA


@pytest.mark.parametrize('segment', [1, 64, 512])
def test_threshold_of_segments(native, segment):
  layers = layers_of([1000, 65, 64])
  pieces = [np.asarray(x)[i:i + segment] for x in layers for i in range(0, x.size, segment)]
  ranks = [max(1, p.size - 3) for p in pieces]
  tau, _ = kernels.threshold(layers, None, jnp.array(ranks, jnp.uint32), segment=segment)
  expected = [select.threshold(p, r) for p, r in zip(pieces, ranks, strict=True)]
  np.testing.assert_array_equal(tau, expected)


@pytest.mark.parametrize('dtype, codec', [
    *(('float32', codec) for codec in DTYPES), *((dtype, 'float32') for dtype in DTYPES[1:]),
    *slow(*itertools.product(DTYPES[1:], DTYPES[1:]))])
@pytest.mark.parametrize('with_residual', [False, True])
def test_pack(native, dtype, codec, with_residual):
  layers = layers_of([70_001, 9, 300], dtype)
  residual = layers_of([70_001, 9, 300], seed=1) if with_residual else None
  tau = jnp.array([2.0, 0.0, 1.0], jnp.float32)
  exact = sums(layers, residual)
  flat = np.concatenate(exact)
  mask = np.concatenate([select.dct_mask(x, t) for x, t in zip(exact, np.asarray(tau), strict=True)])
  everything = np.flatnonzero(mask)
  for limit in (0, 100, everything.size, 70_310):
    got = kernels.pack(layers, residual, tau, limit=limit, capacity=70_310, value_codec=codec)
    want = select.evenly(everything, limit)
    assert got.wanted == everything.size
    assert got.sent == want.size
    np.testing.assert_array_equal(got.indices[:want.size], want)
    np.testing.assert_array_equal(got.value[:want.size], flat[want])
    if not with_residual:
      assert got.residual is None
      continue
    left = flat.copy()
    left[want] -= oracle.cast(flat[want], codec)
    np.testing.assert_array_equal(np.concatenate([np.asarray(e) for e in got.residual]), left)


def test_pack_takes_ties_in_order(native):
  x = jnp.array([1.0, -2.0, 2.0, 0.0, 2.0, -3.0])
  got = kernels.pack((x,), (jnp.zeros(6),), jnp.array([2.0]), jnp.array([2], jnp.uint32),
                     limit=6, capacity=6)
  np.testing.assert_array_equal(got.indices[:3], [1, 2, 5])
  assert got.wanted == got.sent == 3
  np.testing.assert_array_equal(got.residual[0], [1, 0, 0, 0, 2, 0])


def test_pack_of_a_worker_that_is_not_live(native):
  x, e = jnp.array([jnp.nan, 2.0]), jnp.array([0.5, 0.25])
  got = kernels.pack((x,), (e,), jnp.array([0.0]), limit=2, live=0, capacity=2)
  assert got.wanted == got.sent == 0
  np.testing.assert_array_equal(got.residual[0], e)


def test_pack_sends_no_zeros(native):
  """A threshold of 0 is common after a ReLU; zeros stay home."""
  x = jnp.array([0.0, -0.0, 1.0, 1e-42])
  got = kernels.pack((x,), None, jnp.array([0.0]), limit=4, capacity=4)
  np.testing.assert_array_equal(got.indices[:1], [2])
  assert got.sent == 1


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_all_finite(native, dtype, bad):
  good = layers_of([70_000, 3], dtype)
  assert kernels.all_finite(good)[0] == 1
  for layer, at in ((0, 0), (0, 69_999), (1, 2)):
    broken = list(good)
    broken[layer] = broken[layer].at[at].set(bad)
    assert kernels.all_finite(tuple(broken))[0] == 0


def test_kernels_under_vmap(native):
  """Also with an unbatched threshold, as a simulation has it."""
  layers = jnp.stack([layers_of([500], seed=s)[0] for s in range(3)])
  residual = jnp.zeros((3, 500))
  tau = jnp.array([1.0])
  got = jax.vmap(lambda x, e: kernels.pack((x,), (e,), tau, limit=400, capacity=400))(
      layers, residual)
  for i in range(3):
    alone = kernels.pack((layers[i],), (residual[i],), tau, limit=400, capacity=400)
    assert got.sent[i] == alone.sent
    n = int(alone.sent)
    np.testing.assert_array_equal(got.indices[i, :n], alone.indices[:n])
    np.testing.assert_array_equal(got.residual[0][i], alone.residual[0])


@pytest.mark.parametrize('capacity', [8, 9])
def test_3lc_without_room_for_a_byte(native, capacity):
  """The shortest rung has a header, a scale and a length; all of the layer stays behind."""
  layers = layers_of([300])
  encode = jax.jit(functools.partial(kernels.three_lc_encode, capacity=capacity, multiplier=1.0))
  words, left = encode(layers, (jnp.zeros(300),), jnp.zeros(0, jnp.uint32), budget=8)
  intact, sums = jax.jit(lambda words: kernels.three_lc_sum(words, layers, ()))(words[None])
  assert intact[0] == 1 and words[1] == 8
  assert not sums[0].any()
  np.testing.assert_allclose(left[0], layers[0], rtol=0, atol=1e-6)


def test_pack_in_place_when_donated():
  """The residual's buffer is reused: compiled memory shows one copy, not two."""
  if not kernels.native_in_use():
    pytest.skip('the native kernels are not built here')
  n = 1 << 16
  step = jax.jit(lambda e, x: kernels.pack((x,), (e,), jnp.array([1.0]), limit=n, capacity=8)
                 .residual[0], donate_argnums=(0,))
  compiled = step.lower(jnp.zeros(n), jnp.ones(n)).compile()
  assert compiled.memory_analysis().alias_size_in_bytes == 4 * n
