"""What does not fit: every layer is cut alike, and nothing is where a length is agreed upon."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from marks import slow
from reference import select

import dct_jax
from dct_jax.kernels import cuts

SIZES = (4000, 250, 2000, 3000)
SELECTIONS = {
    'dct_threshold': lambda: dct_jax.dct_threshold(0.5, dense_below=0),
    'top_k': lambda: dct_jax.top_k(0.5, dense_below=0),
    'bucket_top_k': lambda: dct_jax.bucket_top_k(16, 32, dense_below=0),
    'block_top_k': lambda: dct_jax.block_top_k(0.5, 2, dense_below=0),
    'random_k': lambda: dct_jax.random_k(0.5, dense_below=0),
    'sampled_top_k': lambda: dct_jax.sampled_top_k(0.5, dense_below=0),
    'three_lc': lambda: dct_jax.three_lc(1.0, dense_below=0),
}


@pytest.mark.parametrize(('keep', 'have'), [
    (0, 5), (1, 5), (4, 5), (5, 5), (9, 5), (0, 0), (3, 1000), (999, 1000), (2**29 + 7, 2**30), (1, 2**30)])
def test_a_cut_keeps_exactly_so_many_evenly(keep, have):
  cut = jax.jit(cuts.even)(np.uint32(keep), np.uint32(have))
  assert int(cut.at(jnp.uint32(have))) == min(keep, have)
  places = np.unique(np.linspace(0, have, 997).astype(np.uint32))
  even = [min(int(n) * keep // max(have, 1), int(n)) for n in places]  # rounding may put one more there
  assert set((np.asarray(cut.at(places), np.int64) - even).tolist()) <= {0, 1}
  if have <= 1000:
    np.testing.assert_array_equal(np.flatnonzero(np.asarray(cut.keeps(jnp.arange(have, dtype=jnp.uint32)))),
                                  select.evenly(np.arange(have), keep))


@pytest.mark.parametrize(('name', 'native'), [
    *itertools.product(SELECTIONS, [True]), *itertools.product(('top_k', 'three_lc'), [False]),
    *slow(*((name, False) for name in SELECTIONS if name not in ('top_k', 'three_lc')))], indirect=['native'])
def test_every_layer_sends_its_share(name, native):
  """Room for a fifth of what is selected: each layer sends a fifth of what it would have."""
  compressor = SELECTIONS[name]()
  rng = np.random.default_rng(0)
  layers = tuple(jnp.asarray(rng.standard_normal(n), jnp.float32) for n in SIZES)
  zero = tuple(jnp.zeros(n) for n in SIZES)
  largest = compressor.size(layers).largest

  @jax.jit
  def one(words):
    packed = compressor.compress(layers, zero, compressor.init(layers), dct_jax.Room(words, 1, largest))
    sent = compressor.decompress(packed.message[None], layers, compressor.init(layers)).layers
    return sent, packed.residual, packed.message[1]

  everything, _, length = one(np.uint32(largest))
  sent, residual, short = one(np.uint32(0.2 * int(length)))
  assert short <= 0.2 * length
  shares = np.array([(np.asarray(s) != 0).sum() / (np.asarray(e) != 0).sum()
                     for s, e in zip(sent, everything, strict=True)])
  near = 0.06 if name == 'three_lc' else 0.03  # bytes of five entries
  assert shares.min() > 0.05 and shares.max() < shares.min() + near, shares
  for x, s, e in zip(layers, sent, residual, strict=True):
    np.testing.assert_allclose(s + e, x, rtol=1e-6, atol=1e-6)
  if name != 'three_lc':  # of a layer as well no part has to wait for all others
    halves = [(np.asarray(s)[half] != 0).sum() / (np.asarray(e)[half] != 0).sum()
              for s, e in zip(sent, everything, strict=True) if s.size > 1000
              for half in (slice(None, s.size // 2), slice(s.size // 2, None))]
    assert max(halves) - min(halves) < 0.03, halves


def gradients(workers, steps, sizes, power=1):
  rng = np.random.default_rng(0)
  return [tuple(jnp.asarray(rng.standard_normal((workers, n)) ** power, jnp.float32) for n in sizes)
          for _ in range(steps)]


@pytest.mark.parametrize('agree', [True, *slow(False)])
def test_who_agrees_on_a_length_overflows_never(agree):
  """And is Algorithm 1 to the letter: what passes the threshold is sent, all of it and nothing else."""
  workers, sizes = 3, (800, 300)
  collective = dct_jax.all_gather(5, agree=agree, dense_fallback=None if agree else False)
  tx = dct_jax.dct_dp(0.99, 1000, 'data', dense_below=0, collective=collective)
  update, state = dct_jax.simulate(tx, tuple(jnp.zeros(n) for n in sizes), workers)
  residual, tau, overflow = [np.zeros((workers, n), np.float32) for n in sizes], None, []
  for grads in gradients(workers, 5, sizes):
    mean, state = update(grads, state, None)
    receipt = state.stats.receipt
    overflow.append(int(receipt.overflow_bytes))
    assert receipt.moved_bytes >= receipt.encoded_bytes
    if not agree:
      continue
    sums = [e + np.asarray(g) for e, g in zip(residual, grads, strict=True)]
    if tau is None:
      tau = [np.array([select.threshold(x, select.rank(x.size, 0.99)) for x in s])[:, None] for s in sums]
    sent = [np.where(select.dct_mask(s, t), s, 0) for s, t in zip(sums, tau, strict=True)]
    residual = [s - x for s, x in zip(sums, sent, strict=True)]
    for x, m, e, r in zip(sent, mean, residual, state.residual, strict=True):
      np.testing.assert_allclose(m, x.mean(0), rtol=1e-5, atol=1e-6)
      np.testing.assert_array_equal(r, e)
  assert (max(overflow) == 0) == agree


@pytest.mark.parametrize('agree', [True, *slow(False)])
def test_push_and_pull_agree_in_both_directions(agree):
  workers, sizes = 3, (400, 300)
  compressor = dct_jax.error_feedback(dct_jax.three_lc(1.75, dense_below=0))
  tx = dct_jax.push_pull(compressor, compressor, optax.sgd(0.1), 'data', workers=workers, rungs=5, agree=agree)
  params = tuple(jnp.zeros(n) for n in sizes)
  update, state = dct_jax.simulate(tx, params, workers)
  over, total = [], [np.zeros(n) for n in sizes]
  for grads in gradients(workers, 8, sizes, power=3):
    updates, state = update(grads, state, params)
    over.append(int(state.push_receipt.overflow_bytes) + int(state.pull_receipt.overflow_bytes))
    for receipt in (state.push_receipt, state.pull_receipt):
      assert receipt.moved_bytes >= receipt.encoded_bytes
    for t, u in zip(total, updates, strict=True):
      t += np.asarray(u)
  assert (sum(over) == 0) == agree
  given = [-0.1 * sum(np.asarray(x, np.float64).mean(0) for x in layer)
           for layer in zip(*gradients(workers, 8, sizes, power=3), strict=True)]
  for t, g, push, pull in zip(total, given, state.push_residual, state.pull_residual, strict=True):
    waits = -0.1 * np.asarray(push, np.float64).mean(0).reshape(-1)[:g.size] + np.asarray(pull).reshape(-1)[:g.size]
    np.testing.assert_allclose(t + waits, g, atol=1e-4)


def test_agreeing_and_the_dense_exchange_are_refused_together():
  with pytest.raises(ValueError, match='dense_fallback=True'):
    dct_jax.all_gather(agree=True, dense_fallback=True)
