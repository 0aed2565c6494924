"""Bias and variance of count-sketches beside their rivals at equal numbers: `python benchmarks/sketch_error.py`.

What is summed are rows of four workers: normal values, and gradients of embedding rows that are as long as a word is
frequent in the workers' tokens of a synthetic text (all tokens of a word agree), or as the root of that (each has a
direction of its own). Every estimate of the sum is made again and again with other keys. Lambda is numbers that travel
over entries of the union. The last line is JSON.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from timing import finish, table

from dct_jax import kernels, tables
from dct_jax.data.words import synthetic
from dct_jax.kernels import hashing

LAMBDAS = flags.DEFINE_list('lambdas', ['0.25', '0.5', '0.57', '1', '2', '4'],
                            'Numbers of a sketch, all of its rows together, over entries of the union.')
ROWS = flags.DEFINE_list('rows', ['1', '2', '3', '5'], 'Rows of sketches; all have equally many numbers in total.')
KEYS = flags.DEFINE_integer('keys', 1000, 'How many keys each estimate is made with.')
SEED = flags.DEFINE_integer('seed', 0, 'Seed of values, of the text, and of the keys.')
WORKERS, TOKENS, WIDTH = 4, 700, 8
INT16, SHRUNK, RANDOM = 'sketch, 1 row, int16', 'sketch, 1 row, shrunk', 'shared random-k'
LOADS = {'normal': 'normal values', 'words': 'rows as long as words are frequent',
         'words_root': 'rows as long as the root of it'}


class Load(NamedTuple):
  """Rows of all workers, numbered by their rank in the union."""

  ids: np.ndarray  # int32[workers, rows]; a number that is no row stands where a worker has none
  values: np.ndarray  # float32[workers, rows, WIDTH]

  @property
  def rows(self) -> int:
    return self.ids.shape[1]

  @property
  def total(self) -> np.ndarray:
    """float32[rows, WIDTH], what is to be estimated."""
    return np.where(self.ids[..., None] < self.rows, self.values, 0).sum(0)


def normal_load(seed):
  values = np.random.default_rng([seed, 1]).standard_normal((WORKERS, 512, WIDTH), np.float32)
  return Load(np.tile(np.arange(512, dtype=np.int32), (WORKERS, 1)), values)


def word_load(seed, power):
  """Rows of words: each has a direction of its own on every worker, and its count to the power as its length."""
  text = synthetic.generate(WORKERS * TOKENS, 2, 2, seed=seed).train.reshape(WORKERS, TOKENS)
  union = np.unique(text)
  counts = np.stack([(x[:, None] == union).sum(0) for x in text])
  directions = np.random.default_rng([seed, 2]).standard_normal((WORKERS, union.size, WIDTH))
  ids = np.where(counts > 0, np.arange(union.size), union.size).astype(np.int32)
  return Load(ids, (counts[..., None]**power * directions).astype(np.float32))


def sketched(load, lam, rows, seed):
  """A sketch of the sum, which is the sum of the workers' sketches, in float32."""
  total = jnp.asarray(load.total)
  ids = jnp.arange(load.rows, dtype=jnp.uint32)
  buckets = max(1, round(lam * total.size / rows))

  def estimate(step):
    keys = hashing.keys(seed, step, rows)
    sketch = kernels.sketch_insert(ids, load.rows, total, keys, buckets=buckets)
    return kernels.sketch_query(ids, load.rows, sketch, keys, unit=WIDTH)

  return estimate


def narrow(load, lam, seed):
  """One row of 16-bit numbers, through the reducer that a training has; at equal lambda it takes half the bytes."""
  reducer = tables.sketch_rows(lam, of='union', values='int16', seed=seed, rungs=1)

  def worker(ids, values, state):
    summed = reducer.reduce(tables.as_stream(ids, values, load.rows), load.rows, state, 'data')
    return summed.values[:load.rows]  # ids are ranks in the union: all rows, in order

  everyone = jax.vmap(worker, in_axes=(0, 0, None), out_axes=None, axis_name='data')
  return lambda step: everyone(load.ids, load.values, reducer.init()._replace(step=step))


def shared_random(load, lam, seed):
  """Entries of the union that all workers draw alike, scaled to be unbiased; from lambda = 1 on all of them."""
  total = jnp.asarray(load.total).reshape(-1)
  kept = round(lam * total.size)

  def estimate(step):
    chosen = jax.random.permutation(jax.random.fold_in(jax.random.key(seed), step), total.size) < kept
    return jnp.where(chosen, total * (total.size / kept), 0)

  return estimate if kept < total.size else lambda step: total


class Moments(NamedTuple):
  """What many estimates say about the truth g."""

  error: float  # E |estimate - g|^2 / |g|^2
  bias: float  # E <estimate, g> / |g|^2 - 1
  bias_z: float  # in standard errors
  entry_z: float  # of the entry whose mean estimate is the most standard errors off


def drawn(estimate: Callable[[jax.Array], jax.Array], keys: int) -> np.ndarray:
  """Estimates with so many keys, float32[keys, entries]."""
  steps = jnp.arange(keys, dtype=jnp.uint32)
  return np.asarray(jax.jit(lambda s: jax.lax.map(estimate, s))(steps)).reshape(keys, -1)


def moments(estimates: np.ndarray, truth: np.ndarray) -> Moments:
  """Of estimates, one a row, of what `truth` is."""
  off, energy = estimates - truth.reshape(-1), float(np.sum(truth.astype(np.float64)**2))
  along = off @ truth.reshape(-1) / energy
  error = float(np.sum(off**2, dtype=np.float64)) / len(off) / energy
  return Moments(error, float(along.mean()), float(_standard_errors(along)),
                 float(np.max(np.abs(_standard_errors(off)))))


def _standard_errors(samples):
  """How far the mean of samples is from zero."""
  spread = samples.std(0) / math.sqrt(len(samples))
  return samples.mean(0) / np.where(spread > 0, spread, 1)


def contenders(load, lam, seed, keys):
  """Moments of each way to estimate the sum, by name."""
  made = {named(r): sketched(load, lam, r, seed) for r in sorted({1, *map(int, ROWS.value)})}
  made |= {INT16: narrow(load, lam, seed), RANDOM: shared_random(load, lam, seed)}
  estimates = {name: drawn(estimate, keys) for name, estimate in made.items()}
  estimates[SHRUNK] = estimates[named(1)] * np.float32(lam / (1 + lam))
  return {name: moments(x, load.total) for name, x in estimates.items()}


def named(rows):
  return f'sketch, {rows} row{"s" * (rows > 1)}'


def show(name, title, found, lambdas, cell):
  names = list(found[lambdas[0]])
  table(name, title, [('', *(f'lambda {x:g}' for x in lambdas))] + [
      (name, *(cell(found[x][name]) for x in lambdas)) for name in names])


def main(_):
  lambdas, seed, result = [float(x) for x in LAMBDAS.value], SEED.value, {}
  loads = {'normal': normal_load(seed), 'words': word_load(seed, 1.0), 'words_root': word_load(seed, 0.5)}
  for kind, load in loads.items():
    result[kind] = found = {lam: contenders(load, lam, seed, KEYS.value) for lam in lambdas}
    long = np.sort((load.total**2).sum(1))[::-1]
    print(f'\n{LOADS[kind]}: {load.rows} rows of {WIDTH}, {KEYS.value} keys; the ten longest rows have '
          f'{long[:10].sum() / long.sum():.0%} of the energy')
    show(f'{kind}_error', 'relative error', found, lambdas, lambda m: f'{m.error:.3f}')
    show(f'{kind}_bias', 'bias along the truth (standard errors)', found, lambdas,
         lambda m: f'{m.bias:+.4f} ({m.bias_z:+.1f})')
    show(f'{kind}_entries', 'largest bias of an entry, standard errors', found, lambdas, lambda m: f'{m.entry_z:.1f}')
  tried = sum(load.total.size for load in loads.values()) * len(lambdas) * (len(found[lambdas[0]]) - 1)
  finish(summary(result, lambdas) | {
      'entry_z_of_normals': round(statistics.NormalDist().inv_cdf(1 - 0.25 / tried), 2),
      'native': kernels.native_in_use()}, seed=seed)


def summary(result, lambdas):
  """Numbers by which a change would be noticed."""
  unbiased = [m for found in result.values() for by in found.values() for name, m in by.items()
              if name != SHRUNK]
  worst = lambda name, law: max(abs(found[x][name].error / law(x) - 1) for found in result.values() for x in lambdas)
  told = {'bias_z': max(abs(m.bias_z) for m in unbiased), 'entry_z': max(m.entry_z for m in unbiased),
          'shrunk_off_its_law': worst(SHRUNK, lambda x: 1 / (1 + x)),
          'one_row_off_its_law': worst(named(1), lambda x: 1 / x)}
  if '3' in ROWS.value:
    told |= {f'three_rows_over_one_{kind}_{x:g}': by[named(3)].error / by[named(1)].error
             for kind, found in result.items() for x, by in found.items()}
  return {k: round(float(v), 3) for k, v in told.items()}


if __name__ == '__main__':
  app.run(main)
