"""Messages against the NumPy implementation of docs/wire_format.md."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import slow
from reference import wire as oracle

from dct_jax import kernels
from dct_jax.wire import entry_limit, layout_of, read_headers, size

INDEX = ['auto', 'int32', 'gap16', 'bitmap', 'rice']
VALUE = ['float32', 'float16', 'bfloat16']


@functools.partial(jax.jit, static_argnames=('capacity', 'universe', 'unit', 'index_codec',
                                             'value_codec', 'native'))
def _encode(index, value, dense, count, wanted, *, capacity, universe, unit, index_codec,
            value_codec, native):
  with kernels.use_native(native):
    return kernels.encode(
        index, value, dense, count=count, wanted=wanted, budget=capacity, capacity=capacity,
        universe=universe, unit=unit, index_codec=index_codec, value_codec=value_codec)


@functools.partial(jax.jit, static_argnames=('sizes', 'dense', 'unit', 'value_codec', 'native'))
def _unpack(words, *, sizes, dense, unit, value_codec, native):
  with kernels.use_native(native):
    shape = lambda n: jax.ShapeDtypeStruct((n,), jnp.float32)
    return kernels.unpack_sum(words, [shape(n) for n in sizes], [shape(n) for n in dense],
                              unit=unit, value_codec=value_codec)


def random_set(universe, density, seed, kind='random'):
  rng = np.random.default_rng(seed)
  count = max(0, round(universe * density))
  if kind == 'clustered':
    return np.arange(universe - count, universe)
  return np.sort(rng.choice(universe, count, replace=False))


# Densities for each universe; arrays have one size for all of them, so that little is compiled.
DENSITIES = {1: (0.0, 1.0), 31: (0.0, 0.5, 1.0), 1000: (0.0, 0.001, 0.02, 0.3, 1.0),
             200_000: (1e-5, 0.0003, 0.01)}
CODECS = [('auto', v) for v in VALUE] + [(i, 'float32') for i in INDEX[1:]] + [('rice', 'float16')]


@pytest.mark.parametrize(('index_codec', 'value_codec'), CODECS)
@pytest.mark.parametrize('universe', [31, 200_000, *slow(1, 1000)])
def test_encoder_and_decoder_equal_the_oracle(native, universe, index_codec, value_codec):
  unit = 3 if universe == 31 else 1
  most = round(universe * max(DENSITIES[universe]))
  capacity = 6 + 5 + universe // 32 + 2 + (2 + unit) * most + 8
  sets = [(d, s, k) for d in DENSITIES[universe] for s, k in ((0, 'random'), (1, 'clustered'))]
  for density, seed, kind in sets:
    index = random_set(universe, density, seed, kind)
    rng = np.random.default_rng(seed)
    value = rng.standard_normal(index.size * unit).astype(np.float32) * 1e3
    dense = rng.standard_normal(5).astype(np.float32)
    want = oracle.encode(index, value, universe=universe, unit=unit, dense=dense,
                         index_codec=index_codec, value_codec=value_codec, capacity=capacity)
    dense_words = oracle.value_section(dense, value_codec)
    pad = most + 3 - index.size
    got = _encode(
        jnp.pad(jnp.asarray(index, jnp.uint32), (0, pad)),
        jnp.pad(jnp.asarray(value), (0, pad * unit)),
        jnp.asarray(dense_words, jnp.uint32), index.size, index.size, capacity=capacity,
        universe=universe, unit=unit, index_codec=index_codec, value_codec=value_codec,
        native=native)
    np.testing.assert_array_equal(got, want)

    head = read_headers(got)
    assert 4 * int(head.length) == 4 * oracle.decode(
        want, universe=universe, unit=unit, num_dense=5, value_codec=value_codec).length
    intact, (flat, whole) = _unpack(got[None], sizes=(universe * unit,), dense=(5,), unit=unit,
                                    value_codec=value_codec, native=native)
    expected = np.zeros((universe, unit), np.float32)
    expected[index] = oracle.cast(value, value_codec).reshape(-1, unit)
    assert intact[0] == 1
    np.testing.assert_array_equal(flat, expected.reshape(-1))
    np.testing.assert_array_equal(whole, oracle.cast(dense, value_codec))


def test_sum_of_workers_in_their_order(native):
  rng = np.random.default_rng(0)
  sizes, messages, parts = (700, 300), [], []
  for w in range(5):
    index = random_set(1000, 0.1, w)
    value = (rng.standard_normal(index.size) * 10.0**rng.integers(-3, 3)).astype(np.float32)
    messages.append(oracle.encode(index, value, universe=1000, capacity=300))
    part = np.zeros(1000, np.float32)
    part[index] = value
    parts.append(part)
  intact, (a, b) = _unpack(jnp.asarray(np.stack(messages)), sizes=sizes, dense=(), unit=1,
                           value_codec='float32', native=native)
  total = np.zeros(1000, np.float32)
  for part in parts:
    total += part
  assert intact.all()
  np.testing.assert_array_equal(np.concatenate([a, b]), total)


@pytest.mark.parametrize('value_codec', VALUE)
@pytest.mark.parametrize('codec', INDEX)
@pytest.mark.parametrize('universe', [50, 4097, 1_000_003])
def test_entry_limit_always_fits(universe, codec, value_codec):
  """The promise of wire/size.py: so many entries fit, wherever they are; and little room is wasted."""
  layout = layout_of([jnp.zeros(universe), jnp.zeros(5)], dense_below=10)
  smallest = size.stream_words(0, layout, codec, value_codec)
  limit = jax.jit(lambda w: entry_limit(w, layout, codec, value_codec))
  largest = size.stream_words(universe, layout, codec, value_codec)
  assert limit(0) == 0
  for words in np.unique(np.geomspace(smallest, largest, 60).astype(int)):
    n = int(limit(words))
    assert size.stream_words(n, layout, codec, value_codec) <= max(words, smallest)
    assert oracle.index_bound_words(n, universe, codec) == size.index_bound(n, universe, codec)
    more = min(universe, int(1.02 * n) + 140)
    assert more == universe or size.stream_words(more, layout, codec, value_codec) >= words - 4


@pytest.mark.parametrize(('universe', 'count'), [(1000, 10), (1_000_003, 10_000), (65_536, 60_000)])
def test_worst_indices_stay_within_the_bound(universe, count):
  spread = np.linspace(0, universe - 1, count).astype(int)
  for index in (np.arange(count), np.arange(universe - count, universe), np.unique(spread)):
    assert oracle.index_section_words(index, universe, 'rice') <= size.index_bound(
        index.size, universe, 'rice')


@pytest.mark.parametrize('density', [0.05, 0.01, 0.001])
def test_rice_is_close_to_the_entropy(density):
  universe = 1 << 20
  index = random_set(universe, density, 0)
  bits = 32 * oracle.index_section_words(index, universe, 'rice')
  assert bits <= 1.03 * oracle.entropy_bits(index.size, universe)


def test_too_many_entries_are_refused():
  with pytest.raises(ValueError, match='at most'):
    layout_of([jax.ShapeDtypeStruct((2**30 + 1,), jnp.float32)])
