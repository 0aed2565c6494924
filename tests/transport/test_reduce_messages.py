"""Messages of real compressors, reduced: equal to decompressing all of them, with honest accounts."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import workers
from reference import sparse_allreduce as oracle
from reference import wire

import dct_jax
from dct_jax import transport
from dct_jax.collectives.algorithms import ALGORITHMS
from dct_jax.wire.exchanges import Settings

SHAPES = ((17, 13), (5,), (257,), (8, 3, 2))  # the second one travels whole
COMPRESSORS = {
    'top_k': lambda: dct_jax.top_k(0.1, dense_below=8),
    'block_top_k': lambda: dct_jax.block_top_k(0.2, 16, dense_below=8),
    'dct_half': lambda: dct_jax.dct_threshold(0.9, 3, dense_below=8, value_codec='float16'),
    'no_dense_layer': lambda: dct_jax.top_k(0.3, dense_below=0, value_codec='bfloat16'),
}
# name -> (words, live) of each worker; None is as much as it likes
CASES = {
    'usual': lambda number: [(None, 1)] * number,
    'tight': lambda number: [(40 + 9 * w, 1) for w in range(number)],
    'one_empty': lambda number: [(None, 1)] * (number - 1) + [(0, 1)],
    'all_empty': lambda number: [(0, 1)] * number,
    'one_nan': lambda number: [(None, 0)] + [(None, 1)] * (number - 1),
}


@functools.cache
def compiled(name):
  """The compressor, and compress and decompress for our shapes."""
  compressor = COMPRESSORS[name]()
  zeros = tuple(jnp.zeros(s) for s in SHAPES)
  capacity, state = compressor.size(zeros).largest, compressor.init(zeros)
  compress = jax.jit(lambda layers, words, live: compressor.compress(
      layers, zeros, state, dct_jax.Room(words, live, capacity)))
  decompress = jax.jit(lambda messages: compressor.decompress(messages, zeros, state))
  return compressor, compress, decompress, capacity


def packed_of(name, case, number, seed=0):
  """Every worker's Packed, in NumPy."""
  _, compress, _, capacity = compiled(name)
  rng = np.random.default_rng(seed)
  out = []
  for words, live in CASES[case](number):
    layers = tuple(rng.standard_normal(s).astype(np.float32) for s in SHAPES)
    packed = compress(layers, np.uint32(capacity if words is None else words), np.uint32(live))
    out.append(jax.tree.map(np.asarray, packed))
  return out


def arguments_of(name, packed, algorithm, seed=0):
  """What one worker gives to `exchange`: its message, the algorithm, and all that is pending."""
  layout = compiled(name)[0].stream.layout(packed.residual)
  sparse, dense = layout.split(packed.residual)
  return packed.message, np.uint32(ALGORITHMS.index(algorithm)), np.uint32(seed), (*sparse, *dense)


def calls_of(name, settings):
  """(blocking, start, wait), each channel -> function."""
  stream = compiled(name)[0].stream
  dense = len(stream.layout(tuple(np.zeros(s) for s in SHAPES)).dense)
  named = {'dense_layers': dense, 'unit': stream.unit}

  def blocking(channel):
    return lambda message, algorithm, seed, pending: transport.reduce_messages(
        message, pending, channel, settings, algorithm=algorithm, seed=seed, pending=pending,
        value_codec=stream.value_codec, **named)

  def start(channel):
    return lambda message, algorithm, seed, pending: transport.start_messages(
        message, pending, channel, settings, algorithm=algorithm, seed=seed, pending=pending,
        value_codec=stream.value_codec, **named)

  def wait(channel):
    return lambda handle, message, algorithm, seed, pending: transport.wait_messages(
        handle, message, pending, channel, settings, algorithm=algorithm, seed=seed, pending=pending,
        value_codec=stream.value_codec, **named)

  return blocking, start, wait


def sums_of(name, packed, algorithm):
  """The reduced layers as the oracles have them, in the order that they travel in."""
  compressor, _, decompress, _ = compiled(name)
  layout = compressor.stream.layout(packed[0].residual)
  flat = lambda layers: np.concatenate([np.asarray(x).ravel() for part in layout.split(layers) for x in part])
  if algorithm == 'dense':
    vectors = [flat(p.residual) for p in packed]
  else:
    vectors = [flat(decompress(p.message[None]).layers) for p in packed]
  here = np.ones(vectors[0].size, bool)
  return oracle.reduce([(v, here) for v in vectors], algorithm)[0]


def coordinates(name, message):
  """Which coordinates a message speaks of, in the order that they travel in; read by the wire's oracle."""
  stream = compiled(name)[0].stream
  layout = stream.layout(tuple(np.zeros(s) for s in SHAPES))
  there = [np.zeros(layout.sizes[i], bool) for i in (*layout.sparse, *layout.dense)]
  if message[1] == wire.HEADER_WORDS:
    return np.concatenate(there)
  read = wire.decode(message, universe=layout.universe, unit=stream.unit, num_dense=layout.num_dense,
                     value_codec=stream.value_codec)
  first = 0
  for x in there[:len(layout.sparse)]:
    units = -(-x.size // stream.unit)
    for u in read.indices[(read.indices >= first) & (read.indices < first + units)] - first:
      x[u * stream.unit:(u + 1) * stream.unit] = True
    first += units
  for x in there[len(layout.sparse):]:
    x[:] = True
  return np.concatenate(there)


def mean(numbers):
  """Rounded up."""
  return -(-int(np.sum(numbers)) // len(numbers))


def check_info(info, name, packed, algorithm):
  heads = np.stack([p.message[:6] for p in packed]).astype(np.int64)
  assert info.nonfinite == (heads[:, 4] & 1).sum()
  assert info.corrupt == 0
  assert info.wanted == heads[:, 2].max()
  if algorithm == 'dense':
    total = sum(x.size for x in packed[0].residual)
    assert (info.encoded, info.missing, info.entries) == (total + 6, 0, total)
    return
  entries = [compiled(name)[2](p.message[None]).entries[0] for p in packed]
  assert info.encoded == mean(heads[:, 1])
  assert info.missing == mean(np.maximum(heads[:, 2] - heads[:, 1], 0))
  assert info.entries == mean(entries)
  union = np.any([coordinates(name, p.message) for p in packed], axis=0)
  if algorithm in ('all_gather', 'union'):
    assert info.union == union.sum()
  else:  # where a sum was dense on the way, a zero does not tell
    assert np.count_nonzero(sums_of(name, packed, algorithm)) <= info.union <= union.sum()


@pytest.mark.parametrize('number', [2, 3, 5])
@pytest.mark.parametrize('name', COMPRESSORS)
def test_reduced_messages_are_the_decompressed_ones(name, number):
  """Laws 2, 3 and 4 for all algorithms, with empty messages, a worker without a gradient, and tight room."""
  group = workers.group(number)
  blocking, _, _ = calls_of(name, Settings())
  for case in CASES:
    packed = packed_of(name, case, number)
    for algorithm in ALGORITHMS:
      before = group.sent()
      results = group.call(name, blocking, [arguments_of(name, p, algorithm) for p in packed])
      workers.assert_replicas(results)
      info, sums = results[0]
      np.testing.assert_array_equal(
          np.concatenate([x.ravel() for x in sums]), sums_of(name, packed, algorithm), f'{case} {algorithm}')
      check_info(info, name, packed, algorithm)
      assert info.sent == mean(group.sent() - before)
    if case == 'tight':
      assert any(p.message[2] > p.message[1] for p in packed)


@pytest.mark.parametrize(('name', 'units'), [('top_k', 221 + 257 + 48 + 1), ('block_top_k', 14 + 17 + 3 + 1)])
def test_union_sends_a_bit_a_unit_and_the_values_of_the_union(name, units):
  """Layers that travel whole are one unit. Frames have 28 bytes of their own, parcels 96."""
  number, head = 4, 28 + 96
  packed = packed_of(name, 'usual', number)
  info, _ = workers.group(number).call(
      name, calls_of(name, Settings())[0], [arguments_of(name, p, 'union') for p in packed])[0]
  values = 2 * (head * number + 4 * int(info.union)) * (number - 1)
  assert info.sent == (head + 4 * -(-units // 32)) * (number - 1) + -(-values // number)


@pytest.mark.parametrize('name', ['top_k', 'block_top_k'])
def test_start_and_wait_are_the_blocking_call(name):
  """Several exchanges of one channel may be on their way; wait gives the oldest."""
  group = workers.group(3)
  blocking, start, wait = calls_of(name, Settings())
  todo = [(case, algorithm) for case in ('usual', 'one_empty') for algorithm in ALGORITHMS]
  everything = [packed_of(name, case, 3, seed=i) for i, (case, _) in enumerate(todo)]
  arguments = [[arguments_of(name, p, algorithm) for p in packed]
               for packed, (_, algorithm) in zip(everything, todo, strict=True)]
  want = [group.call(name, blocking, a)[0] for a in arguments]
  handles = [group.call((name, 'start'), start, a) for a in arguments]
  for i, (handle, a) in enumerate(zip(handles, arguments, strict=True)):
    results = group.call((name, 'wait'), wait, [(h, *x) for h, x in zip(handle, a, strict=True)])
    workers.assert_replicas([want[i], *results])


def test_channels_do_not_mix_whatever_the_order():
  """Three exchanges on three channels, started and awaited in another order on every worker."""
  name, number = 'top_k', 3
  _, start, wait = calls_of(name, Settings())
  everything = [packed_of(name, 'usual', number, seed=i) for i in range(3)]
  algorithms = ('recursive_double', 'split_all_gather', 'dense')
  want = [sums_of(name, p, a) for p, a in zip(everything, algorithms, strict=True)]

  def body(t):
    channels = [t.open() for _ in range(3)]
    results = [None] * 3
    order = np.roll(range(3), t.rank)
    arguments = [arguments_of(name, everything[c][t.rank], algorithms[c]) for c in range(3)]
    handles = {c: jax.jit(start(channels[c]))(*arguments[c]) for c in order}
    for c in order[::-1]:
      results[c] = jax.tree.map(np.asarray, jax.jit(wait(channels[c]))(handles[c], *arguments[c])[1])
    return results

  for results in workers.run_workers(number, body):
    for got, w in zip(results, want, strict=True):
      np.testing.assert_array_equal(np.concatenate([x.ravel() for x in got]), w)


@pytest.mark.parametrize('word', [3, 5, 9, -1])
def test_a_damaged_message_is_left_out_and_counted(word):
  """With all_gather everybody sees that it is damaged."""
  name, number = 'top_k', 3
  blocking, _, _ = calls_of(name, Settings())
  packed = packed_of(name, 'usual', number)
  bad = packed[1].message.copy()
  bad[word if word >= 0 else int(bad[1]) + word] ^= 4
  broken = [p._replace(message=bad) if w == 1 else p for w, p in enumerate(packed)]
  results = workers.group(number).call(name, blocking, [arguments_of(name, p, 'all_gather') for p in broken])
  workers.assert_replicas(results)
  info, sums = results[0]
  assert (info.corrupt, info.nonfinite) == (1, 0)
  rest = sums_of(name, [packed[0], packed[2]], 'all_gather')
  np.testing.assert_array_equal(np.concatenate([x.ravel() for x in sums]), rest)


def test_a_worker_that_cannot_read_its_own_message_stops_all_at_once():
  """Elsewhere nobody else would see the damage."""
  name = 'top_k'
  blocking, _, _ = calls_of(name, Settings())
  packed = packed_of(name, 'usual', 3)
  packed[1] = packed[1]._replace(message=packed[1].message.copy())
  packed[1].message[9] ^= 4

  def body(t):
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError)) as error:
      jax.jit(blocking(t.open()))(*arguments_of(name, packed[t.rank], 'split_all_gather'))
    return str(error.value)

  messages = workers.run_workers(3, body, timeout=20)
  assert 'cannot read its own message' in messages[1]
  for w in (0, 2):
    assert re.search('has closed its connection|cannot be reached', messages[w]), messages[w]


def test_gathered_messages_are_everybodys():
  packed = packed_of('top_k', 'tight', 4)
  group = workers.group(4)
  results = group.call('gather', lambda c: lambda m: transport.gather_messages(m, c, 4),
                       [(p.message,) for p in packed])
  for rows in results:
    for row, p in zip(rows, packed, strict=True):
      np.testing.assert_array_equal(row[:p.message[1]], p.message[:p.message[1]])


def test_waiting_without_a_start_does_it_now():
  packed = packed_of('top_k', 'tight', 3)
  blocking, _, wait = calls_of('top_k', Settings())
  arguments = [arguments_of('top_k', p, 'split_all_gather') for p in packed]
  group = workers.group(3)
  want = group.call('blocking', blocking, arguments)
  got = group.call('wait', wait, [(np.zeros(1, np.uint32), *a) for a in arguments])
  jax.tree.map(np.testing.assert_array_equal, got, want)
