"""The table of everything: every compressor, and the collectives that carry it.

A new compressor gets one line in COMPRESSORS and is held to all laws of test_laws.py: which collectives carry it,
whether codecs mean anything to it and what its residual makes up for, it says itself.
"""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import dct_jax
from dct_jax import contract
from dct_jax.collectives import all_gather, psum, s2, sparse_all_reduce, union_sum
from dct_jax.collectives.algorithms import ALGORITHMS

# name -> factory(value_codec)
COMPRESSORS = {
    'dct': lambda v: dct_jax.dct_threshold(0.9, 3, dense_below=8, value_codec=v),
    'dct_sort': lambda v: dct_jax.dct_threshold(0.9, 1, selection='sort', dense_below=8, value_codec=v),
    'top_k': lambda v: dct_jax.top_k(0.1, dense_below=8, value_codec=v),
    'bucket_top_k': lambda v: dct_jax.bucket_top_k(3, 32, dense_below=8, value_codec=v),
    'block_top_k': lambda v: dct_jax.block_top_k(0.2, 16, dense_below=8, value_codec=v),
    'random_k': lambda v: dct_jax.random_k(0.2, dense_below=8, value_codec=v),
    'cast': lambda v: dct_jax.cast(v),
    'qsgd': lambda v: dct_jax.qsgd(4, 64, dense_below=8),
    'three_lc': lambda v: dct_jax.three_lc(1.5, dense_below=8),
    'int8': lambda v: dct_jax.int8(dense_below=8),
    'one_bit': lambda v: dct_jax.one_bit(dense_below=8),
    'stochastic_ternary': lambda v: dct_jax.stochastic_ternary(dense_below=8),
    'sampled_top_k': lambda v: dct_jax.sampled_top_k(0.1, 0.2, least=20, dense_below=8, value_codec=v),
    'random_k_shared': lambda v: dct_jax.random_k(0.2, shared=True),
    'identity': lambda v: dct_jax.identity(),
    'power_sgd': lambda v: dct_jax.power_sgd(2),
    'sign_vote': lambda v: dct_jax.sign_vote(),
}
# Those of sparse_all_reduce; 'all_gather' is the collective of that name.
REDUCTIONS = tuple(a for a in ('auto', *ALGORITHMS) if a != 'all_gather')
COLLECTIVES = {
    'all_gather': lambda: all_gather(rungs=3, dense_fallback=False),
    'all_gather_dense': lambda: all_gather(rungs=2, dense_fallback=True),
    'psum': psum,
    'union_sum': lambda: union_sum(rungs=3),
    's2': lambda: s2(0.7, feed_back=True, rungs=3),  # so that even what a sketch loses is made up for
    **{name: lambda name=name: sparse_all_reduce(name, dense_fallback=False, rungs=3) for name in REDUCTIONS},
}
BITWISE = ('all_gather', *REDUCTIONS)  # a dense psum may add in another order
CORE = {'dct', 'qsgd', 'three_lc', 'identity', 'power_sgd'}  # one of each kind; others are built from their parts
PURE = {'int8', 'one_bit', 'stochastic_ternary'}  # have no native kernels
SHAPES = ((17, 13), (), (5,), (257,), (8, 3, 2))  # odd sizes, a scalar, a layer that travels dense




def make(name, value_codec='float32', drain_period=None):
  """A compressor of the table, in error feedback if what it sends are amounts."""
  compressor = COMPRESSORS[name](value_codec)
  if compressor.conserves == contract.NOTHING:
    return compressor
  return dct_jax.error_feedback(compressor, drain_period)


def _derive_pairs():
  """Who carries whom: all that can, but for streams, which take turns at the reductions."""
  turns = itertools.cycle(REDUCTIONS)
  for name in COMPRESSORS:
    compressor = make(name)
    if compressor.summed:
      yield name, 'psum'
      continue
    yield name, 'all_gather'
    if name in CORE:
      yield name, 'all_gather_dense'
    if compressor.stream is not None:
      yield name, next(turns)
      if name in CORE or compressor.stream.unit > 1:
        yield name, 'union_sum'
        yield name, 's2'


PAIRS = list(_derive_pairs())
ALONE = [name for name in COMPRESSORS if make(name).rounds is None]  # whose messages can be read one by one
WITH_CODECS = {name for name in COMPRESSORS if make(name).stream is not None}  # value codecs mean something


def transform(name, collective, axis_name='data', value_codec='float32', **kwargs):
  return dct_jax.compressed_mean(make(name, value_codec), COLLECTIVES[collective](), axis_name, **kwargs)


PARAMS = tuple(jnp.zeros(s) for s in SHAPES)


def one_place(name, collective, workers, marks=()):
  """A case of a test; those with the same id run in one process (conftest.py), which then compiles them once."""
  return pytest.param(name, collective, workers, marks=marks, id=f'{name}-{collective}-{workers}')


QUICK = (2, 3, 8)  # workers: the fewest, an odd number, as many as there are devices


def cases(*counts):
  """Pairs with numbers of workers. All with 3 are quick, and CORE with QUICK workers by the collective of its kind."""
  wanted = lambda name, workers: name in CORE or workers in (3, max(counts))
  quick = lambda name, collective, workers: workers == 3 or (
      name in CORE and collective in ('all_gather', 'psum') and workers in QUICK)
  return [one_place(*pair, n, marks=() if quick(*pair, n) else [pytest.mark.slow])
          for pair in PAIRS for n in counts if wanted(pair[0], n)]


@functools.cache
def simulated(name, collective, workers):
  """(step, first state) on simulated workers, compiled once for all laws."""
  return vmap_runner(transform(name, collective), PARAMS, workers)


@functools.cache
def on_devices(name, collective, workers):
  """The same on real devices."""
  tx, mesh = transform(name, collective), dct_jax.make_mesh(workers)
  _, state, specs = dct_jax.init(tx, PARAMS, mesh)
  step = jax.jit(jax.shard_map(
      lambda g, s: tx.update(tuple(x.reshape(x.shape[1:]) for x in g), s), mesh=mesh,
      in_specs=(P('data'), specs), out_specs=(P(), specs)))
  return step, state


def gradients(workers, steps, dtype=np.float32, seed=0, shapes=SHAPES):
  """[step][layer] arrays with a leading worker axis."""
  rng = np.random.default_rng(seed)
  draw = lambda s: rng.standard_normal((workers, *s)) * 10.0 ** rng.uniform(-2, 1)
  return [tuple(jnp.asarray(draw(s), jnp.float32).astype(dtype) for s in shapes)
          for _ in range(steps)]


def vmap_runner(tx, params, workers):
  """One jitted step of `tx` on simulated workers: (grads, state) -> (updates, state); and a state."""
  update, state = dct_jax.simulate(tx, params, workers)
  step = lambda grads, state: update(grads, state, None)
  step._cache_size = update._cache_size
  return step, state


def decoded(compressor, message, layers, state):
  return compressor.decompress(message[None], layers, state).layers
