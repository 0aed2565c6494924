"""Parts of linear messages: integers add, bits OR, floats add, through XLA and through a transport."""

import concurrent.futures

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import dct_jax
from dct_jax import native
from dct_jax.collectives.parts import ONE_ROUND_WORDS, Summation, merged
from dct_jax.contract import ADD_F32, ADD_U32, MAX_U32, OR_U32, Part
from dct_jax.transport import local_group


def parts_of(bits):
  return (Part(ADD_U32, 3), Part(OR_U32, bits), Part(ADD_F32, 5), Part(ADD_F32, 2), Part(MAX_U32, 4))


def draw(workers, bits):
  rng = np.random.default_rng([workers, bits])
  ints = lambda n: rng.integers(0, 2**32, (workers, n), dtype=np.uint32)
  floats = rng.integers(-100, 100, (workers, 7)).astype(np.float32)  # exact in any order
  pieces = ints(3), ints(bits) & ints(bits) & ints(bits), floats, ints(4)
  want = np.concatenate([
      pieces[0].sum(0, dtype=np.uint32), np.bitwise_or.reduce(pieces[1], axis=0),
      floats.sum(0).view(np.uint32), pieces[3].max(0)])
  return np.concatenate([x.view(np.uint32) for x in pieces], axis=1), want


@pytest.mark.parametrize('workers', [2, 3, 5, 8])
@pytest.mark.parametrize('bits', [1, ONE_ROUND_WORDS + 7])
def test_sums_equal_the_oracle(workers, bits):
  """On simulated workers and on devices, where JAX must see that all get the same; large bitmaps are dealt out."""
  messages, want = draw(workers, bits)
  add = lambda x: Summation()(x, parts_of(bits), 'data')
  np.testing.assert_array_equal(jax.jit(jax.vmap(add, axis_name='data', out_axes=None))(messages), want)
  real = jax.jit(jax.shard_map(lambda x: add(x[0]), mesh=dct_jax.make_mesh(workers), in_specs=P('data'),
                               out_specs=P()))
  np.testing.assert_array_equal(real(messages), want)
  text = real.lower(messages).compile().as_text()
  moved = [line for line in text.splitlines() if ' all-gather(' in line or ' all-to-all(' in line]
  assert moved and all('u32[' in line.split('=')[1] for line in moved), moved  # a bit travels as a bit
  assert (' all-to-all(' in text) == (workers > 4 and bits > ONE_ROUND_WORDS)


@pytest.mark.skipif(not native.AVAILABLE, reason='a transport needs the native code')
@pytest.mark.parametrize('workers', [2, 3])
@pytest.mark.parametrize('bits', [1, ONE_ROUND_WORDS + 7])
def test_a_transport_gives_the_same_and_sends_what_is_accounted(workers, bits):
  messages, want = draw(workers, bits)
  parts, group = merged(parts_of(bits)), local_group(workers, 20.0)
  ways = [Summation(transport) for transport in group]
  cuts = np.cumsum([p.words for p in parts])[:-1]
  compiled = [jax.jit(lambda *x, add=add: add.over_transport(x, parts)).lower(*np.split(messages[0], cuts)).compile()
              for add in ways]
  with concurrent.futures.ThreadPoolExecutor(workers) as pool:
    totals = list(pool.map(lambda i: np.asarray(compiled[i](*np.split(messages[i], cuts))), range(workers)))
  for total in totals:
    np.testing.assert_array_equal(total, want)
  sent = np.mean([transport.traffic().sent_bytes for transport in group])
  accounted = ways[0].sent_bytes(parts, workers)
  assert abs(accounted - sent) <= 0.01 * sent, (accounted, sent)


def test_neighbours_are_merged():
  assert merged(parts_of(9)) == (Part(ADD_U32, 3), Part(OR_U32, 9), Part(ADD_F32, 7), Part(MAX_U32, 4))
  assert merged((Part(ADD_U32, 1), Part(OR_U32, 0), Part(ADD_U32, 2))) == (Part(ADD_U32, 3),)


def test_a_message_of_another_length_is_refused():
  with pytest.raises(ValueError, match='words of its parts'):
    Summation()(jnp.zeros(4, jnp.uint32), parts_of(9), None)


def test_nothing_to_add_up_and_unknown_operations():
  add = jax.vmap(lambda x: Summation()(x, [Part(OR_U32, 0)], 'data'), axis_name='data')
  nothing = add(jnp.zeros((3, 0), jnp.uint32))
  assert nothing.shape == (3, 0)
  with pytest.raises(ValueError, match='one of'):
    merged([Part('xor_u32', 1)])
