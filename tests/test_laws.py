"""Every compressor x collective x worker count x dtype, held to the laws of the design."""

import math
import re

import jax
import jax.numpy as jnp
import laws
import numpy as np
import pytest
from reference import votes

import dct_jax
from dct_jax import contract, kernels
from dct_jax.collectives import all_gather


def conservation_cases():
  """All codecs of float32 layers, all dtypes without a codec; both together are quick for one of each kind."""
  halves = ('float16', 'bfloat16')
  for name in laws.ALONE:
    for codec in ('float32', *halves) if name in laws.WITH_CODECS else ('float32',):
      for dtype in ('float32', *halves):
        both = codec in halves and dtype in halves and name not in laws.CORE
        yield pytest.param(name, dtype, codec, marks=[pytest.mark.slow] if both else [])


@pytest.mark.parametrize(('name', 'dtype', 'value_codec'), conservation_cases())
def test_conservation(name, dtype, value_codec):
  """Law 1: decoded message + new residual = layers + old residual, in tight room too.

  Bit for bit, but for quantizers whose values are no part of what they stand for.
  """
  compressor = laws.make(name, value_codec)
  layers = tuple(x[0].reshape(x[0].shape or (1,)) for x in laws.gradients(1, 1, dtype)[0])
  residual = tuple(
      0.1 * x[0].reshape(x[0].shape or (1,)).astype(jnp.float32)
      for x in laws.gradients(1, 1, seed=1)[0])
  size = compressor.size(layers)
  state = compressor.init(layers)
  compress = jax.jit(
      lambda words, live: (compressor.compress(
          layers, residual, state, dct_jax.Room(words, live, size.largest))))
  expected = [np.asarray(x.astype(jnp.float32) + e) for x, e in zip(layers, residual, strict=True)]
  for words in (size.largest, size.nominal, max(size.smallest, size.nominal // 2), 0):
    packed = compress(jnp.uint32(words), jnp.uint32(1))
    sent = laws.decoded(compressor, packed.message, layers, state)
    for s, e, x in zip(sent, packed.residual, expected, strict=True):
      rounding = 2.0**-22 * np.abs(x).max() if compressor.conserves == contract.ROUNDING and words else 0
      np.testing.assert_allclose(np.asarray(s + e), x, rtol=0, atol=rounding)
    if compressor.linear is None:
      assert int(packed.message[1]) <= max(words, 6)
    if words == 0:
      assert not any(np.asarray(s).any() for s in sent)
  packed = compress(jnp.uint32(size.largest), jnp.uint32(0))
  for e, old in zip(packed.residual, residual, strict=True):
    np.testing.assert_array_equal(e, old)


@pytest.mark.parametrize(('name', 'collective', 'workers'), laws.cases(2, 3, 4, 5, 8))
def test_agreement_and_truth(name, collective, workers):
  """Laws 2, 3 and 5: replicas are equal (vmap proves it), the sum is what was sent, over three steps.

  Nothing is lost between steps: the updates of all steps plus what is left equals all gradients.
  """
  step, state = laws.simulated(name, collective, workers)
  total = [np.zeros(s, np.float64) for s in laws.SHAPES]
  given = [np.zeros(s, np.float64) for s in laws.SHAPES]
  amounts = laws.make(name).conserves != contract.NOTHING
  for grads in laws.gradients(workers, 3):
    updates, state = step(grads, state)
    for t, u in zip(total, updates, strict=True):
      t += np.asarray(u, np.float64)
    for t, g in zip(given, grads, strict=True):
      t += np.asarray(g, np.float64).mean(0) if amounts else votes.majority(g)
  for t, g, e in zip(total, given, state.residual if amounts else total, strict=True):
    left = np.asarray(e, np.float64).mean(0).reshape(g.shape) if amounts else 0
    np.testing.assert_allclose(t + left, g, rtol=1e-5, atol=1e-4)
  assert step._cache_size() == 1


@pytest.mark.parametrize(('name', 'collective', 'workers'), laws.cases(2, 3, 5, 8))
def test_shard_map_equals_vmap(name, collective, workers):
  """Law 5: real devices and simulated workers give the same bits (a dense psum may differ in order)."""
  step, vmapped = laws.simulated(name, collective, workers)
  real, sharded = laws.on_devices(name, collective, workers)
  exact = collective in laws.BITWISE
  for g in laws.gradients(workers, 2):
    a, vmapped = step(g, vmapped)
    b, sharded = real(g, sharded)
    jax.block_until_ready(b)
    for x, y in zip(a, b, strict=True):
      if exact:
        np.testing.assert_array_equal(x, y)
      else:
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
  if exact:
    for x, y in zip(vmapped.residual, sharded.residual, strict=True):
      np.testing.assert_array_equal(np.asarray(x).reshape(y.shape), y)
  assert real._cache_size() == 1


@pytest.mark.parametrize(('name', 'collective'), [
    ('dct', 'all_gather'), ('identity', 'psum'), ('block_top_k', 'union_sum'), ('block_top_k', 's2')])
def test_pmap_equals_vmap(name, collective):
  tx = laws.transform(name, collective)
  step, state = laws.simulated(name, collective, 4)
  axes = dct_jax.vmap_axes(dct_jax.state_specs(tx, laws.PARAMS, dct_jax.make_mesh(1)))
  grads = laws.gradients(4, 1)[0]
  mapped = jax.pmap(tx.update, in_axes=(0, axes), out_axes=(None, axes), axis_name='data',
                    devices=jax.devices()[:4])
  updates, _ = mapped(grads, state)
  for x, y in zip(step(grads, state)[0], updates, strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(('name', 'collective'), [
    pytest.param(*pair, marks=[] if pair[0] in laws.CORE else [pytest.mark.slow]) for pair in laws.PAIRS])
def test_jit_equals_eager(name, collective):
  tx = laws.transform(name, collective, axis_name=None)
  grads = tuple(x[0] for x in laws.gradients(1, 1)[0])
  eager, _ = tx.update(grads, tx.init(laws.PARAMS))
  jitted, _ = jax.jit(tx.update)(grads, tx.init(laws.PARAMS))
  rounding = 1e-5 if laws.make(name).conserves == contract.TOGETHER else 0  # products of matrices
  for x, y in zip(eager, jitted, strict=True):
    np.testing.assert_allclose(x, y, rtol=rounding, atol=rounding)


@pytest.mark.parametrize('name', [n for n, c in laws.PAIRS if c == 'all_gather' and n not in laws.PURE])
def test_twin_equals_native(name):
  """The pure-JAX twins give the same messages, residuals and sums."""
  if not kernels.native_in_use():
    pytest.skip('the native kernels are not built here')
  tx = laws.transform(name, 'all_gather', axis_name=None, value_codec='float16')
  results = []
  for native in (True, False):
    with kernels.use_native(native):
      state, update = tx.init(laws.PARAMS), jax.jit(tx.update)
      for grads in laws.gradients(1, 2):
        updates, state = update(tuple(x[0] for x in grads), state)
      results.append(jax.tree.leaves((updates, state)))
  for x, y in zip(*results, strict=True):
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(('name', 'collective', 'workers'), [laws.one_place(*pair, 3) for pair in laws.PAIRS])
def test_honest_bytes(name, collective, workers):
  """Law 4: accounted bytes are the encoded length; what moves is unsigned words in compiled HLO."""
  step, state = laws.simulated(name, collective, workers)
  grads = laws.gradients(workers, 1)[0]
  receipt = step(grads, state)[1].stats.receipt
  assert 0 < receipt.encoded_bytes <= receipt.moved_bytes
  real, sharded = laws.on_devices(name, collective, workers)
  text = real.lower(grads, sharded).compile().as_text()
  if collective == 'psum':  # every round's words, and nothing else
    sums = [line.split('all-reduce')[0] for line in text.splitlines() if ' all-reduce(' in line]
    moved = [math.prod(int(n) for n in shape.split(',') if n) for line in sums
             for shape in re.findall(r'[uf]32\[([\d,]*)\]', line.split('=', 1)[1])]
    assert 4 * sum(moved) == receipt.moved_bytes, sums
  gathers = [line for line in text.splitlines() if 'all-gather(' in line or 'all-gather-start(' in line]
  if collective.startswith('all_gather'):
    assert gathers, 'nothing is gathered'
    assert all('u32[' in line.split('all-gather')[0] for line in gathers)
    moved = int(receipt.moved_bytes) // 4
    if collective == 'all_gather':
      assert any(f'u32[{workers},{moved}]' in g or f'u32[{workers * moved}]' in g for g in gathers), (
          moved, gathers)


def test_overflow_returns_to_the_residual_and_the_ladder_follows():
  """A step that wants more than its rung is capped, counted, and has a larger rung next time."""
  n, workers = 4096, 2
  tx = dct_jax.compressed_mean(
      dct_jax.error_feedback(dct_jax.dct_threshold(0.99, 1000, dense_below=0)), all_gather(),
      'data')
  params = (jnp.zeros(n),)
  step, state = laws.vmap_runner(tx, params, workers)
  rng = np.random.default_rng(0)
  first = jnp.asarray(rng.standard_normal((workers, n)), jnp.float32)
  _, state = step((first,), state)
  usual = int(state.stats.receipt.moved_bytes)
  assert int(state.stats.receipt.overflow_bytes) == 0
  before = np.asarray(state.residual[0])
  updates, state = step((first * 3,), state)  # the threshold is stale: far more passes it
  assert int(state.stats.receipt.moved_bytes) == usual
  overflow = int(state.stats.receipt.overflow_bytes)
  assert overflow > 0
  left = np.asarray(state.residual[0])
  np.testing.assert_allclose(
      np.asarray(updates[0]) + left.mean(0), (before + np.asarray(first * 3)).mean(0), atol=1e-5)
  _, state = step((first,), state)
  assert int(state.stats.receipt.moved_bytes) > 10 * usual
  assert int(state.stats.receipt.overflow_bytes) < overflow / 10


def test_everything_selected_ends_in_the_dense_exchange():
  """Beyond parity the dense rung sums exactly and clears every residual."""
  n, workers = 2048, 4
  tx = dct_jax.dct_dp(1e-3, 1000, 'data', dense_below=0)
  step, state = laws.vmap_runner(tx, (jnp.zeros(n),), workers)
  rng = np.random.default_rng(0)
  given = np.zeros(n)
  total = np.zeros(n)
  for _ in range(3):
    g = rng.standard_normal((workers, n)).astype(np.float32)
    updates, state = step((jnp.asarray(g),), state)
    given += g.mean(0)
    total += np.asarray(updates[0])
  assert not np.asarray(state.residual[0]).any()
  assert float(state.stats.receipt.density) == 1.0
  np.testing.assert_allclose(total, given, atol=1e-5)


def test_rung_comes_down_again():
  n, workers = 4096, 2
  tx = dct_jax.dct_dp(0.99, 1, 'data', dense_below=0)
  step, state = laws.vmap_runner(tx, (jnp.zeros(n),), workers)
  state = state._replace(collective=state.collective._replace(wanted=jnp.uint32(10**6)))
  g = jnp.asarray(np.random.default_rng(0).standard_normal((workers, n)), jnp.float32)
  moved = []
  for _ in range(3):
    _, state = step((g,), state)
    moved.append(int(state.stats.receipt.moved_bytes))
  assert moved[0] > 4 * n  # dense
  assert moved[1] < n
  assert all(m < n for m in moved[1:])


@pytest.mark.parametrize('name', [
    pytest.param(n, marks=[] if n in laws.CORE else [pytest.mark.slow]) for n, c in laws.PAIRS if c == 'all_gather'])
def test_sums_beyond_float32_stay_finite(name, native):
  """Finite gradients may add up to infinity; a residual never holds one."""
  tx = laws.transform(name, 'all_gather', axis_name=None, value_codec='float16')
  state, update = tx.init((jnp.zeros(300),)), jax.jit(tx.update)
  for _ in range(3):
    _, state = update((jnp.full(300, 3e38).at[::2].multiply(-1),), state)
    assert np.isfinite(np.asarray(state.residual[0])).all()
