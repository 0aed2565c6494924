"""Streams through XLA: every reduction, and the quantized second half of DSAR."""

import functools

import jax
import numpy as np
import pytest

import dct_jax
from dct_jax.collectives.streams import Exchange

WORKERS, SIZE, COUNT = 3, 200, 40
REDUCE = {'sum': np.add, 'max': np.maximum, 'min': np.minimum, 'product': np.multiply, 'or': np.bitwise_or}
NEUTRAL = {'sum': 0, 'max': -np.inf, 'min': np.inf, 'product': 1, 'or': 0}


def draw(dtype):
  """Streams of some workers, with other numbers of entries, and the same as dense vectors of what `absent` says."""
  rng = np.random.default_rng(0)
  indices = np.stack([np.sort(rng.choice(SIZE, COUNT, replace=False)) for _ in range(WORKERS)]).astype(np.uint32)
  values = (rng.integers(0, 2**32, (WORKERS, COUNT), dtype=np.uint32) if dtype == 'uint32' else
            rng.standard_normal((WORKERS, COUNT)).astype(np.float32))
  return dct_jax.Stream(indices, values, np.array([COUNT, COUNT - 7, 0], np.uint32))


def dense(stream, absent):
  out = np.full((WORKERS, SIZE), absent, np.asarray(stream.values).dtype)
  for row, index, value, count in zip(out, *map(np.asarray, stream), strict=True):
    row[index[:count]] = value[:count]
  return out


def run(stream, **options):
  exchange = Exchange(SIZE, 'data', **options)
  return jax.jit(jax.vmap(lambda s: exchange(s)[0], axis_name='data'))(stream)


@pytest.mark.parametrize(('op', 'dtype'), [*((op, 'float32') for op in REDUCE if op != 'or'),
                                           *((op, 'uint32') for op in ('or', 'max', 'min'))])
def test_reductions_are_those_of_numpy(op, dtype):
  stream = draw(dtype)
  low, high = (0, 2**32 - 1) if dtype == 'uint32' else (-np.inf, np.inf)
  absent = {'max': low, 'min': high}.get(op, NEUTRAL[op])
  want = functools.reduce(REDUCE[op], dense(stream, absent))
  np.testing.assert_array_equal(run(stream, algorithm='dsar', op=op)[0], want)
  sparse = run(stream, algorithm='split_all_gather', op=op)
  here = np.flatnonzero(dense(stream, 0).any(axis=0))
  assert int(sparse.count[0]) == here.size
  np.testing.assert_array_equal(sparse.indices[0][:here.size], here)
  np.testing.assert_array_equal(sparse.values[0][:here.size], want[here])


@pytest.mark.parametrize('bits', [2, 4, 8])
def test_bits_round_the_sum_of_dsar(bits):
  """To levels of its largest number, at random: otherwise where values differ, and right on average."""
  stream, levels = draw('float32'), 2 ** (bits - 1) - 1
  exact = dense(stream, 0).sum(axis=0)
  rounded = [np.asarray(run(stream._replace(values=stream.values * np.float32(2.0**i)), algorithm='dsar', bits=bits)[0])
             / 2.0**i for i in range(8)]
  unit = np.abs(exact).max() / levels
  for x in rounded:
    np.testing.assert_allclose(x / unit, np.round(x / unit), atol=1e-4)
    assert 0 < np.abs(x - exact).max() < unit * 1.001
  assert len({x.tobytes() for x in rounded}) == 8
  assert np.abs(np.mean(rounded, axis=0) - exact).mean() < 0.6 * np.abs(rounded[0] - exact).mean()
