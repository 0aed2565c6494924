"""Workers as threads of this process, connected by socket pairs."""

import functools
import threading
import time

import jax
import numpy as np
import pytest

from dct_jax import transport
from dct_jax.collectives.algorithms import ALGORITHMS
from dct_jax.wire.exchanges import Op, Settings


def in_threads(body, workers):
  """[body(worker)] for all at once; the first error is raised when all have ended."""
  results, errors = [None] * len(workers), []

  def work(i):
    try:
      results[i] = body(workers[i])
    except BaseException as error:
      errors.append(error)

  threads = [threading.Thread(target=work, args=(i,)) for i in range(len(workers))]
  for t in threads:
    t.start()
  for t in threads:
    t.join()
  if errors:
    raise errors[0]
  return results


def run_workers(size, body, timeout=30.0, deadline=60.0):
  """body(transport) on one thread a worker; their results in order, or the first error."""
  group = transport.local_group(size, timeout, deadline)

  def work(t):
    try:
      return body(t)
    except BaseException:
      t.close()  # the others must not wait
      raise

  try:
    return in_threads(work, group)
  finally:
    for t in group:
      t.close()


def reducer(channel, size=50, algorithm='split_all_gather', op='sum', settings=None, dtype=np.float32):
  """A compiled reduction of three entries."""
  call = lambda index, value: transport.reduce_stream(
      index, value, 3, size, channel, settings or Settings(), algorithm=ALGORITHMS.index(algorithm), op=Op[op.upper()])
  arguments = jax.device_put((np.array([1, 5, 20], np.uint32), np.ones(3, dtype)))
  compiled = jax.jit(call).lower(*arguments).compile()
  return lambda: jax.block_until_ready(compiled(*arguments))


def error_of(call):
  """The text of its error and the seconds until then."""
  begin = time.monotonic()
  # What fails before the call has returned is a ValueError to JAX's fast way through C++.
  with pytest.raises((jax.errors.JaxRuntimeError, ValueError)) as error:
    call()
  return str(error.value), time.monotonic() - begin


class Group:
  """Connected workers, each with an open channel and functions that are compiled once.

  XLA runs a program on the thread that asked for it when it does nothing but call us and its arguments are
  there. Any other goes to a pool, and workers that wait for each other in there starve: keep computation out of
  the functions here.
  """

  def __init__(self, size):
    self.transports = transport.local_group(size, 20.0)
    self.channels = [t.open() for t in self.transports]
    self.size = size
    self._compiled = {}

  def sent(self):
    return np.array([t.traffic().sent_bytes for t in self.transports])

  def call(self, key, make, arguments):
    """make(channel) compiled for every worker and called with arguments[worker]."""
    with jax.enable_x64(True):
      arguments = jax.block_until_ready(jax.device_put(arguments))
      if key not in self._compiled:
        self._compiled[key] = [jax.jit(make(c)).lower(*arguments[0]).compile() for c in self.channels]
    compiled = self._compiled[key]
    return in_threads(lambda i: jax.tree.map(np.asarray, compiled[i](*arguments[i])), range(self.size))

  def reduce(self, streams, size, *, algorithm, op='sum', seed=0, settings=None, capacity=None, pad=None):
    """reduce_stream of [(indices, values)]; holds replicas and accounts to their laws.

    Streams are padded to `pad` entries, or `size`, so that another number of entries is no other program.

    Returns:
      Entries of the result, mean bytes sent, and the result.
    """
    settings = settings or Settings()
    dtype = streams[0][1].dtype
    most = pad or size
    key = (size, most, dtype.name, op, settings, capacity)
    make = lambda channel: lambda index, value, count, chosen, seed: transport.reduce_stream(
        index, value, count, size, channel, settings, algorithm=chosen, op=Op[op.upper()], seed=seed, capacity=capacity)
    arguments = []
    for index, value in streams:
      rest = np.full(most - index.size, 2**32 - 1, np.uint32), np.full(most - index.size, 77, dtype)
      arguments.append((np.concatenate([index, rest[0]]).astype(np.uint32), np.concatenate([value, rest[1]]),
                        np.uint32(index.size), np.uint32(ALGORITHMS.index(algorithm)), np.uint32(seed)))
    before = self.sent()
    results = self.call(key, make, arguments)
    assert_replicas(results)
    info, out = results[0]
    assert info[1] == (self.sent() - before).sum() // self.size
    return int(info[0]), int(info[1]), out


def assert_replicas(results):
  """Law 2: the same bits on every worker."""
  first = jax.tree.leaves(results[0])
  for other in results[1:]:
    for x, y in zip(first, jax.tree.leaves(other), strict=True):
      assert (x.shape, x.dtype, x.tobytes()) == (y.shape, y.dtype, y.tobytes())


@functools.cache
def group(size):
  """Shared by all tests of a process; a test that breaks a channel makes its own."""
  return Group(size)
