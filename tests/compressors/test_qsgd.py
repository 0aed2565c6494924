"""QSGD against its NumPy oracle, and the promises of its docstring."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import slow
from reference import qsgd as oracle

import dct_jax
from dct_jax import kernels

BITS = [2, 4, 8]
SIZES, NUM_DENSE, BUCKET = (1000, 33, 64, 1), 5, 64


@functools.partial(jax.jit, static_argnames=('bits', 'bucket', 'native', 'capacity'))
def encode(layers, residual, dense, seed, live, silent, *, bits, bucket, native, capacity):
  with kernels.use_native(native):
    return kernels.qsgd_encode(layers, residual, dense, seed=seed, live=live, silent=silent,
                               capacity=capacity, bits=bits, bucket=bucket)


@functools.partial(jax.jit, static_argnames=('sizes', 'num_dense', 'bits', 'bucket', 'native'))
def total(words, *, sizes, num_dense, bits, bucket, native):
  with kernels.use_native(native):
    shape = lambda n: jax.ShapeDtypeStruct((n,), jnp.float32)
    return kernels.qsgd_sum(words, [shape(n) for n in sizes], [shape(num_dense)], bits=bits,
                            bucket=bucket)


def draw(sizes, seed=0):
  rng = np.random.default_rng(seed)
  return tuple((rng.standard_normal(n) * 10.0 ** rng.uniform(-3, 3)).astype(np.float32) for n in sizes)


def words_of(x):
  return np.asarray(x, np.float32).view(np.uint32)


@pytest.mark.parametrize('bucket', [1024, *slow(32, 64)])
@pytest.mark.parametrize('bits', BITS)
def test_messages_equal_the_oracle(native, bits, bucket):
  layers, (dense,) = draw(SIZES), draw((NUM_DENSE,), 1)
  residual = draw(SIZES, 2)
  full = oracle.message_words(SIZES, NUM_DENSE, bits, bucket)
  exact = [x + e for x, e in zip(layers, residual, strict=True)]
  for seed in (0, 1, 2**32 - 1):
    want = oracle.encode(exact, dense, seed, bits, bucket)
    got, left = encode(layers, residual, words_of(dense), np.uint32(seed), 1, 0, bits=bits, bucket=bucket,
                       native=native, capacity=full + 3)
    assert want.size == full
    np.testing.assert_array_equal(got, np.pad(want, (0, 3)))
    *sent, whole = oracle.decode(want, SIZES, NUM_DENSE, bits, bucket)
    intact, sums = total(got[None], sizes=SIZES, num_dense=NUM_DENSE, bits=bits, bucket=bucket, native=native)
    assert intact[0] == 1
    np.testing.assert_array_equal(np.concatenate(sums), np.concatenate([*sent, whole]))
    for x, s, e in zip(exact, sent, left, strict=True):
      np.testing.assert_array_equal(e, x - s)


@pytest.mark.parametrize(('live', 'silent'), [(0, 0), (0, 1), (1, 1)])
def test_an_empty_message_keeps_everything(native, live, silent):
  layers, residual = draw(SIZES), draw(SIZES, 2)
  want = oracle.encode(layers, np.zeros(NUM_DENSE), 0, 4, BUCKET, empty=True, nonfinite=not live)
  got, left = encode(layers, residual, np.zeros(NUM_DENSE, np.uint32), np.uint32(0), live, silent, bits=4,
                     bucket=BUCKET, native=native, capacity=200)
  np.testing.assert_array_equal(got, np.pad(want, (0, 194)))
  for x, e, kept in zip(layers, residual, left, strict=True):
    np.testing.assert_array_equal(kept, x + e if live else e)


@pytest.mark.parametrize('bits', BITS)
def test_messages_add_up_in_their_order(native, bits):
  messages, expected = [], [np.zeros(n, np.float32) for n in (*SIZES, NUM_DENSE)]
  for w in range(5):
    message = oracle.encode(draw(SIZES, w), draw((NUM_DENSE,), 9 + w)[0], w, bits, BUCKET)
    if w == 3:
      message[20] ^= 1  # refused
    else:
      parts = oracle.decode(message, SIZES, NUM_DENSE, bits, BUCKET)
      expected = [t + p for t, p in zip(expected, parts, strict=True)]
    messages.append(message)
  intact, sums = total(np.stack(messages), sizes=SIZES, num_dense=NUM_DENSE, bits=bits, bucket=BUCKET,
                       native=native)
  np.testing.assert_array_equal(intact, [1, 1, 1, 0, 1])
  np.testing.assert_array_equal(np.concatenate(sums), np.concatenate(expected))


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16'])
def test_extreme_buckets(native, dtype):
  """Zeros, a bucket too small to matter, denormals, and the ends of the range: all finite."""
  rows = [np.zeros(32), np.full(32, -0.0), np.full(32, 9e-31), np.full(32, 1e-40), np.full(32, -1.1e-30),
          np.linspace(-1e30, 1e30, 32), np.where(np.arange(32) % 2, 3.4e38, -3.4e38), np.arange(32.0) - 16]
  largest = float(jnp.finfo(dtype).max)
  x = jnp.asarray(np.clip(np.concatenate(rows), -largest, largest), jnp.float32).astype(dtype)
  exact = np.asarray(x.astype(jnp.float32))
  for bits in BITS:
    full = oracle.message_words((256,), 0, bits, 32)
    got, left = encode((x,), (jnp.zeros(256),), np.zeros(0, np.uint32), np.uint32(7), 1, 0, bits=bits,
                       bucket=32, native=native, capacity=full)
    np.testing.assert_array_equal(got, oracle.encode([exact], [], 7, bits, 32))
    sent = oracle.decode(np.asarray(got), (256,), 0, bits, 32)[0]
    assert not sent[:128].any()
    assert np.isfinite(sent).all() and np.isfinite(left[0]).all()


@pytest.mark.parametrize('bits', BITS)
def test_error_bound(native, bits):
  """No entry is off by more than a level."""
  (x,) = draw((1000,))
  got, _ = encode((x,), None, np.zeros(0, np.uint32), np.uint32(3), 1, 0, bits=bits, bucket=BUCKET,
                  native=native, capacity=oracle.message_words((1000,), 0, bits, BUCKET))
  sent = oracle.decode(np.asarray(got), (1000,), 0, bits, BUCKET)[0]
  for at in range(0, 1000, BUCKET):
    part = x[at:at + BUCKET]
    level = np.abs(part).max() / oracle.levels(bits)
    assert np.abs(part - sent[at:at + BUCKET]).max() <= level * (1 + 1e-6)


@pytest.mark.parametrize('bits', BITS)
def test_unbiased_over_steps_and_workers(bits):
  """The mean of many messages is the gradient: through the compressor, with its own seeds."""
  n, runs = 96, 4000
  x = jnp.asarray(draw((n,), 5)[0])
  c = dct_jax.qsgd(bits, 32, dense_below=0)
  room = dct_jax.whole_room(c, (x,))

  @jax.jit
  def send(i):
    state = c.init((x,))._replace(step=i // 8)
    message = c.compress((x,), None, state, room._replace(worker=(i % 8).astype(jnp.uint32))).message
    return c.decompress(message[None], (x,), None).layers[0]

  with kernels.use_native(False):
    sent = np.asarray(jax.vmap(send)(jnp.arange(runs)), np.float64)
  level = np.abs(np.asarray(x)).reshape(-1, 32).max(1).repeat(32) / oracle.levels(bits)
  # A coin between two levels has a deviation of at most half a level: five of the mean's.
  assert (np.abs(sent.mean(0) - np.asarray(x)) <= level * (5 * 0.5 / np.sqrt(runs) + 2.0**-15)).all()
  centred = (sent - np.asarray(x)) / level
  neighbours = np.abs(np.mean(centred[:, 1:] * centred[:, :-1], axis=0))
  between_runs = np.abs(np.mean(centred[1:] * centred[:-1], axis=0))
  assert max(neighbours.max(), between_runs.max()) < 5 * 0.25 / np.sqrt(runs)


def test_workers_and_steps_round_differently():
  x = jnp.full(4096, 0.35).at[::1024].set(1.0)  # between levels, in every bucket
  c = dct_jax.qsgd(4)
  room, state = dct_jax.whole_room(c, (x,)), c.init((x,))
  send = lambda state, worker: c.compress((x,), None, state, room._replace(worker=worker))
  first = send(state, 0)
  np.testing.assert_array_equal(first.message, send(state, 0).message)
  reseeded = dct_jax.qsgd(4, seed=1).compress((x,), None, state, room)
  for other in (send(state, 1), send(first.state, 0), reseeded):
    assert (np.asarray(other.message) != np.asarray(first.message)).mean() > 0.9


@pytest.mark.parametrize('bits', BITS)
def test_size_is_exact(bits):
  layers = tuple(jnp.zeros(n) for n in (5000, 100, 1025))
  size = dct_jax.qsgd(bits).size(layers)
  buckets = 5 + 2
  words = 6 + 100 + buckets + -(-5000 * bits // 32) + -(-1025 * bits // 32)
  assert size[:4] == (words, words, words, 6125)


def test_moved_bytes_are_the_message_alone():
  """A message of fixed length needs no reserve on the ladder, and no rung but its own."""
  n, workers = 100_000, 4
  tx = dct_jax.compressed_mean(dct_jax.qsgd(4), axis_name='data')
  update, state = dct_jax.simulate(tx, (jnp.zeros(n),), workers)
  grads = jnp.asarray(np.random.default_rng(0).standard_normal((workers, n)), jnp.float32)
  (mean,), state = update((grads,), state, None)
  receipt = state.stats.receipt
  assert receipt.encoded_bytes == receipt.moved_bytes == 4 * (6 + 98 + n // 8)
  assert receipt.overflow_bytes == 0
  assert receipt.density == 1
  assert np.abs(np.asarray(mean) - np.asarray(grads).mean(0)).max() < 5 / 7


@pytest.mark.parametrize(('arguments', 'message'), [
    ({'bits': 3}, 'bits=3'), ({'bucket': 40}, 'bucket=40'), ({'bucket': 0}, 'bucket=0'),
    ({'dense_below': -1}, 'dense_below=-1')])
def test_bad_arguments(arguments, message):
  with pytest.raises(ValueError, match=message):
    dct_jax.qsgd(**arguments)


def mutate(words, rng):
  """One broken message; two of three have their checksum made good again."""
  words = words.copy()
  kind, length = rng.integers(6), int(words[1])
  if kind == 0:
    words[rng.integers(length)] ^= np.uint32(1) << np.uint32(rng.integers(32))
  elif kind == 1:
    words[rng.integers(6)] = rng.integers(2**32, dtype=np.uint32)
  elif kind == 2:
    words[1] = rng.choice([0, 5, 6, 7, length - 1, length, length + 1, 2**32 - 1])
  elif kind == 3:
    words[6:] = rng.integers(2**32, size=words.size - 6, dtype=np.uint32)
  elif kind == 4:
    words[11 + rng.integers(4)] = rng.choice([0x7F800000, 0x7FC00000, 0x80000000, 0x7F000000, 0x7F000001])
  else:
    words[0] = 0xDC720000 | int(rng.integers(2)) << 8 | int(rng.choice([0, 16, 17, 18]))
  if rng.integers(3) and int(words[1]) <= words.size:
    words[5] = oracle.checksum(words, int(words[1]))
  return words


@pytest.mark.parametrize('capacity', [0, 3, -20], ids=['exact', 'longer', 'shorter'])
def test_broken_messages(native, capacity):
  """Refused, or read as the oracle reads them; a buffer that is too short is no way out either."""
  rng, sizes = np.random.default_rng(0), (300, 40)
  original = oracle.encode(draw(sizes), draw((NUM_DENSE,), 1)[0], 0, 4, BUCKET)
  original = np.pad(original, (0, max(capacity, 0)))[:original.size + capacity]
  read = jax.jit(lambda batch: jax.lax.map(
      lambda m: total(m[None], sizes=sizes, num_dense=NUM_DENSE, bits=4, bucket=BUCKET, native=native), batch))
  accepted = 0
  batch = np.stack([mutate(original, rng) if capacity >= 0 else original for _ in range(1000)])
  if capacity < 0:
    batch[1:, 1] = rng.integers(2**32, size=999, dtype=np.uint32)
    batch[1:500, 1] = 6
    for m in batch[1:500]:
      m[5] = oracle.checksum(m, 6)
  intact, sums = read(batch)
  for i, message in enumerate(batch):
    want = oracle.decode(message, sizes, NUM_DENSE, 4, BUCKET)
    assert intact[i, 0] == (want is not None), i
    got = np.concatenate([np.asarray(s[i]) for s in sums])
    if want is None:
      assert not got.any()
    else:
      np.testing.assert_array_equal(got, np.concatenate(want))
      accepted += 1
  assert 0 < accepted < 900
