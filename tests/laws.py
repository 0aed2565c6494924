"""The table of everything: every compressor, and the collectives that carry it.

A new compressor gets one line in COMPRESSORS and is held to all laws of test_laws.py.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import dct_jax
from dct_jax.collectives import all_gather, psum, sparse_all_reduce
from dct_jax.collectives.algorithms import ALGORITHMS

# name -> (factory(value_codec), the collective that carries it)
COMPRESSORS = {
    'dct': (lambda v: dct_jax.dct_threshold(0.9, 3, dense_below=8, value_codec=v), 'all_gather'),
    'dct_sort': (lambda v: dct_jax.dct_threshold(
        0.9, 1, selection='sort', dense_below=8, value_codec=v), 'all_gather'),
    'top_k': (lambda v: dct_jax.top_k(0.1, dense_below=8, value_codec=v), 'all_gather'),
    'bucket_top_k': (lambda v: dct_jax.bucket_top_k(
        3, 32, dense_below=8, value_codec=v), 'all_gather'),
    'block_top_k': (lambda v: dct_jax.block_top_k(
        0.2, 16, dense_below=8, value_codec=v), 'all_gather'),
    'random_k': (lambda v: dct_jax.random_k(0.2, dense_below=8, value_codec=v), 'all_gather'),
    'cast': (lambda v: dct_jax.cast(v), 'all_gather'),
    'qsgd': (lambda v: dct_jax.qsgd(4, 64, dense_below=8), 'all_gather'),
    'three_lc': (lambda v: dct_jax.three_lc(1.5, dense_below=8), 'all_gather'),
    'int8': (lambda v: dct_jax.int8(dense_below=8), 'all_gather'),
    'one_bit': (lambda v: dct_jax.one_bit(dense_below=8), 'all_gather'),
    'stochastic_ternary': (lambda v: dct_jax.stochastic_ternary(dense_below=8), 'all_gather'),
    'sampled_top_k': (lambda v: dct_jax.sampled_top_k(
        0.1, 0.2, least=20, dense_below=8, value_codec=v), 'all_gather'),
    'random_k_shared': (lambda v: dct_jax.random_k(0.2, shared=True), 'psum'),
    'identity': (lambda v: dct_jax.identity(), 'psum'),
}
# Those of sparse_all_reduce; 'all_gather' is the collective of that name.
REDUCTIONS = tuple(a for a in ('auto', *ALGORITHMS) if a != 'all_gather')
COLLECTIVES = {
    'all_gather': lambda: all_gather(rungs=3, dense_fallback=False),
    'all_gather_dense': lambda: all_gather(rungs=2, dense_fallback=True),
    'psum': psum,
    **{name: lambda name=name: sparse_all_reduce(name, dense_fallback=False, rungs=3) for name in REDUCTIONS},
}
PAIRS = [(name, 'all_gather') for name, (_, c) in COMPRESSORS.items() if c == 'all_gather'] + [
    ('dct', 'all_gather_dense'), ('qsgd', 'all_gather_dense'), ('three_lc', 'all_gather_dense'),
    ('random_k_shared', 'psum'), ('identity', 'psum')] + [
    ('top_k', 'recursive_double'), ('block_top_k', 'recursive_double'), ('dct', 'split_all_gather'),
    ('top_k', 'dsar'), ('bucket_top_k', 'auto'), ('random_k', 'dense')]
BITWISE = ('all_gather', *REDUCTIONS)  # a dense psum may add in another order
# What such a quantizer sends and keeps adds up to rounding only, not bit for bit.
ROUNDED = {'int8', 'one_bit', 'qsgd', 'stochastic_ternary', 'three_lc'}
WITHOUT_CODECS = ROUNDED | {'random_k_shared', 'identity'}  # value codecs mean nothing to them
CORE = {'dct', 'qsgd', 'three_lc', 'identity'}  # one of each kind; others are built from their parts
PURE = {'int8', 'one_bit', 'stochastic_ternary'}  # have no native kernels
SHAPES = ((17, 13), (), (5,), (257,), (8, 3, 2))  # odd sizes, a scalar, a layer that travels dense


def make(name, value_codec='float32', drain_period=None):
  return dct_jax.error_feedback(COMPRESSORS[name][0](value_codec), drain_period)


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


__all__ = ['BITWISE', 'COLLECTIVES', 'COMPRESSORS', 'CORE', 'PAIRS', 'PURE', 'ROUNDED',
           'SHAPES', 'WITHOUT_CODECS', 'decoded', 'gradients', 'make', 'vmap_runner']
