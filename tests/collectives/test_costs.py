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
  np.testing.assert_allclose(got[:, 0], [1, 2, 2, 2, 2])
  np.testing.assert_allclose(got[0, 1], 3 * dense)
  np.testing.assert_allclose(got[1, 1], 2 * dense)
  np.testing.assert_allclose(got[4, 1], 2 * 0.75 * dense)
  assert got[4, 2] == 0
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
