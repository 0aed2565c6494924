"""A probe of the mesh at hand: what rounds, bytes, entries and coordinates cost here, for each algorithm."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import tqdm
from absl import logging

from dct_jax.collectives.algorithms import ALGORITHMS, DENSE_RESULTS, number
from dct_jax.collectives.costs import Costs, Instance, features, random_union
from dct_jax.transport import Transport, reduce_stream
from dct_jax.wire.exchanges import Algorithm, Op, Settings

SIZES = (2**12, 2**16, 2**18, 2**20, 2**23)
DENSITIES = (3e-5, 3e-4, 3e-3, 0.03, 0.2, 0.5)
REPEATS = 3
BYTE, COORDINATE = 1, 3  # columns of the costs
PULL = 1.0  # as much as all exchanges that take about as long
COLUMNS = 'seconds of a (round, byte, entry, coordinate)'


def calibrate(transport: Transport, *, seconds: float = 60.0, path: str | os.PathLike | None = None,
              progress: bool = False) -> Costs:
  """Measures every algorithm on random streams, from small ones up, and fits the cost model.

  All workers must call it together.

  Args:
    transport: from `dct_jax.connect`.
    seconds: what it may take, about.
    path: where the result is kept (JSON); it is read from there when it exists and fits the worker count.
    progress: whether worker 0 shows a bar.

  Returns:
    `Costs`, equal on all workers.

  Raises:
    ValueError: if there is only one worker.
  """
  if transport.size < 2:
    raise ValueError('a calibration needs the processes of all workers, and there is only this one: start it '
                     'with python -m dct_jax.netlab run, python -m dct_jax.train.launch, or on every host')
  known = _known(path) if path is not None and os.path.exists(path) else None
  probe = Probe(transport)
  fits = known is not None and known.workers == transport.size
  if not probe.together(np.array([float(not fits)]))[0]:
    assert known is not None
    return known
  if known is not None and transport.rank == 0:
    logging.warning('%s has costs of %d workers; measured anew for %d, and replaced', path, known.workers,
                    transport.size)
  samples = _measure(probe, seconds, progress)
  costs = fit(samples, transport.size)
  if path is not None and transport.rank == 0:
    save(costs, path)
  return costs


def _known(path):
  """Costs from a file, or None if it is older than one of the algorithms."""
  try:
    return load(path)
  except Incomplete as error:
    logging.warning('%s; measured anew, and replaced', error)
    return None


class Incomplete(ValueError):
  """A file of calibrated costs does not have all algorithms."""


def save(costs: Costs, path: str | os.PathLike) -> None:
  """Writes costs as JSON: readable, and small enough to check in."""
  table = dict(zip(ALGORITHMS, costs.table, strict=True))
  with open(path, 'w') as file:
    json.dump({'workers': costs.workers, COLUMNS: table}, file, indent=1)


def load(path: str | os.PathLike) -> Costs:
  """Reads what `save` wrote.

  Raises:
    Incomplete: if an algorithm is missing, as in files from before there was one of that name.
    ValueError: if the file is not one of those.
  """
  try:
    with open(path) as file:
      data = json.load(file)
    table = data[COLUMNS]
    if missing := set(ALGORITHMS) - set(table):
      raise Incomplete(f'the file has no costs of {sorted(missing)}, got {path=}')
    return Costs(tuple(tuple(table[name]) for name in ALGORITHMS), data['workers'])  # type: ignore[misc]
  except (KeyError, TypeError, json.JSONDecodeError, UnicodeDecodeError):
    raise ValueError(f'not a file of calibrated costs, got {path=}') from None


def fit(samples: list[tuple[str, Instance, float]], workers: int) -> Costs:
  """Costs that explain measured times best, by the logarithm of their ratio; a few bad samples do not matter.

  Bytes and entries grow together, so that samples alone do not tell their costs apart. Dense vectors have no
  entries: the cost of a byte is taken from them, and that of the others is drawn towards it.
  """
  rows = {name: ([], []) for name in ALGORITHMS}  # type: ignore[var-annotated]
  for name, instance, seconds in samples:
    amounts = np.array(features(instance)[ALGORITHMS.index(name)], np.float64)
    if name == 'dense':
      amounts[COORDINATE] = 0  # as many as bytes
    rows[name][0].append(amounts)
    rows[name][1].append(seconds)
  explain = lambda name, byte=0.0: _explain(np.array(rows[name][0]), np.array(rows[name][1]), byte)
  dense = explain('dense')
  table = [dense if name == 'dense' else explain(name, dense[BYTE]) for name in ALGORITHMS]
  return Costs(tuple(tuple(float(x) for x in row) for row in table), workers)  # type: ignore[misc]


def _explain(amounts, seconds, byte=0.0):
  """Costs >= 0 with amounts @ costs closest to seconds, and that of a byte near `byte` if that is given."""
  # Every factor of ten in time counts alike, or many tiny exchanges would outvote the few that take long.
  decade = np.floor(np.log10(seconds)).astype(int)
  weight = 1 / np.sqrt(np.array([np.sum(decade == d) for d in decade]))
  biggest = np.maximum(amounts.max(axis=0), 1e-30)
  used = amounts.max(axis=0) > 0

  def errors(logs):
    costs = np.exp(logs) * used
    found = weight * np.log(np.maximum(amounts @ costs, 1e-30) / seconds)
    return np.append(found, PULL * (logs[BYTE] - np.log(byte))) if byte else found

  least = np.log(1e-6 * seconds.min() / biggest)
  begin = np.log(seconds.mean() / biggest / 4)
  solved = scipy.optimize.least_squares(errors, np.maximum(begin, least + 1e-3), bounds=(least, np.inf),
                                        loss='soft_l1', f_scale=0.05)
  return np.exp(solved.x) * used


class Probe:
  """Reductions of random streams on one channel, timed from a common start."""

  def __init__(self, transport: Transport, settings: Settings | None = None):
    self.transport, self._channel = transport, transport.open()
    self._settings = settings or Settings()
    self._reduce = jax.jit(self._traced, static_argnums=(3, 4))
    self._rng = np.random.default_rng(transport.rank)

  def _traced(self, indices, values, algorithm, size, capacity):
    return reduce_stream(indices, values, indices.size, size, self._channel, self._settings,
                         algorithm=algorithm, capacity=capacity)

  def stream(self, size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Random entries of a vector; all of them when `count` is `size`."""
    values = self._rng.standard_normal(count, np.float32)
    if count == size:
      return np.zeros(0, np.uint32), values
    # Distinct by construction: one random place in each of `count` equal gaps.
    edges = np.linspace(0, size, count + 1).astype(np.int64)
    return (edges[:-1] + self._rng.integers(0, np.diff(edges))).astype(np.uint32), values

  def together(self, vector: np.ndarray) -> np.ndarray:
    """The largest of all workers' numbers; also a common start."""
    x = jnp.asarray(vector, jnp.float32)
    _, out = reduce_stream(jnp.zeros(0, jnp.uint32), x, x.size, x.size, self._channel, self._settings,
                           algorithm=int(Algorithm.ALL_GATHER), op=Op.MAX)
    return np.asarray(out)

  def seconds(self, algorithm: str, indices: np.ndarray, values: np.ndarray, size: int,
              capacity: int | None = None) -> float:
    """How long one reduction takes on this worker."""
    self.together(np.zeros(1))
    start = time.perf_counter()
    jax.block_until_ready(self._reduce(indices, values, np.uint32(number(algorithm)), size, capacity))
    return time.perf_counter() - start


def _instances(workers) -> Iterator[Instance]:
  for size, density in itertools.product(SIZES, DENSITIES):
    count = int(size * density)
    if count >= 4:
      union = random_union(size, density, workers)
      for dense_result in (False, True):
        yield Instance(workers, size, count, union, dense_result=dense_result)


def _measure(probe, seconds, progress):
  """(algorithm, instance, seconds), from the cheapest instances up, until the time is used."""
  transport, end = probe.transport, time.monotonic() + seconds
  samples: list[tuple[str, Instance, float]] = []
  last: dict[str, tuple[float, float]] = {}  # bytes and seconds of an algorithm's last instance
  tasks = _tasks(transport.size)
  with tqdm.tqdm(tasks, disable=not progress or transport.rank != 0, desc='calibrating') as bar:
    for name, instance in bar:
      load = _bytes(name, instance)
      before, took = last.get(name, (load, 0.0))
      # Leave out what would not be over in time; all workers leave out the same.
      over = time.monotonic() + (REPEATS + 1) * took * max(1.0, load / before) > end
      enough = sum(s[0] == name for s in samples) >= 4
      if probe.together(np.array([float(over and enough)]))[0]:
        continue
      took = _median_seconds(probe, name, instance)
      last[name] = load, took
      samples.append((name, instance, took))
  return samples


def _tasks(workers) -> list[tuple[str, Instance]]:
  """What is measured: all algorithms, by the bytes they move; the dense one whatever the density, once."""
  tasks, seen = [], set()
  for instance in _instances(workers):
    for name in ALGORITHMS:
      if name in DENSE_RESULTS and (not instance.dense_result or (name, instance.size) in seen):
        continue
      if name == 'dense':
        seen.add((name, instance.size))
      tasks.append((name, instance))
  return sorted(tasks, key=lambda task: _bytes(*task))


def _bytes(name, instance):
  return float(features(instance)[ALGORITHMS.index(name)][BYTE])


def _median_seconds(probe, name, instance):
  entries = instance.size if name == 'dense' else int(instance.entries)
  capacity = None if instance.dense_result else min(instance.size, entries * instance.workers)
  times = []
  for _ in range(REPEATS + 1):
    data = probe.stream(instance.size, entries)
    times.append(probe.seconds(name, *data, instance.size, capacity))
  return float(np.median(probe.together(np.array(times[1:]))))  # the first one compiles
