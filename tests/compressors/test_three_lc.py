"""3LC against its NumPy oracle, goldens worked by hand from the paper, and the promises of its docstring."""

import functools

import chex
import hypothesis
import hypothesis.extra.numpy
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import slow
from reference import three_lc as oracle

import dct_jax
from dct_jax import kernels
from dct_jax.kernels import three_values, zero_runs

SIZES, NUM_DENSE = (1000, 33, 6, 1, 45_000), 5  # the last one has several parts
MULTIPLIERS = [1.0, 1.5, 1.75, 1.9]


@functools.partial(jax.jit, static_argnames=('s', 'zero_runs', 'native', 'capacity'))
def encode(layers, residual, dense, live, silent, budget, *, s, native, capacity, zero_runs=True):
  with kernels.use_native(native):
    return kernels.three_lc_encode(layers, residual, dense, live=live, silent=silent, budget=budget,
                                   capacity=capacity, multiplier=s, zero_runs=zero_runs)


@functools.partial(jax.jit, static_argnames=('sizes', 'num_dense', 'native'))
def total(words, *, sizes, num_dense, native):
  with kernels.use_native(native):
    shape = lambda n: jax.ShapeDtypeStruct((n,), jnp.float32)
    return kernels.three_lc_sum(words, [shape(n) for n in sizes], [shape(num_dense)])


def draw(sizes, seed=0, power=3):
  """Most entries are far below the largest, as those of gradients are."""
  rng = np.random.default_rng(seed)
  one = lambda n: (rng.standard_normal(n) ** power * 10.0 ** rng.uniform(-3, 3)).astype(np.float32)
  return tuple(one(n) for n in sizes)


def words_of(x):
  return np.asarray(x, np.float32).view(np.uint32)


def most_words(sizes, num_dense):
  return 6 + num_dense + 2 * len(sizes) + -(-sum(-(-n // 5) for n in sizes) // 4)


# Goldens. Five zeros are 81 + 27 + 9 + 3 + 1 = 121; 1, 0, 0, 0, 0 are 162 + 40 = 202; -1 ... are 40.
@pytest.mark.parametrize('values, code', [
    ([0, 0, 0, 0, 0], [121]),
    ([1, 0, 0, 0, 0], [202]),
    ([-1, 0, 0, 0, 0], [40]),
    ([1, 1, 1, 1, 1], [242]),
    ([-1, -1, -1, -1, -1], [0]),
    ([0, 0, 0, 0, 1], [122]),
    ([0] * 6, [117, 117]),  # parts (0, 0), (0, 0), (0, 0), pads, pads: 81 + 27 + 9
    # Two bytes of the parts (0, 1), (-1, 0), (0, 1), (0, 0), (1, -1).
    ([0, 1, -1, 0, 0, 1, 0, 0, 1, -1], [81 + 0 + 9 + 3 + 2, 162 + 27 + 18 + 3 + 0]),
    ([1], [162]),
])
def test_base_3_5_by_hand(values, code):
  q = np.array(values, np.int8)
  assert oracle.fold(q).tolist() == code
  assert three_values.fold(jnp.asarray(q)).tolist() == code
  assert three_values.unfold(jnp.array(code, jnp.uint8), q.size).tolist() == values


@pytest.mark.parametrize('code, short', [
    ([121], [121]),
    ([121, 121], [243]),
    ([121] * 3 + [7], [244, 7]),
    ([121] * 14, [255]),
    ([121] * 15, [255, 121]),
    ([121] * 16, [255, 243]),
    ([121] * 29 + [0], [255, 255, 121, 0]),
    ([5, 121, 6, 121, 121, 7], [5, 121, 6, 243, 7]),
    ([], []),
])
def test_zero_runs_by_hand(code, short):
  code = np.array(code, np.uint8)
  assert oracle.zero_run(code).tolist() == short
  symbols, length, stands_for = jax.jit(zero_runs.encode)(code)
  assert symbols[:length].tolist() == short
  if short:
    assert stands_for[length - 1] == code.size
  decoded, count = jax.jit(zero_runs.decode, static_argnums=2)(symbols, length, code.size)
  assert decoded.tolist() == code.tolist() and count == code.size


def test_the_papers_figure_by_hand(native):
  """A whole message: x = (0.3, 0.1, -0.4, 0, 0.2, -0.1, -0.1, 0.1, 0, 0), s = 1: m = 0.4, half is 0.2."""
  x = np.array([0.3, 0.1, -0.4, 0, 0.2, -0.1, -0.1, 0.1, 0, 0], np.float32)
  # 3-values 1 0 | -1 0 | 0 0 | 0 0 | 0 0: bytes 162 + 0 + 9 + 3 + 1 and 121.
  zero = np.zeros(10, np.float32)
  message, left = encode((x,), (zero,), words_of([]), 1, 0, 99, s=1.0, native=native, capacity=9)
  assert message[8:9].view(np.uint8)[:2].tolist() == [175, 121]
  assert message.tolist()[:5] == [0xDC720000 | 19, 9, 9, 0, 0]
  assert message[6:8].tolist() == [words_of(0.4), 2]
  want = np.array([-0.1, 0.1, 0, 0, 0.2, -0.1, -0.1, 0.1, 0, 0], np.float32)
  np.testing.assert_allclose(left[0], want, atol=1e-7)


@pytest.mark.parametrize('zero_runs', [True, False])
@pytest.mark.parametrize('s', [1.0, 1.75, *slow(1.5, 1.9)])
def test_messages_equal_the_oracle(native, s, zero_runs):
  layers, (dense,), residual = draw(SIZES), draw((NUM_DENSE,), 1), draw(SIZES, 2)
  exact = [x + e for x, e in zip(layers, residual, strict=True)]
  full = most_words(SIZES, NUM_DENSE)
  want, said = oracle.encode(exact, dense, s, zero_runs)
  got, left = encode(layers, residual, words_of(dense), 1, 0, full, s=s, native=native, capacity=full + 3,
                     zero_runs=zero_runs)
  np.testing.assert_array_equal(got, np.pad(want, (0, full + 3 - want.size)))
  for x, sent, e in zip(exact, said, left, strict=True):
    np.testing.assert_array_equal(e, x - sent)
  intact, sums = total(got[None], sizes=SIZES, num_dense=NUM_DENSE, native=native)
  assert intact[0] == 1
  np.testing.assert_array_equal(np.concatenate(sums), np.concatenate([*said, dense]))
  decoded = oracle.decode(np.asarray(got), SIZES, NUM_DENSE)
  np.testing.assert_array_equal(np.concatenate(decoded), np.concatenate(sums))


@pytest.mark.parametrize('room', [0, 1, 7, 40, 300, 1100, 2000])
def test_what_does_not_fit_stays_in_the_residual(native, room):
  layers, (dense,), residual = draw(SIZES), draw((NUM_DENSE,), 1), draw(SIZES, 2)
  exact = [x + e for x, e in zip(layers, residual, strict=True)]
  fixed = 6 + NUM_DENSE + 2 * len(SIZES)
  want, said = oracle.encode(exact, dense, 1.0, budget=fixed + room)
  full = most_words(SIZES, NUM_DENSE)
  got, left = encode(layers, residual, words_of(dense), 1, 0, fixed + room, s=1.0, native=native, capacity=full)
  np.testing.assert_array_equal(got, np.pad(want, (0, full - want.size)))
  for x, sent, e, m in zip(exact, said, left, got[6 + NUM_DENSE:], strict=False):
    m = np.asarray(m).view(np.float32)
    np.testing.assert_allclose(e, x - sent, rtol=0, atol=m * 2.0**-23)  # put back: x - m + m
  assert oracle.decode(np.asarray(got), SIZES, NUM_DENSE) is not None


@pytest.mark.parametrize('live, silent', [(0, 0), (1, 1)])
def test_nothing_is_said(native, live, silent):
  layers, residual = draw(SIZES), draw(SIZES, 2)
  full = most_words(SIZES, 0)
  got, left = encode(layers, residual, words_of([]), live, silent, full, s=1.0, native=native, capacity=full)
  sums = [x + e for x, e in zip(layers, residual, strict=True)]
  wanted, _ = oracle.encode(sums, np.zeros(0, np.float32), 1.0)
  assert got[2] == (wanted[2] if live else 6 + 2 * len(SIZES))  # layers that are not finite want nothing
  assert got[1] == 6 and got[4] == 1 - live and not got[6:].any()
  for x, e, after in zip(layers, residual, left, strict=True):
    np.testing.assert_array_equal(after, x + e if live else e)
  intact, sums = total(got[None], sizes=SIZES, num_dense=0, native=native)
  assert intact[0] == 1 and not np.concatenate(sums).any()


def test_sums_are_in_the_order_of_workers(native):
  full = most_words(SIZES, NUM_DENSE)
  messages = [np.pad(oracle.encode(draw(SIZES, w), draw((NUM_DENSE,), 9 + w)[0], 1.5)[0], (0, full))[:full]
              for w in range(4)]
  messages[2] = messages[2].copy()
  messages[2][20] ^= 1
  intact, sums = total(np.stack(messages), sizes=SIZES, num_dense=NUM_DENSE, native=native)
  assert intact.tolist() == [1, 1, 0, 1]
  want = np.zeros(sum(SIZES) + NUM_DENSE, np.float32)
  for w in (0, 1, 3):
    want += np.concatenate(oracle.decode(messages[w], SIZES, NUM_DENSE))
  np.testing.assert_array_equal(np.concatenate(sums), want)


def resealed(message):
  message[5] = oracle.checksum(message, int(message[1]))
  return message


@pytest.mark.parametrize('break_it', ['length', 'scale', 'too_many_codes', 'magic', 'sizes', 'short'])
def test_bad_messages_are_refused(native, break_it):
  """With a checksum that holds: a careless sender, or one with another model."""
  sizes, num_dense = (100, 45), 2
  message = oracle.encode(draw(sizes), np.ones(2, np.float32), 1.0)[0]
  if break_it == 'length':
    message[1] -= 1
  if break_it == 'scale':
    message[8] = words_of(np.nan)
  if break_it == 'too_many_codes':
    message[12:] = 0xFFFFFFFF
  if break_it == 'magic':
    message[0] ^= 1
  if break_it == 'sizes':
    message[10:12] = [0xFFFFFFF0, 31]  # add up to a small number in 32 bits
  if break_it == 'short':
    message[1] = 9
  message = resealed(message)
  assert oracle.decode(message, sizes, num_dense) is None
  intact, sums = total(message[None], sizes=sizes, num_dense=num_dense, native=native)
  assert intact[0] == 0 and not np.concatenate(sums).any()


floats = st.floats(-2.0**120, 2.0**120, width=32, allow_subnormal=True)
arrays = hypothesis.extra.numpy.arrays(np.float32, st.integers(1, 400), elements=floats)
tricky = st.sampled_from([
    np.zeros(77, np.float32), np.full(81, 3.0, np.float32), np.full(5, 1e-40, np.float32),
    np.array([3.4e38, -3.4e38, 1.0], np.float32), np.r_[np.zeros(700), 1, np.zeros(701)].astype(np.float32)])


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(x=arrays | tricky, s=st.sampled_from(MULTIPLIERS))
def test_round_trips_bounds_and_conservation(x, s):
  """|error| <= m / 2, what is said and what is left add up, and 1.6 bits an entry always suffice."""
  size = 400 * 5  # one compilation: the layer is padded with zeros
  x = np.pad(x, (0, size - x.size))
  full = most_words((size,), 0)
  zero = np.zeros(size, np.float32)
  both = [encode((x,), (zero,), words_of([]), 1, 0, full, s=s, native=n, capacity=full) for n in (True, False)]
  chex.assert_trees_all_equal(*both)
  message, (left,) = both[0]
  assert message[1] == message[2] <= full
  m = float(message[6:7].view(np.float32)[0])
  said, = oracle.decode(np.asarray(message), (size,), 0)[:1]
  flushed = np.where(np.abs(x) < np.finfo(np.float32).tiny, 0, x)
  assert np.abs(left).max() <= max(m / 2 * (1 + 1e-6), 1e-30)
  np.testing.assert_allclose(said.astype(np.float64) + left, flushed, rtol=1e-6, atol=m * 2.0**-23)


@pytest.mark.parametrize('density', [0.0, 1e-5, 1e-3, 0.1, 0.9])
def test_native_parts_are_the_serial_encoding(density):
  """Runs across the borders of parts: the parallel encoder's bytes are those of the serial one."""
  if not kernels.native_in_use():
    pytest.skip('needs the native kernels')
  rng = np.random.default_rng(0)
  size = 5 * (3 * 8192 + 17)
  x = np.where(rng.random(size) < density, 1.0, 0.0).astype(np.float32)
  x[0] = 1
  full = most_words((size,), 0)
  got, _ = encode((x,), None, words_of([]), 1, 0, full, s=1.0, native=True, capacity=full)
  want, _ = oracle.encode((x,), np.zeros(0, np.float32), 1.0)
  np.testing.assert_array_equal(got, np.pad(want, (0, full - want.size)))


@pytest.mark.parametrize('dtype', [jnp.bfloat16, jnp.float16])
def test_half_precision_gradients(native, dtype):
  x = jnp.asarray(draw((1000,))[0] / 100).astype(dtype)
  full = most_words((1000,), 0)
  got, _ = encode((x,), None, words_of([]), 1, 0, full, s=1.0, native=native, capacity=full)
  want, _ = oracle.encode((np.asarray(x.astype(jnp.float32)),), np.zeros(0, np.float32), 1.0)
  np.testing.assert_array_equal(got[:want.size], want)


def test_errors_are_made_up_for():
  """With error feedback the sum of what was said follows the sum of the gradients.

  A residual of at most E becomes one of at most s / 2 (G + E) where G is the largest gradient: it stays below
  s / (2 - s) G.
  """
  tx = dct_jax.compressed_mean(dct_jax.error_feedback(dct_jax.three_lc(1.75, dense_below=0)))
  rng = np.random.default_rng(0)
  gradient = rng.standard_normal(500).astype(np.float32)
  state, said = tx.init(jnp.zeros(500)), np.zeros(500)
  update = jax.jit(tx.update)
  for _ in range(50):
    out, state = update(jnp.asarray(gradient), state)
    said += out
  np.testing.assert_allclose(said / 50, gradient, atol=1.75 / 0.25 * np.abs(gradient).max() / 50)


@pytest.mark.parametrize('s', [0.99, 2.0, float('nan')])
def test_bad_multipliers_are_refused(s):
  with pytest.raises(ValueError, match='sparsity_multiplier must be'):
    dct_jax.three_lc(s)


def test_nan_never_enters_the_residual():
  tx = dct_jax.compressed_mean(dct_jax.error_feedback(dct_jax.three_lc(dense_below=0)))
  state = tx.init(jnp.zeros(20))
  out, state = tx.update(jnp.full(20, jnp.nan), state)
  assert not out.any() and not state.residual[0].any() and state.stats.nonfinite == 1
