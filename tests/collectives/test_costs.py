"""The cost model behind 'auto': what must grow grows, and the extremes choose what they must."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dct_jax.collectives import costs
from dct_jax.collectives.algorithms import ALGORITHMS
from dct_jax.collectives.costs import Costs, Instance

N = 1 << 20
SLOW = 1.25e6  # bytes a second: 10 Mbit


def name_of(chosen):
  return ALGORITHMS[int(chosen)]


@pytest.mark.parametrize('workers', [2, 3, 4, 8, 9])
def test_more_entries_never_take_less_time(workers):
  network = Costs.of_network(workers, SLOW)
  counts = np.unique(np.geomspace(1, N, 60).astype(int))
  for union in (lambda k: k, lambda k: min(k * workers, N), lambda k: N):
    times = np.stack([costs.predict(network, Instance(workers, N, float(k), float(union(k)))) for k in counts])
    assert times.shape == (counts.size, len(ALGORITHMS))
    assert (np.diff(times, axis=0) >= -1e-6 * times[1:]).all()
    assert times[-1, 0] > 100 * times[0, 0]


def test_longer_messages_take_an_all_gather_longer_and_nothing_else():
  network = Costs.of_network(4, SLOW)
  times = np.stack([costs.predict(network, Instance(4, N, 1e3, 4e3, float(b))) for b in (1e3, 1e4, 1e5)])
  assert (np.diff(times[:, 0]) > 0).all()
  assert (np.diff(times[:, 1:], axis=0) == 0).all()


@pytest.mark.parametrize('column', range(4))
def test_everything_that_costs_more_takes_longer(column):
  cheap = np.array([1e-3, 1e-7, 1e-8, 1e-10])
  dear = np.where(np.arange(4) == column, 2 * cheap, cheap)
  make = lambda row: Costs((tuple(row),) * len(ALGORITHMS), 4)
  instance = Instance(4, N, 1e4, 3e4)
  more = costs.predict(make(dear), instance) - costs.predict(make(cheap), instance)
  features = costs.features(instance)[:, column]
  np.testing.assert_allclose(more, features * cheap[column], rtol=1e-2, atol=1e-6)
  assert (more[features > 0] > 0).all()


def test_features_of_a_case_by_hand():
  """4 workers, 1024 coordinates, all sent by all: every algorithm sends dense vectors."""
  dense = 4096.0
  got = costs.features(Instance(4, 1024, 1024.0, 1024.0))
  np.testing.assert_allclose(got[:, 0], [1, 2, 2, 2, 2, 3])
  np.testing.assert_allclose(got[0, 1], 3 * dense)
  np.testing.assert_allclose(got[1, 1], 2 * dense)
  np.testing.assert_allclose(got[4, 1], 2 * 0.75 * dense)
  assert got[4, 2] == 0
  np.testing.assert_allclose(got[5, 1], 3 * 128 + 2 * 0.75 * dense)
  half = costs.features(Instance(4, 1024, 1024.0, 1024.0, bits=8))
  np.testing.assert_allclose(got[3, 1] - half[3, 1], 0.75 * 0.75 * dense)


@pytest.mark.parametrize('rate', [SLOW, 1.25e8])
def test_a_few_disjoint_entries_of_two_workers_are_gathered(rate):
  for k in (1, 10, 100):
    assert name_of(costs.cheapest(Costs.of_network(2, rate), Instance(2, N, k, 2 * k))) == 'all_gather'


@pytest.mark.parametrize('workers', [2, 3, 8])
def test_everything_goes_dense(workers):
  network = Costs.of_network(workers, SLOW)
  chosen = name_of(costs.cheapest(network, Instance(workers, N, float(N), float(N))))
  assert chosen in (('dense', 'all_gather', 'recursive_double') if workers == 2 else ('dense',))


def test_identical_indices_of_many_workers_are_split():
  chosen = costs.cheapest(Costs.of_network(16, SLOW), Instance(16, N, 5e4, 5e4))
  assert name_of(chosen) == 'split_all_gather'


def test_latency_alone_asks_for_one_round():
  network = Costs(((1.0, 0.0, 0.0, 0.0),) * len(ALGORITHMS), 8)
  assert name_of(costs.cheapest(network, Instance(8, N, 1e3, 8e3))) == 'all_gather'


@pytest.mark.parametrize('workers', [2, 5, 8])
def test_traced_numbers_agree_with_numpy(workers):
  network = Costs.of_network(workers, SLOW)
  traced = jax.jit(lambda k, union, b: (
      costs.predict(network, Instance(workers, N, k, union, b), jnp),
      costs.cheapest(network, Instance(workers, N, k, union, b))))
  for k in (0.0, 1.0, 300.0, 5e4, float(N)):
    for union in (k, min(workers * k, N)):
      want = costs.predict(network, Instance(workers, N, k, union, 5.1 * k))
      times, chosen = traced(jnp.float32(k), jnp.float32(union), jnp.float32(5.1 * k))
      np.testing.assert_allclose(times, want, rtol=1e-5)
      assert chosen.dtype == jnp.uint32
      assert want[int(chosen)] <= want.min() * (1 + 1e-5)


# WikiText-2, 700 tokens a worker: rows of a worker, and the union in multiples of that, measured.
ROWS, WORDS, WIDTH = 378, 33278, 200
UNIONS = {2: 1.8, 4: 3.2, 8: 5.6, 16: 9.5, 32: 15.6, 64: 24.6}


def embedding(workers):
  return Instance(workers, WORDS * WIDTH, ROWS * WIDTH, UNIONS[workers] * ROWS * WIDTH, unit=WIDTH,
                  summed_unit=WIDTH, dense_result=False)


def test_bytes_of_embedding_rows_are_those_that_were_counted():
  """MB a host, counted from real batches; the model does not know how uneven owners of contiguous slices are."""
  counted = {'all_gather': (0.91, 2.13, 4.56, 9.35, 18.7), 'split_all_gather': (0.97, 1.76, 3.00, 4.86, 7.47),
             'union': (1.47, 2.99, 5.42, 9.09, 14.3)}
  for i, workers in enumerate((4, 8, 16, 32, 64)):
    sent = costs.features(embedding(workers))[:, 1]
    for name, megabytes in counted.items():
      np.testing.assert_allclose(sent[ALGORITHMS.index(name)] / 1e6, megabytes[i], rtol=0.03)
  sketches = [costs.s2_features(embedding(8), lam)[1] / 1e6 for lam in (0.5, 1, 2)]
  np.testing.assert_allclose(sketches, (0.27, 0.54, 1.07), rtol=0.02)


def test_union_beats_an_all_gather_where_the_union_is_below_half_the_workers():
  union_of = lambda p: ROWS * WIDTH * 2 ** np.interp(np.log2(p), range(1, 7), np.log2(list(UNIONS.values())))
  assert 28 <= costs.union_crossover(WORDS * WIDTH, ROWS * WIDTH, union_of, unit=WIDTH, most=64) <= 40
  assert costs.union_crossover(N, 1e3, lambda p: p * 1e3, most=99) is None  # disjoint
  assert costs.union_crossover(N, 1e5, lambda p: 1e5) == 3  # identical


@pytest.mark.parametrize('workers', [2, 3, 8, 64])
def test_rivals_by_hand(workers):
  """Blocks of 100, one in ten of a worker, one in five of the union."""
  instance = Instance(workers, 10**6, 1e5, 2e5, unit=100, dense_result=False)
  share = (workers - 1) / workers
  rounds, sent, entries, coordinates = costs.omni_features(instance)
  assert (rounds, entries, coordinates) == (2, 6e5, 0)
  np.testing.assert_allclose(sent, share * (1000 + 2000) * 404)
  rounds, sent, *_ = costs.parallax_features(instance)
  assert rounds == 3
  np.testing.assert_allclose(sent, 2 * share * 1000 * 404)
  bits = 1252 * (workers - 1) if workers < 14 else 2 * 1252 * share  # gathered up to 16 KB of all
  np.testing.assert_allclose(costs.bitmap_exchange(instance), (1 if workers < 14 else 2, bits))
  rounds, sent, entries, _ = costs.s2_features(instance, 0.5, rows=3)
  assert (rounds, entries) == (3 if workers < 14 else 4, 9e5)
  np.testing.assert_allclose(sent, bits + 2 * share * 0.5 * 4e5)


def test_an_index_for_a_block_is_cheaper_than_one_for_every_value():
  """In messages and bitmaps; sums on the way have an index for every value, unless they say otherwise."""
  bytes_of = lambda **units: dict(zip(ALGORITHMS, costs.features(Instance(4, N, 3e4, 9e4, **units))[:, 1], strict=True))
  values, blocks, summed = bytes_of(), bytes_of(unit=64), bytes_of(unit=64, summed_unit=64)
  for name, got in blocks.items():
    assert (got < values[name]) == (name in ('all_gather', 'union')), name
  for name in ('recursive_double', 'split_all_gather', 'dsar'):
    assert summed[name] < blocks[name]


def test_auto_takes_the_union_for_blocks_that_workers_choose_alike():
  """Bits for blocks instead of indices for values, where most of the bytes are the same."""
  network = Costs.of_network(16, SLOW)
  assert name_of(costs.cheapest(network, Instance(16, N, 5e4, 5e4, unit=256))) == 'union'
  assert name_of(costs.cheapest(network, Instance(16, N, 5e4, 5e4))) == 'split_all_gather'
