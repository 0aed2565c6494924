"""The checksum of messages: the same bits everywhere, and errors that belong together are noticed, too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import wire as oracle

from dct_jax import kernels
from dct_jax.kernels import hashing

TRIALS = 200_000  # of each kind of error: more than 2e6 in all
LENGTH = 4096


@pytest.mark.parametrize('body', [0, 1, 2, 7, 8, 9, 1000, 100_003])
def test_kernels_twins_and_oracle_have_the_same(native, body):
  rng = np.random.default_rng(body)
  words = rng.integers(2**32, size=body, dtype=np.uint32)
  with kernels.use_native(native):
    got = np.asarray(jax.jit(lambda dense: kernels.encode(
        jnp.zeros(1, jnp.uint32), jnp.zeros(1), dense, count=0, wanted=0, budget=body + 8, capacity=body + 8,
        universe=1))(words))
  assert got[1] == 6 + body and got[0] >> 16 == 0xDC72
  assert got[5] == oracle.checksum(got, 6 + body)


def test_words_without_a_place_for_it():
  words = np.arange(20, dtype=np.uint32)
  total = np.sum(oracle.shares(np.arange(20, dtype=np.uint32), words), dtype=np.uint32, keepdims=True)
  assert int(hashing.checksum(words, 20, skip=None)) == int(oracle.mix2(total)[0])


def draw(rng, kind):
  """Two arrays of words of a kind."""
  words = lambda: rng.integers(2**32, size=TRIALS, dtype=np.uint32)
  return {
      'random': lambda: (words(), words()),
      'small': lambda: (words() % 16, words() % 16),
      'one bit': lambda: (np.uint32(1) << words() % 32, np.uint32(1) << words() % 32),
      'high half': lambda: (words() << np.uint32(16), words() << np.uint32(16)),
      'floats': lambda: tuple(rng.standard_normal((2, TRIALS)).astype(np.float32).view(np.uint32)),
      'zeros': lambda: (np.zeros(TRIALS, np.uint32), np.zeros(TRIALS, np.uint32)),
  }[kind]()


ERRORS = {
    'swap': lambda a, b, bit: (b, a),
    'flip one bit in both': lambda a, b, bit: (a ^ bit, b ^ bit),
    'flip the highest in both': lambda a, b, bit: (a ^ np.uint32(2**31), b ^ np.uint32(2**31)),
    'clear both': lambda a, b, bit: (a * 0, b * 0),
    'copy one': lambda a, b, bit: (a, a),
    'add and subtract': lambda a, b, bit: (a + bit, b - bit),
}


@pytest.mark.parametrize('kind', ['random', 'small', 'one bit', 'high half', 'floats', 'zeros'])
@pytest.mark.parametrize('neighbours', [True, False])
def test_errors_in_two_words_are_noticed_like_random_ones(kind, neighbours):
  """Of 2^32 one may pass: none does, and no 16 of the 32 bits stay the same more often than chance has it."""
  rng = np.random.default_rng(0)
  i = rng.integers(6, LENGTH, TRIALS).astype(np.uint32)
  j = i + 1 if neighbours else rng.integers(LENGTH, 2 * LENGTH, TRIALS).astype(np.uint32)
  a, b = draw(rng, kind)
  bit = np.uint32(1) << rng.integers(0, 32, TRIALS).astype(np.uint32)
  for name, error in ERRORS.items():
    c, d = error(a, b, bit)
    changed = (a != c) | (b != d)
    if not changed.any():
      continue
    sums = [oracle.shares(i, x) + oracle.shares(j, y) for x, y in ((a, b), (c, d))]
    difference = (sums[0] - sums[1])[changed]
    assert difference.all(), name
    for shift in (0, 8, 16):
      same = ((difference >> np.uint32(shift)) & np.uint32(0xFFFF) == 0).sum()
      chance = changed.sum() / 2**16
      assert same <= chance + 6 * np.sqrt(chance) + 2, (name, shift, same)


def test_shifts_runs_and_bursts_are_noticed():
  """Whole stretches move by a word, are lost, come twice, or change all over; in floats with many zeros."""
  rng = np.random.default_rng(0)
  words = rng.standard_normal(512).astype(np.float32).view(np.uint32) * (rng.random(512) < 0.5).astype(np.uint32)
  words[1] = words.size
  right, accepted, tried = oracle.checksum(words, words.size), 0, 0
  for _ in range(20_000):
    start, length = rng.integers(6, 400), rng.integers(2, 100)
    broken, stretch = words.copy(), slice(start, start + length)
    kind = rng.integers(5)
    if kind == 0:
      broken[stretch] = np.roll(words[stretch], rng.choice([-1, 1]))
    elif kind == 1:
      broken[stretch] = 0
    elif kind == 2:
      broken[stretch] = words[start - 1]
    elif kind == 3:
      broken[stretch] ^= np.uint32(rng.choice([1, 0x80000000, 0xFFFFFFFF]))
    else:
      broken[stretch] = words[stretch][::-1]
    if (broken != words).any():
      tried += 1
      accepted += oracle.checksum(broken, words.size) == right
  assert accepted == 0 and tried > 15_000


def test_a_single_word_is_always_noticed():
  """Whatever the bit, and wherever."""
  places = np.arange(1000, dtype=np.uint32)
  rng = np.random.default_rng(1)
  for bit in range(32):
    words = rng.integers(2**32, size=1000, dtype=np.uint32)
    assert (oracle.shares(places, words) != oracle.shares(places, words ^ np.uint32(1 << bit))).all()
