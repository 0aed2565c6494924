"""Every algorithm on every kind of stream against SparCML written in NumPy, and what it sends."""

import jax
import numpy as np
import pytest
import workers
from marks import slow
from reference import qsgd
from reference import sparse_allreduce as oracle

from dct_jax import transport
from dct_jax.collectives.algorithms import ALGORITHMS
from dct_jax.wire.exchanges import Settings

DTYPES = {'float32': ('sum', 'max', 'min', 'product'), 'float64': ('sum', 'max', 'min', 'product'),
          'uint32': ('sum', 'max', 'min', 'product', 'or')}
FRAME = 28 + 96  # bytes around a vector: the frame's and the parcel's


def draw(rng, count, dtype):
  if dtype == 'uint32':
    return rng.integers(0, 2**32, count, dtype=np.uint32)
  return rng.standard_normal(count).astype(dtype)


def index_sets(rng, pattern, count, size, number):
  """One sorted set of about `count` indices a worker."""
  pick = lambda n: np.sort(rng.choice(size, min(n, size), replace=False))
  if pattern == 'identical':
    return [pick(count)] * number
  if pattern == 'disjoint':
    every = pick(count * number)
    return [every[w::number] for w in range(number)]
  if pattern == 'uneven':  # some have nothing
    return [pick(count * w * 2 // number) for w in reversed(range(number))]
  if pattern == 'empty':
    return [pick(0)] * number
  if pattern == 'ends':
    return [np.unique([0, size - 1] if w % 2 else [size // 2])[:count] for w in range(number)]
  return [pick(count) for _ in range(number)]


def streams_of(sets, rng, dtype='float32'):
  return [(s.astype(np.uint32), draw(rng, s.size, dtype)) for s in sets]


def expected(streams, size, algorithm, op='sum'):
  return oracle.reduce([oracle.vector(i, v, size, op) for i, v in streams], algorithm, op)


PATTERNS = ('overlapping', 'identical', 'disjoint', 'uneven', 'empty', 'ends')


@pytest.mark.parametrize('number', [2, 3, 4, 5, 8, *slow(6, 7, 9)])
def test_algorithms_equal_the_oracle(number):
  """Law 3, bit for bit: any workers, sizes, densities and overlaps; laws 2 and 4 in every call."""
  rng = np.random.default_rng(number)
  group = workers.group(number)
  for size in (1, 37, 997, 70001):
    counts = sorted({max(1, int(size * density)) for density in (1e-5, 1e-3, 0.03, 0.4, 1.0)})
    for case, count in enumerate(counts):
      for pattern in PATTERNS if size < 100 else {PATTERNS[case], PATTERNS[case - 2], PATTERNS[case - 4]}:
        streams = streams_of(index_sets(rng, pattern, count, size, number), rng)
        for algorithm in ALGORITHMS:
          _, _, out = group.reduce(streams, size, algorithm=algorithm)
          want, _ = expected(streams, size, algorithm)
          np.testing.assert_array_equal(out, want, f'{size=} {count=} {pattern=} {algorithm=}')


@pytest.mark.parametrize('number', [2, 3, 4])
@pytest.mark.parametrize('dtype', DTYPES)
def test_operations_equal_the_oracle(dtype, number):
  """Every operation with a neutral element; uint32 wraps around as C has it."""
  rng = np.random.default_rng(number)
  for op in DTYPES[dtype]:
    for pattern, count in (('overlapping', 200), ('uneven', 30), ('identical', 501)):
      streams = streams_of(index_sets(rng, pattern, count, 501, number), rng, dtype)
      for algorithm in ALGORITHMS:
        _, _, out = workers.group(number).reduce(streams, 501, algorithm=algorithm, op=op)
        assert out.dtype == dtype
        want, _ = expected(streams, 501, algorithm, op)
        np.testing.assert_array_equal(out, want, f'{op=} {pattern=} {algorithm=}')


@pytest.mark.parametrize('number', [3, 4])
@pytest.mark.parametrize('codec', ['auto', 'int32', 'gap16', 'rice', 'bitmap'])
def test_results_depend_on_neither_codec_nor_delta(codec, number):
  rng = np.random.default_rng(5)
  cases = [streams_of(index_sets(rng, p, count, 997, number), rng)
           for p, count in (('overlapping', 3), ('overlapping', 300), ('disjoint', 150), ('uneven', 200))]
  sent = {}
  for delta in (1e-6, 0.1, 0.5, 1.0):
    for c, streams in enumerate(cases):
      for algorithm in ALGORITHMS:
        _, sent[delta, c, algorithm], out = workers.group(number).reduce(
            streams, 997, algorithm=algorithm, settings=Settings(codec, delta))
        want, _ = expected(streams, 997, algorithm)
        np.testing.assert_array_equal(out, want, f'{delta=} {algorithm=}')
  for algorithm in ('recursive_double', 'split_all_gather'):  # delta is not idle
    assert sent[1e-6, 0, algorithm] > sent[1.0, 0, algorithm] + 2000


@pytest.mark.parametrize('codec', ['auto', 'int32', 'gap16', 'rice', 'bitmap'])
def test_gaps_beyond_16_bits_survive_every_codec(codec):
  rng = np.random.default_rng(5)
  size = 300_001
  sets = [np.array([0, 65534, 131071, 300_000]), np.array([65535, 200_000]), np.array([], int)]
  streams = streams_of(sets, rng)
  for algorithm in ALGORITHMS:
    _, _, out = workers.group(3).reduce(streams, size, algorithm=algorithm, settings=Settings(codec), pad=8)
    np.testing.assert_array_equal(out, expected(streams, size, algorithm)[0])


@pytest.mark.parametrize('number', [2, 5])
@pytest.mark.parametrize('delta', [1e-6, 0.5, 1.0])
@pytest.mark.parametrize('op', ['sum', 'max', 'product'])
def test_streams_come_back_within_the_entries_that_were_sent(op, delta, number):
  """A sparse result has room for all workers' entries and no more, even where it was dense on the way."""
  rng = np.random.default_rng(number)
  size, pad = 601, 80
  for pattern, count in (('overlapping', 80), ('disjoint', 80), ('identical', 77), ('uneven', 40),
                         ('empty', 0)):
    streams = streams_of(index_sets(rng, pattern, count, size, number), rng)
    for algorithm in ('all_gather', 'recursive_double', 'split_all_gather', 'union'):
      entries, _, (index, value) = workers.group(number).reduce(
          streams, size, algorithm=algorithm, op=op, settings=Settings(delta=delta), pad=pad,
          capacity=min(number * pad, size))
      index, value = index[:entries], value[:entries]
      want, present = expected(streams, size, algorithm, op)
      assert (np.diff(index.astype(np.int64)) > 0).all()
      assert present[index].all()
      assert entries == present.sum()  # no value of these draws is neutral
      np.testing.assert_array_equal(oracle.vector(index, value, size, op)[0], want)


def test_a_result_larger_than_its_buffer_is_an_error_that_says_so():
  def body(t):
    call = jax.jit(lambda i, v: transport.reduce_stream(
        i, v, 4, 100, t.open(), Settings(), algorithm=0, capacity=7))
    return call(np.arange(4, dtype=np.uint32) + 4 * t.rank, np.ones(4, np.float32))

  with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match='more entries than its buffer'):
    workers.run_workers(2, body)


def test_dense_vectors_need_no_indices():
  rng = np.random.default_rng(0)
  values = rng.standard_normal((3, 50)).astype(np.float32)
  group = workers.group(3)
  make = lambda channel: lambda value, chosen: transport.reduce_stream(
      np.zeros(0, np.uint32), value, 0, 50, channel, Settings(), algorithm=chosen)
  for a, algorithm in enumerate(ALGORITHMS):
    results = group.call('whole', make, [(v, np.uint32(a)) for v in values])
    workers.assert_replicas(results)
    want = expected([(np.arange(50), v) for v in values], 50, algorithm)[0]
    np.testing.assert_array_equal(results[0][1], want)


# What SparCML's sections 3 and 5 say that each algorithm sends, in bytes of one worker, exactly.


def volume(number, pattern, count, size, algorithm):
  """Mean bytes with 32-bit indices and values."""
  rng = np.random.default_rng(1)
  if pattern == 'even':  # identical sets, as many in every slice
    sets = [np.arange(0, size, size // count)] * number
  else:
    sets = index_sets(rng, pattern, count, size, number)
  return workers.group(number).reduce(
      streams_of(sets, rng), size, algorithm=algorithm, settings=Settings('int32', 1.0))[1]


@pytest.mark.parametrize('number', [2, 5, 8])
def test_all_gather_sends_its_entries_to_everybody(number):
  for pattern in ('identical', 'disjoint'):
    assert volume(number, pattern, 100, 4000, 'all_gather') == (number - 1) * (FRAME + 800)


@pytest.mark.parametrize('number', [2, 4, 8])
def test_recursive_doubling_sends_log_p_times_between_identical_and_p_times_between_disjoint_sets(number):
  rounds = number.bit_length() - 1
  assert volume(number, 'identical', 100, 4000, 'recursive_double') == rounds * (FRAME + 800)
  assert volume(number, 'disjoint', 100, 4000, 'recursive_double') == rounds * FRAME + (number - 1) * 800


def test_workers_beyond_a_power_of_two_fold_in_and_get_the_result():
  parcel = FRAME + 800
  assert volume(5, 'identical', 100, 4000, 'recursive_double') == (1 + 4 * 2 + 1) * parcel // 5


@pytest.mark.parametrize('number', [2, 4, 5, 8])
def test_split_sends_two_shares(number):
  want = (number - 1) * (2 * FRAME + 2 * 1600 // number)
  assert volume(number, 'even', 200, 4000, 'split_all_gather') == want


@pytest.mark.parametrize('number', [2, 4, 5, 8])
def test_dsar_sends_its_entries_once_and_a_dense_share(number):
  heads, dense = 2 * (number - 1) * FRAME, (number - 1) * 16000 // number
  assert volume(number, 'even', 200, 4000, 'dsar') == heads + (number - 1) * 1600 // number + dense
  for pattern in ('overlapping', 'disjoint', 'uneven'):
    assert volume(number, pattern, 200, 4000, 'dsar') <= heads + 3200 + dense


@pytest.mark.parametrize('number', [2, 4, 5, 8])
def test_union_sends_a_bit_a_coordinate_and_the_dense_values_of_the_union(number):
  """A small bitmap goes to all, a large one is split, as the values always are; indices never travel."""
  values = 2 * (number - 1) * (FRAME * number + 4 * 200) // number
  assert volume(number, 'even', 200, 4000, 'union') == (number - 1) * (FRAME + 500) + values
  bitmap = 2 * (number - 1) * (FRAME * number + 20_000) // number
  assert volume(number, 'even', 200, 160_000, 'union') == bitmap + values
  disjoint = 2 * (number - 1) * (FRAME * number + 4 * 200 * number) // number
  assert volume(number, 'disjoint', 200, 4000, 'union') == (number - 1) * (FRAME + 500) + disjoint


@pytest.mark.parametrize('number', [2, 3])
def test_large_unions_go_around_a_ring(number):
  """Bitmap and values; integers, as the ring adds in an order of its own."""
  rng = np.random.default_rng(number)
  size = number * 2**20 + 12345
  streams = streams_of(index_sets(rng, 'overlapping', size // 20, size, number), rng, 'uint32')
  entries, sent, out = workers.group(number).reduce(streams, size, algorithm='union', pad=size // 20)
  want, present = expected(streams, size, 'union')
  np.testing.assert_array_equal(out, want)
  assert entries == present.sum()
  plain = 2 * (number - 1) * (4 * (-(-size // 32) + entries)) / number
  assert plain < sent < plain + 100 * (FRAME + 8)


@pytest.mark.parametrize('number', [1, 2, 5])
def test_coordinates_whose_values_cancel_stay_in_the_union(number):
  """Also if everybody has all of them."""
  group = workers.group(number)
  for size, index in ((9, np.array([2, 3, 7])), (3, np.arange(3))):
    streams = [(index.astype(np.uint32), np.float32([1, -1, 0]) * (1 if w % 2 else -1) * (w < number // 2 * 2))
               for w in range(number)]
    entries, _, (got, value) = group.reduce(streams, size, algorithm='union', pad=3, capacity=min(3 * number, size))
    np.testing.assert_array_equal(got[:entries], index)
    np.testing.assert_array_equal(value[:entries], np.zeros(3))
    assert group.reduce(streams, size, algorithm='union', pad=3)[0] == 3


def test_a_dense_vector_is_sent_twice_but_for_the_own_share():
  rng = np.random.default_rng(0)
  group = workers.group(4)
  make = lambda channel: lambda value: transport.reduce_stream(
      np.zeros(0, np.uint32), value, 0, 4000, channel, Settings(), algorithm=ALGORITHMS.index('dense'))
  info, _ = group.call('dense', make, [(rng.standard_normal(4000).astype(np.float32),)] * 4)[0]
  assert info[1] == 2 * 3 * (FRAME + 4000)


def test_quantized_dsar_sends_bits_in_its_second_half():
  rng = np.random.default_rng(0)
  streams = streams_of([np.arange(0, 4096, 16)] * 4, rng)
  for bits in (2, 4, 8):
    settings = Settings('int32', 1.0, bits, 1024)
    _, sent, _ = workers.group(4).reduce(streams, 4096, algorithm='dsar', settings=settings)
    assert sent == 3 * (2 * FRAME + 64 * 8 + 4 + 1024 * bits // 8)


# QSGD in the second half.


@pytest.mark.parametrize('number', [2, 3, 5])
@pytest.mark.parametrize('bits', [2, 4, 8])
def test_quantized_dsar_is_qsgd_of_the_sum(bits, number):
  """Slices end at buckets, so that it does not matter who owned which."""
  rng = np.random.default_rng(bits)
  for size, bucket in ((1500, 32), (1500, 1024), (5, 32)):
    sets = index_sets(rng, 'overlapping', max(1, size // 5), size, number)
    zeros = slice(64, 96) if bucket == 32 else slice(1024, 1500)
    sets = [s[(s < zeros.start) | (s >= zeros.stop)] for s in sets]
    streams = streams_of(sets, rng)
    total, _ = expected(streams, size, 'dsar')
    decoded = set()
    for seed in (0, 12345, 2**32 - 1):
      _, _, out = workers.group(number).reduce(
          streams, size, algorithm='dsar', seed=seed, settings=Settings(bits=bits, bucket=bucket))
      want = qsgd.dequantize(qsgd.quantize(total, 0, seed, bits, bucket), size, bits, bucket)
      np.testing.assert_array_equal(out, want)
      assert not out[zeros].any()
      for at in range(0, size, bucket):
        part = slice(at, min(at + bucket, size))
        level = np.abs(total[part]).max() / qsgd.levels(bits)
        assert np.abs(out[part] - total[part]).max(initial=0) <= level * (1 + 1e-5)
      decoded.add(out.tobytes())
    assert len(decoded) == 3 or size == 5  # the seed decides the rounding


def test_bits_change_nothing_in_other_algorithms():
  rng = np.random.default_rng(3)
  streams = streams_of(index_sets(rng, 'overlapping', 90, 500, 3), rng)
  for algorithm in set(ALGORITHMS) - {'dsar'}:
    _, _, out = workers.group(3).reduce(streams, 500, algorithm=algorithm, settings=Settings(bits=4, bucket=32))
    np.testing.assert_array_equal(out, expected(streams, 500, algorithm)[0])


@pytest.mark.parametrize('op', ['max', 'min'])
@pytest.mark.parametrize('holder', range(3))
def test_what_is_not_a_number_stays_so_whoever_has_it(op, holder):
  rng = np.random.default_rng(0)
  streams = streams_of([np.arange(4)] * 3, rng)
  streams[holder][1][2] = np.nan
  for algorithm in ALGORITHMS:
    _, _, out = workers.group(3).reduce(streams, 9, algorithm=algorithm, op=op, settings=Settings(), pad=4)
    assert np.isnan(out).tolist() == [False, False, True, *[False] * 6]
    np.testing.assert_array_equal(out, expected(streams, 9, algorithm, op)[0])
