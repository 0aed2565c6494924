"""The compressors that 3LC is compared with: their NumPy oracles, and the promises of their docstrings."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import slow
from reference import rivals as oracle
from reference import wire

import dct_jax

QUANTIZERS = {'int8': dct_jax.int8, 'ternary': dct_jax.stochastic_ternary, 'one_bit': dct_jax.one_bit}
DENSE = 2


@functools.cache  # one compressor, so that tests share what is compiled for it
def make(name, **kwargs):
  return QUANTIZERS[name](dense_below=0, **kwargs)


def draw(sizes, seed=0):
  rng = np.random.default_rng(seed)
  return tuple((rng.standard_normal(n) * 10.0 ** rng.uniform(-3, 3)).astype(np.float32) for n in sizes)


@functools.cache
def compress(compressor):
  return jax.jit(lambda layers, residual, state, room: compressor.compress(
      layers, residual, state, room._replace(capacity=compressor.size(layers).largest + 3)))


@functools.cache
def read(compressor):
  return jax.jit(lambda message, layers: compressor.decompress(message[None], layers, None))


def send(compressor, layers, residual=None, step=0, worker=0, live=1, words=None):
  """Compresses, in a buffer that is a little longer than the message."""
  state = compressor.init(layers)
  if step:
    state = state._replace(step=jnp.int32(step))
  words = compressor.size(layers).largest if words is None else words
  room = dct_jax.Room(jnp.uint32(words), jnp.uint32(live), 0, jnp.uint32(worker))
  return compress(compressor)(layers, residual, state, room)


def said(compressor, message, layers):
  """What a single message says."""
  unpacked = read(compressor)(message, layers)
  assert unpacked.intact[0] == 1
  return [np.asarray(x) for x in unpacked.layers]


class Mixed:
  """Layers of odd sizes, and among them two that travel whole."""

  def __init__(self, name):
    self.name = name
    self.compressor = QUANTIZERS[name](dense_below=8)
    self.sizes, self.num_dense = (1000, 33, 64), 6

  def layers(self, seed=0):
    big, small = draw(self.sizes, seed), draw((5, 1), 100 + seed)
    return (big[0], big[1], small[0], big[2], small[1])

  def split(self, layers):
    return [layers[0], layers[1], layers[3]], np.concatenate([layers[2], layers[4]])

  def flat(self, layers):
    many, dense = self.split(layers)
    return np.concatenate([*many, dense])


@pytest.fixture(params=QUANTIZERS)
def mixed(request):
  return Mixed(request.param)


@pytest.mark.parametrize(('step', 'worker'), [(0, 0), (7, 3)])
def test_messages_equal_the_oracle(mixed, step, worker):
  layers, residual = mixed.layers(), mixed.layers(1)
  exact = tuple(x + e for x, e in zip(layers, residual, strict=True))
  step = step if mixed.name == 'ternary' else 0  # the others have no state
  want = oracle.encode(mixed.name, *mixed.split(exact), oracle.seed_of(oracle.ROUND, 0, 0, step, worker))
  packed = send(mixed.compressor, layers, residual, step, worker)
  assert mixed.compressor.size(layers)[:4] == (want.size, want.size, want.size, 1103)
  np.testing.assert_array_equal(packed.message, np.pad(want, (0, 3)))
  parts = oracle.decode(mixed.name, want, mixed.sizes, mixed.num_dense)
  got = said(mixed.compressor, packed.message, layers)
  np.testing.assert_array_equal(mixed.flat(got), np.concatenate(parts))
  for x, s, e in zip(exact, got, packed.residual, strict=True):
    np.testing.assert_array_equal(e, x - s)
  alone = send(mixed.compressor, exact, None, step, worker)  # without a residual: the same, and none is kept
  np.testing.assert_array_equal(alone.message, packed.message)
  assert alone.residual is None


def test_messages_add_up_in_their_order(mixed):
  messages, layers = [], mixed.layers()
  expected = [np.zeros(n, np.float32) for n in (*mixed.sizes, mixed.num_dense)]
  for w in range(5):
    message = oracle.encode(mixed.name, *mixed.split(mixed.layers(w)), w)
    if w == 3:
      message[20] ^= 1  # refused
    else:
      parts = oracle.decode(mixed.name, message, mixed.sizes, mixed.num_dense)
      expected = [t + p for t, p in zip(expected, parts, strict=True)]
    messages.append(message)
  messages.append(oracle.encode(mixed.name, *mixed.split(layers), empty=True))
  messages[-1] = np.pad(messages[-1], (0, messages[0].size - 6))
  unpacked = jax.jit(lambda m: mixed.compressor.decompress(m, layers, None))(np.stack(messages))
  np.testing.assert_array_equal(unpacked.intact, [1, 1, 1, 0, 1, 1])
  np.testing.assert_array_equal(unpacked.entries, [1103, 1103, 1103, 0, 1103, 0])
  np.testing.assert_array_equal(mixed.flat([np.asarray(x) for x in unpacked.layers]), np.concatenate(expected))


@pytest.mark.parametrize('live', [0, 1])
def test_an_empty_message_keeps_everything(mixed, live):
  layers, residual = mixed.layers(), mixed.layers(1)
  want = oracle.encode(mixed.name, *mixed.split(layers), empty=True, nonfinite=not live)
  packed = send(mixed.compressor, layers, residual, live=live, words=0 if live else None)
  np.testing.assert_array_equal(packed.message[:6], want)
  assert not np.asarray(packed.message[6:]).any()
  for x, e, kept in zip(layers, residual, packed.residual, strict=True):
    np.testing.assert_array_equal(kept, x + e if live else e)


def mutate(words, rng, num_dense):
  """One broken message; two of three have their checksum made good again."""
  words = words.copy()
  kind, length = rng.integers(5), int(words[1])
  if kind == 0:
    words[rng.integers(length)] ^= np.uint32(1) << np.uint32(rng.integers(32))
  elif kind == 1:
    words[1] = rng.choice([0, 5, 6, 7, length - 1, length, length + 1, 2**32 - 1])
  elif kind == 2:
    words[6:] = rng.integers(2**32, size=words.size - 6, dtype=np.uint32)
    words[6 + num_dense:8 + num_dense] >>= 2  # so that scales are often good ones, and codes arbitrary
  elif kind == 3:  # a scale
    words[6 + num_dense + rng.integers(2)] = rng.choice(
        [0x7F800000, 0x7FC00000, 0x80000000, 0x7F000000, 0x7F000001, 0x7F7FFFFF])
  else:
    words[0] = 0xDC720000 | int(rng.integers(2)) << 8 | int(rng.choice([0, 18, 19, 20, 21, 22]))
  if rng.integers(3) and int(words[1]) <= words.size:
    words[5] = oracle.checksum(words, int(words[1]))
  return words


@pytest.mark.parametrize('name', QUANTIZERS)
def test_broken_messages(name):
  """Refused, or read as the oracle reads them, whatever the codes are."""
  rng, (x,), (dense,) = np.random.default_rng(0), draw((101,)), draw((DENSE,), 1)
  original = np.pad(oracle.encode(name, [x], dense), (0, 2))
  batch = np.stack([mutate(original, rng, DENSE) for _ in range(400)])
  compressor, layers = QUANTIZERS[name](dense_below=8), (x, dense)
  got = jax.jit(jax.vmap(lambda m: compressor.decompress(m[None], layers, None)))(batch)
  accepted = 0
  for i, message in enumerate(batch):
    want = oracle.decode(name, message, (101,), DENSE)
    assert got.intact[i, 0] == (want is not None), i
    for part, expected in zip(got.layers, want or (np.zeros(101), np.zeros(DENSE)), strict=True):
      np.testing.assert_array_equal(part[i], expected)
    accepted += want is not None
  assert 40 < accepted < 300


@pytest.mark.parametrize('dtype', ['float32', *slow('bfloat16', 'float16')])
@pytest.mark.parametrize('name', QUANTIZERS)
def test_extreme_layers(name, dtype):
  """Zeros, layers too small to matter, denormals, one entry, the ends of the range: all finite."""
  rows = [np.zeros(7), np.full(5, -0.0), np.full(32, 9e-31), np.full(4, -1e-40), np.full(41, -1.1e-30), [-2.5],
          np.linspace(-1e30, 1e30, 33), np.where(np.arange(31) % 2, 3.4e38, -3.4e38), np.arange(35.0) - 16,
          np.where(np.arange(11) == 5, 3e38, -2e-30), np.where(np.arange(300) == 5, -1e-3, 3e38)]
  largest = float(jnp.finfo(dtype).max)
  layers = tuple(jnp.asarray(np.clip(r, -largest, largest), jnp.float32).astype(dtype) for r in rows)
  exact = [np.asarray(x.astype(jnp.float32)) for x in layers]
  compressor = make(name)
  packed = send(compressor, layers, tuple(jnp.zeros(x.size) for x in layers))
  want = oracle.encode(name, exact, [], oracle.seed_of(oracle.ROUND, 0, 0, 0, 0))
  np.testing.assert_array_equal(packed.message[:-3], want)
  sent = said(compressor, packed.message, layers)
  np.testing.assert_array_equal(
      np.concatenate(sent), np.concatenate(oracle.decode(name, want, [x.size for x in exact], 0)))
  assert not any(s.any() for s in sent[:4])
  assert all(np.isfinite(s).all() and np.isfinite(e).all() for s, e in zip(sent, packed.residual, strict=True))
  assert sent[5] == exact[5]  # one entry arrives as it is
  scales = np.abs(np.concatenate(sent))
  assert (scales[scales > 0] >= 9e-31 / 127).all()  # nothing denormal


@pytest.mark.parametrize('name', QUANTIZERS)
def test_bfloat16_gradients(name):
  """They are widened, and the residual of float32 is added after that."""
  (x,), (e,) = draw((777,)), draw((777,), 1)
  x = jnp.asarray(x).astype(jnp.bfloat16)
  exact = np.asarray(x.astype(jnp.float32)) + e
  packed = send(make(name), (x,), (e,))
  seed = oracle.seed_of(oracle.ROUND, 0, 0, 0, 0)
  np.testing.assert_array_equal(packed.message[:-3], oracle.encode(name, [exact], [], seed))
  assert packed.residual[0].dtype == jnp.float32


@pytest.mark.parametrize(('name', 'bytes_'), [('int8', 10_000), ('ternary', 2000), ('one_bit', 1252)])
def test_bytes(name, bytes_):
  """8, 1.6 and 1 bits an entry, behind a header of six words and one or two scales."""
  layers = (jnp.zeros(10_000),)
  scales = 2 if name == 'one_bit' else 1
  assert 4 * make(name).size(layers).largest == 24 + 4 * scales + bytes_


def test_int8_is_off_by_half_a_level():
  x = draw((5000,), 3)[0]
  sent = said(make('int8'), send(make('int8'), (x,)).message, (x,))[0]
  m = np.abs(x).max()
  # The largest itself is exact but for the rounding of m / 127, and so is every other to that precision.
  assert np.abs(x - sent).max() <= m / 254 + m * 2.0**-23
  assert np.abs(x - sent).max() > m / 260  # nor less: these are the levels
  assert np.unique(np.rint(sent / (m / 127))).size > 150


def test_ternary_is_unbiased_over_steps_and_workers():
  n, runs = 96, 4000
  x = jnp.asarray(draw((n,), 5)[0])
  c = make('ternary', seed=2)
  room = dct_jax.whole_room(c, (x,))

  @jax.jit
  def once(i):
    state = c.init((x,))._replace(step=i // 8)
    message = c.compress((x,), None, state, room._replace(worker=(i % 8).astype(jnp.uint32))).message
    return c.decompress(message[None], (x,), None).layers[0]

  m = np.abs(np.asarray(x)).max()
  sent = np.asarray(jax.vmap(once)(jnp.arange(runs)), np.float64)
  assert set(np.unique(sent)) == {-m, 0, m}
  # A coin between 0 and m has a deviation of at most m / 2: five of the mean's.
  assert (np.abs(sent.mean(0) - np.asarray(x)) <= m * (5 * 0.5 / np.sqrt(runs) + 2.0**-15)).all()
  centred = (sent - np.asarray(x)) / m
  neighbours = np.abs(np.mean(centred[:, 1:] * centred[:, :-1], axis=0))
  between_runs = np.abs(np.mean(centred[1:] * centred[:-1], axis=0))
  assert max(neighbours.max(), between_runs.max()) < 5 * 0.25 / np.sqrt(runs)


def test_ternary_of_other_steps_workers_and_seeds():
  x = jnp.full(4096, 0.4).at[0].set(1.0)
  c = make('ternary')
  first = send(c, (x,))
  np.testing.assert_array_equal(first.message, send(c, (x,)).message)
  assert first.state.step == 1
  for other in (send(c, (x,), step=1), send(c, (x,), worker=1), send(make('ternary', seed=1), (x,))):
    assert (np.asarray(other.message[7:-3]) != np.asarray(first.message[7:-3])).mean() > 0.9


def test_one_bit_has_the_smallest_squared_error():
  x = draw((3001,), 4)[0] + np.float32(0.1)
  x[:10] = 0
  c = make('one_bit')
  message = np.asarray(send(c, (x,)).message)
  above, below = message[6:8].view(np.float32)
  negative = x < 0
  means = [x[~negative].mean(dtype=np.float64), x[negative].mean(dtype=np.float64)]
  np.testing.assert_allclose([above, -below], means, rtol=1e-6)
  sent = said(c, message, (x,))[0]
  np.testing.assert_array_equal(sent, np.where(negative, -below, above))
  error = lambda a, b: np.sum((x - np.where(negative, -b, a).astype(np.float64)) ** 2)
  smallest = error(above, below)
  for a, b in [(0.999, 1), (1.001, 1), (1, 0.999), (1, 1.001), (0.9, 1.1), (1.1, 1.1)]:
    assert smallest < error(above * a, below * b)


@pytest.mark.parametrize('sign', [-1, 1])
def test_one_bit_of_a_single_sign(sign):
  x = sign * jnp.array([1.0, 2.0, 3.0])
  c = make('one_bit')
  assert said(c, send(c, (x,)).message, (x,))[0].tolist() == [2 * sign] * 3


def test_one_bit_learns_with_error_feedback():
  """What a step leaves out comes later: the mean of many steps nears the gradient, which no single one does."""
  c, steps, sent = make('one_bit'), 100, []
  x, residual = draw((100,), 6)[0], (jnp.zeros(100),)
  for _ in range(steps):
    packed = send(c, (x,), residual)
    residual = packed.residual
    sent.append(said(c, packed.message, (x,))[0])
  error = lambda mean: np.linalg.norm(mean - x)
  assert error(np.mean(sent, axis=0)) < error(sent[0]) / 4
  np.testing.assert_allclose(np.sum(sent, axis=0) + np.asarray(residual[0]), steps * x, rtol=1e-4, atol=1e-2)


# A threshold from a sample.


@functools.cache
def sampled(native, *args, **kwargs):
  """One compressor for each kind of kernels, so that tests share what is compiled for it."""
  return dct_jax.sampled_top_k(*args, **kwargs)


def pick(x, tau):
  return np.flatnonzero((np.abs(x) >= tau) & (x != 0))


@pytest.mark.parametrize('index_codec', ['bitmap', 'auto'])
@pytest.mark.parametrize(('step', 'worker'), [(0, 0), (3, 2)])
def test_sampled_messages_equal_the_oracle(native, index_codec, step, worker):
  sizes, keep, sample, least = (5001, 300, 7, 2048), 0.05, 0.1, 250
  layers, residual = draw(sizes), draw(sizes, 1)
  exact = [x + e for x, e in zip(layers, residual, strict=True)]
  c = sampled(native, keep, sample, least=least, seed=9, dense_below=8, index_codec=index_codec)
  packed = send(c, layers, residual, step, worker)
  seed, at, index = oracle.seed_of(oracle.SAMPLE, 9, 0, step, worker), 0, []
  for x in (exact[0], exact[1], exact[3]):
    index.append(at + pick(x, oracle.sampled_threshold(x, keep, sample, least, at, seed)))
    at += x.size
  index, flat = np.concatenate(index), np.concatenate([exact[0], exact[1], exact[3]])
  want = wire.encode(index, flat[index], universe=at, dense=exact[2], index_codec=index_codec)
  np.testing.assert_array_equal(packed.message[:want.size], want)
  assert not np.asarray(packed.message[want.size:-3]).any()
  sent = said(c, packed.message, layers)
  for x, s, e in zip(exact, sent, packed.residual, strict=True):
    np.testing.assert_array_equal(s + e, x)
    assert not (np.asarray(e) * s).any()  # all of an entry, or nothing


@pytest.mark.parametrize(('n', 'sample'), [(200_000, 0.01), (200_003, 0.05), (4099, 0.01)])
def test_sampled_share_is_near(n, sample):
  """Five standard deviations, in every one of some steps, and no threshold is that of another step."""
  x = draw((n,), 8)[0]
  c, keep, shares = dct_jax.sampled_top_k(0.05, sample), 0.05, []
  count = max(1000, int(sample * n))
  for step in range(8):
    sent = said(c, send(c, (x,), step=step).message, (x,))[0]
    travels = sent != 0
    shares.append(travels.mean())
    assert np.abs(x[travels]).min() > np.abs(x[~travels]).max()  # everything above a threshold, nothing below
    np.testing.assert_array_equal(sent[travels], x[travels])
  assert np.abs(np.array(shares) - keep).max() < 5 * np.sqrt(keep * (1 - keep) / count)
  assert len(set(shares)) > 4


def test_sampled_whole_is_top_k():
  x = draw((900,), 2)[0]
  a, b = dct_jax.sampled_top_k(0.1, dense_below=0), dct_jax.top_k(0.1, index_codec='bitmap', dense_below=0)
  np.testing.assert_array_equal(send(a, (x,)).message[:-3], send(b, (x,)).message[:-3])


def test_sampled_zeros_one_entry_ties_and_schedules():
  c = dct_jax.sampled_top_k(0.05, dense_below=0)
  zeros = (jnp.zeros(3000), jnp.zeros(1))
  packed = send(c, zeros, zeros)
  assert packed.message[3] == 0 and not any(np.asarray(e).any() for e in packed.residual)
  assert said(c, send(c, (jnp.array([-7.0]),)).message, (jnp.zeros(1),))[0] == [-7]
  ones = (jnp.ones(3000),)
  assert send(c, ones).message[3] == 3000  # all equal the threshold
  half = jnp.asarray(draw((3001,))[0]).astype(jnp.bfloat16)
  sent = said(c, send(c, (half,)).message, (half,))[0]
  assert set(sent[sent != 0]) <= set(np.asarray(half.astype(jnp.float32)))
  warm = dct_jax.sampled_top_k(lambda step: jnp.where(step < 5, 0.5, 0.05), least=3001, dense_below=0)
  assert [int(send(warm, (draw((3001,))[0],), step=s).message[3]) for s in (0, 5)] == [1500, 150]


@pytest.mark.parametrize(('arguments', 'message'), [
    ({'keep': 0}, 'keep=0'), ({'keep': 1.5}, 'keep=1.5'), ({'sample': 0.0}, 'sample=0.0'),
    ({'sample': 2}, 'sample=2'), ({'sample': lambda step: jnp.float32(0.5)}, 'not a schedule'),
    ({'least': 0}, 'least=0'), ({'index_codec': 'none'}, 'none'), ({'dense_below': -1}, 'dense_below=-1')])
def test_bad_arguments(arguments, message):
  with pytest.raises(ValueError, match=message):
    dct_jax.sampled_top_k(**arguments)


@pytest.mark.parametrize('name', QUANTIZERS)
def test_bad_dense_below(name):
  with pytest.raises(ValueError, match='dense_below=-1'):
    QUANTIZERS[name](dense_below=-1)
