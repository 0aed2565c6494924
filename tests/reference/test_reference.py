"""Tests of the oracles: goldens worked out by hand from the specification, and properties."""

import ast
import itertools
import pathlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from . import collectives, dct_dp, rivals, select, three_lc, wire

F32 = np.float32
INDEX_CODECS = ['int32', 'gap16', 'bitmap', 'rice']
VALUE_CODECS = ['float32', 'float16', 'bfloat16']
RELAXED = settings(deadline=None, max_examples=150)


def f32(*values):
  """A float32 vector."""
  return np.array(values, F32)


def body(words):
  """The words of a message after its header, as a list."""
  return words[6:].tolist()


def loop_checksum(words):
  """The checksum once more: Python integers, one word after another."""
  total = 0
  for i, word in enumerate(int(word) for word in words):
    if i == 5:
      continue
    key = (i + 1) * 0x9E3779B1 % 2**32
    odd = (key ^ key >> 15) * 0x2C1B3C6D % 2**32 | 1
    total = (total + loop_mix(word ^ key) * odd) % 2**32
  return loop_mix(total)


def loop_mix(x):
  """The mixer on one Python integer."""
  x = (x ^ x >> 16) * 0x7FEB352D % 2**32
  x = (x ^ x >> 15) * 0x846CA68B % 2**32
  return x ^ x >> 16


def resealed(words, **changes):
  """A copy with words replaced (w0=..., w9=...) and the checksum made right again."""
  words = words.copy()
  for name, value in changes.items():
    words[int(name[1:])] = value
  words[5] = loop_checksum(words[:words[1]])
  return words


# Goldens of the wire format.


def test_message_word_by_word():
  """Indices 3 4 10 31 have gaps 3 0 5 20; with b = 1 the quotients are 1 0 2 10."""
  words = wire.encode([3, 4, 10, 31], f32(1, -2, 0.5, 1e6), universe=32, dense=f32(1.5),
                      index_codec='rice', value_codec='float16', wanted=77, nonfinite=True,
                      capacity=14)
  assert words.dtype == np.uint32
  # Bits 01 1 001 00000000001 from the lowest up: positions 1, 2, 5 and 16.
  assert words.tolist() == [
      0xDC720401, 11, 77, 4, 0x01000001, loop_checksum(words[:11]),
      0x00003E00,  # 1.5 and padding
      0x00010026,  # unary
      0x00000005,  # remainders 1 0 1 0
      0xC0003C00,  # 1.0 low, -2.0 high
      0x7BFF3800,  # 0.5 low, 65504 high
      0, 0, 0,
  ]
  message = wire.decode(words, universe=32, num_dense=1, value_codec='float16')
  assert message.dense.tolist() == [1.5]
  assert message.indices.tolist() == [3, 4, 10, 31]
  assert message.values.tolist() == [1, -2, 0.5, 65504]
  assert message[3:] == (4, 77, 11, True)


def test_rice_remainder_across_words():
  """Gaps 0x1ABC 0x2DEF 0x4123 with b = 12: the third remainder straddles two words."""
  # r = 49152 // 3 = 16384, b0 = 14; b = 12..15 all take 1 + 2 words, so 12.
  words = wire.encode([6844, 18604, 35280], f32(1, 2, 3), universe=49152, index_codec='rice')
  assert words[4] == 12 << 24
  # Unary 01 001 00001: positions 1, 4, 9.
  assert body(words)[:3] == [0x00000212, 0x23DEFABC, 0x00000001]
  assert wire.index_section_words([6844, 18604, 35280], 49152, 'rice') == 3


def test_rice_unary_over_two_words():
  """One index of 4, gap 3 with b = 0: three zeros, a one; and 33 ones spill over."""
  assert wire.rice_section([3], 0) == [0b1000]
  assert wire.rice_section(range(33), 0) == [0xFFFFFFFF, 1]
  assert wire.rice_parameter(range(33), 33) == 0


def test_rice_tie_is_in_words():
  """In bits b = 2 and b = 3 (18 each) beat b = 1 (21); in words all tie and 1 wins."""
  assert wire.rice_parameter([3, 4, 10, 31], 32) == 1


def test_gap16_escapes():
  """Gaps 5, 0, 65535 and 2 * 65535 + 7 are the tokens 5 | 0 | E 0 | E E 7."""
  indices = [5, 6, 65542, 196620]
  words = wire.encode(indices, f32(1, 2, 3, 4), universe=200000, index_codec='gap16')
  assert words[0] == 0xDC720200
  assert words[4] == 0
  assert body(words)[:4] == [0x00000005, 0x0000FFFF, 0xFFFFFFFF, 0x00000007]
  assert wire.index_section_words(indices, 200000, 'gap16') == 4  # 7 tokens
  assert wire.decode(words, universe=200000).indices.tolist() == indices
  # A gap of 65534 is the largest plain token.
  words = wire.encode([65534], f32(1), universe=200000, index_codec='gap16')
  assert body(words)[0] == 0xFFFE


def test_bitmap_and_int32():
  """Bits 0, 31, 32 and 39 of 40."""
  indices = [0, 31, 32, 39]
  words = wire.encode(indices, f32(1, 2, 3, 4), universe=40, index_codec='bitmap')
  assert words[0] == 0xDC720300
  assert body(words)[:2] == [0x80000001, 0x00000081]
  assert body(words)[2:] == [0x3F800000, 0x40000000, 0x40400000, 0x40800000]
  words = wire.encode(indices, f32(1, 2, 3, 4), universe=40, index_codec='int32')
  assert words[0] == 0xDC720100
  assert body(words)[:4] == indices


def test_auto_takes_the_smallest_and_the_lowest_id():
  """A tie goes to the lowest id."""
  def chosen(indices, universe):
    words = wire.encode(indices, np.ones(len(indices)), universe=universe)
    return int(words[0] >> 8) & 0xFF
  assert chosen([], 100) == 1  # all but the bitmap are empty
  assert chosen([], 0) == 1
  assert chosen([7], 20) == 1  # int32, gap16 and bitmap: 1 word
  assert chosen([7, 9], 100) == 2  # gap16 1; int32 and Rice 2
  assert chosen([3, 4, 10, 31], 32) == 3  # bitmap 1; gap16 and Rice 2
  # 64 indices, gaps of 9, in 64 * 10: gap16 32, bitmap 20, Rice (b0 = 3; b = 1, 2, 3, 4:
  # 64 * 5 / 32 + 2 = 12; 64 * 3 / 32 + 4 = 10; 64 * 2 / 32 + 6 = 10; 2 + 8 = 10) 10.
  assert chosen(range(9, 640, 10), 640) == 4
  assert wire.rice_parameter(range(9, 640, 10), 640) == 2


def test_empty_message():
  """Nothing selected is a valid message of a bare header."""
  words = wire.encode([], [], universe=1000)
  assert words.tolist() == [0xDC720100, 6, 6, 0, 0, loop_checksum(words)]
  message = wire.decode(words, universe=1000)
  assert (message.count, message.length, message.nonfinite) == (0, 6, False)
  assert len(message.indices) == len(message.values) == len(message.dense) == 0


def test_units_of_several_values():
  """Three values a unit, packed across units: 6 halves are 3 words."""
  words = wire.encode([1, 3], f32(1, 1, 1, -2, -2, -2), universe=4, unit=3, index_codec='int32',
                      value_codec='float16')
  assert body(words) == [1, 3, 0x3C003C00, 0xC0003C00, 0xC000C000]
  message = wire.decode(words, universe=4, unit=3, value_codec='float16')
  assert message.values.tolist() == [1, 1, 1, -2, -2, -2]


def test_bfloat16_packing():
  """bfloat16 is the upper half of a float32."""
  words = wire.encode([0, 1, 2], f32(1, -1, 3.4e38), universe=3, index_codec='int32',
                      value_codec='bfloat16')
  assert words[0] == 0xDC720102
  assert body(words)[3:] == [0xBF803F80, 0x00007F7F]


def test_cast_rounds_to_even_and_saturates():
  """Halves go to the even neighbour; what is too large becomes the limit."""
  assert wire.cast(f32(2049, 2051, 65504, 65519, 65520, -1e30, np.inf), 'float16').tolist() == [
      2048, 2052, 65504, 65504, 65504, -65504, 65504]
  bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0xFF7FFFFF, 0x7F800000], np.uint32)
  assert wire.cast(bits.view(F32), 'bfloat16').view(np.uint32).tolist() == [
      0x3F800000, 0x3F820000, 0x3F810000, 0xFF7F0000, 0x7F7F0000]
  values = f32(1 / 3, np.inf, -1e-20)
  assert wire.cast(values, 'float32').tolist() == values.tolist()
  assert np.isnan(wire.cast(f32(np.nan), 'float16')[0])


def test_checksum():
  """Words that are their keys mix to 0, which any number times is 0: all of the sum is that of the last word."""
  assert loop_mix(0) == 0
  keys = [(i + 1) * 0x9E3779B1 % 2**32 for i in range(3)]
  assert wire.checksum(np.array(keys, np.uint32), 3) == 0
  # mix2(1): 0x7FEB352D ^ (0x7FEB352D >> 15 = 0xFFD6) = 0x7FEBCAFB; times 0x846CA68B is 0x6889F849 in 32 bits.
  one = (0x7FEBCAFB * 0x846CA68B) % 2**32
  one ^= one >> 16
  odd = (keys[2] ^ keys[2] >> 15) * 0x2C1B3C6D % 2**32 | 1
  assert wire.checksum(np.array([*keys[:2], keys[2] ^ 1], np.uint32), 3) == loop_mix(one * odd % 2**32)
  words = np.array([0xDC720100, 8, 8, 1, 0, 12345, 17, 0x3F800000, 7], np.uint32)
  assert wire.checksum(words, 8) == loop_checksum(words[:8])
  words[5] = 54321
  assert wire.checksum(words, 8) == loop_checksum(words[:8])
  assert wire.checksum(words, 9) != wire.checksum(words, 8)


def test_index_bound_by_hand():
  """1000 of 100000: r = 100, b0 = 6."""
  assert wire.index_bound_words(1000, 100000, 'int32') == 1000
  assert wire.index_bound_words(1000, 100000, 'gap16') == 501  # 1001 tokens
  assert wire.index_bound_words(1000, 100000, 'bitmap') == 3125
  # b = 4: 7250 bits = 227 and 125: 352; b = 5: 4125 = 129 and 157: 286 (156.25 up);
  # b = 6: 2562 = 81 and 188: 269; b = 7: 1781 = 56 and 219: 275.
  assert wire.index_bound_words(1000, 100000, 'rice') == 269
  assert wire.index_bound_words(1000, 100000, 'auto') == 269
  assert wire.index_bound_words(0, 1000, 'auto') == 0


def test_entropy_bits():
  """H2(1/2) = 1 and H2(1/4) = 2 - (3/4) log2(3)."""
  assert wire.entropy_bits(1, 2) == 2
  assert wire.entropy_bits(1, 4) == pytest.approx(8 - 3 * np.log2(3))
  assert wire.entropy_bits(0, 9) == wire.entropy_bits(9, 9) == wire.entropy_bits(0, 0) == 0


# Malformed messages. Except for the checksum's own case all of them have a right checksum.


def good(codec='rice'):
  """A message to break: 11 words, indices in words 6 and 7 (Rice), values in 8 to 10."""
  return wire.encode([1, 5, 30], f32(1, 2, 3), universe=40, index_codec=codec, capacity=16)


def broken_messages():
  """Pairs of a reason and the words that must be refused for it."""
  rice, int32, gap16 = good(), good('int32'), good('gap16')
  bitmap = good('bitmap')
  flipped = rice.copy()
  flipped[9] ^= 1
  return [
      ('not a header', rice[:5]),
      ('magic', resealed(rice, w0=0xDC810400)),
      ('version', resealed(rice, w0=0xDC710400)),
      ('less than a header', resealed(rice, w1=5)),
      ('beyond the buffer', rice[:10]),
      ('checksum', flipped),
      ('unknown index codec 0', resealed(rice, w0=0xDC720000)),
      ('unknown index codec 5', resealed(rice, w0=0xDC720500)),
      ('unknown value codec 16', resealed(rice, w0=0xDC720410)),
      ('is not float32', resealed(rice, w0=0xDC720401)),
      ('without a meaning', resealed(rice, w4=rice[4] | 2)),
      ('Rice parameter 40', resealed(rice, w4=40 << 24)),
      ('Rice parameter 1 with', resealed(int32, w4=1 << 24)),
      ('41 indices in a universe', resealed(rice, w3=41)),
      ('too short for its values', resealed(rice, w3=6)),
      ('words of indices', resealed(rice, w1=12)),
      ('words of indices', resealed(int32, w1=13)),
      ('words of indices', resealed(gap16, w1=12)),
      ('words of indices', resealed(bitmap, w1=12)),
      ('int32 indices end early', resealed(int32, w1=11)),
      ('gap16 tokens end early', resealed(gap16, w1=10)),
      ('gap16 tokens end early', resealed(gap16, w6=0xFFFFFFFF, w7=0xFFFFFFFF)),
      ('bitmap ends early', resealed(bitmap, w1=10)),
      ('unary bits end early', resealed(rice, w6=0, w7=0)),
      ('remainders end early', resealed(rice, w1=10)),
      ('bitmap of 4 indices', resealed(bitmap, w7=1)),
      ('index 40 in', resealed(bitmap, w6=0x22, w7=1 << 8)),
      ('index 40 in', resealed(int32, w8=40)),
      ('do not increase', resealed(int32, w7=1)),
      ('do not increase', resealed(int32, w7=31)),
      ('index 65541 in', resealed(gap16, w6=0xFFFF0001, w7=65541 - 65535 - 3)),
  ]


@pytest.mark.parametrize('codec', INDEX_CODECS)
def test_the_message_to_break_is_good(codec):
  """Otherwise the next test would prove nothing."""
  message = wire.decode(resealed(good(codec)), universe=40)
  assert message.indices.tolist() == [1, 5, 30]


@pytest.mark.parametrize('case', range(len(broken_messages())))
def test_malformed_is_refused(case):
  """Each for its own reason."""
  reason, words = broken_messages()[case]
  with pytest.raises(ValueError, match=reason):
    wire.decode(words, universe=40)


def test_encode_refuses_nonsense():
  """What could not be decoded is not encoded."""
  for indices, universe in [([1, 1], 9), ([2, 1], 9), ([-1, 1], 9), ([1, 9], 9)]:
    with pytest.raises(ValueError):
      wire.encode(indices, f32(1, 2), universe=universe)
  with pytest.raises(ValueError):
    wire.encode([1], f32(1, 2), universe=9)
  with pytest.raises(ValueError):
    wire.encode([1], f32(1), universe=2**30 + 1)
  with pytest.raises(ValueError):
    wire.encode([1], f32(1), universe=9, capacity=7)
  with pytest.raises(ValueError):
    wire.encode([1], f32(1), universe=9, index_codec='none')
  with pytest.raises(ValueError):
    wire.encode([1], f32(1), universe=9, value_codec='float64')


# Properties of the wire format.


@st.composite
def index_sets(draw, max_universe=2**30):
  """A universe and an increasing list of indices below it, scattered or clustered."""
  top = draw(st.sampled_from([0, 1, 31, 32, 33, 200, 70000, max_universe]))
  universe = draw(st.integers(0, min(top, max_universe)))
  if universe == 0:
    return universe, []
  low = draw(st.integers(0, universe - 1))
  high = draw(st.sampled_from([universe - 1, min(universe - 1, low + 100)]))
  return universe, sorted(draw(st.sets(st.integers(low, high), max_size=60)))


@st.composite
def messages(draw):
  """The arguments of encode, with a capacity that leaves room."""
  codec = draw(st.sampled_from(INDEX_CODECS + ['auto']))
  # A bitmap of 2^30 bits would be slow.
  universe, indices = draw(index_sets(2**18 if codec == 'bitmap' else 2**30))
  unit = draw(st.integers(1, 3))
  value = st.floats(width=32, allow_nan=False)
  number = len(indices) * unit
  arguments = {
      'universe': universe,
      'unit': unit,
      'dense': f32(*draw(st.lists(value, max_size=5))),
      'index_codec': codec,
      'value_codec': draw(st.sampled_from(VALUE_CODECS)),
      'wanted': draw(st.none() | st.integers(0, 2**32 - 1)),
      'nonfinite': draw(st.booleans()),
  }
  values = f32(*draw(st.lists(value, min_size=number, max_size=number)))
  return indices, values, arguments


def decode_as(words, arguments):
  """Decodes with what both sides know."""
  return wire.decode(words, universe=arguments['universe'], unit=arguments['unit'],
                     num_dense=len(arguments['dense']), value_codec=arguments['value_codec'])


@RELAXED
@given(messages(), st.integers(0, 40))
def test_round_trip(message, spare):
  """Everything comes back, values as the codec rounds them, bit for bit."""
  indices, values, arguments = message
  words = wire.encode(indices, values, **arguments)
  padded = wire.encode(indices, values, **arguments, capacity=len(words) + spare)
  assert padded[:len(words)].tolist() == words.tolist()
  assert not padded[len(words):].any()
  assert int(words[5]) == loop_checksum(words)
  seen = decode_as(padded, arguments)
  codec = arguments['value_codec']
  assert seen.indices.tolist() == indices
  assert seen.values.dtype == seen.dense.dtype == F32
  assert seen.values.tobytes() == wire.cast(values, codec).tobytes()
  assert seen.dense.tobytes() == wire.cast(arguments['dense'], codec).tobytes()
  assert seen.count == len(indices)
  assert seen.length == len(words)
  assert seen.wanted == (len(words) if arguments['wanted'] is None else arguments['wanted'])
  assert seen.nonfinite == arguments['nonfinite']


@pytest.mark.parametrize('index_codec,value_codec',
                         list(itertools.product(INDEX_CODECS + ['auto'], VALUE_CODECS)))
def test_round_trip_of_many(index_codec, value_codec):
  """5,000 indices of 500,000 with every pair of codecs."""
  generator = np.random.default_rng(0)
  indices = np.sort(generator.choice(500_000, 5000, replace=False))
  values = generator.normal(size=5000).astype(F32)
  words = wire.encode(indices, values, universe=500_000, index_codec=index_codec,
                      value_codec=value_codec)
  message = wire.decode(words, universe=500_000, value_codec=value_codec)
  assert message.indices.tolist() == indices.tolist()
  assert message.values.tolist() == wire.cast(values, value_codec).tolist()


@RELAXED
@given(messages(), st.integers(0, 2**30), st.integers(0, 3))
def test_any_flipped_bit_is_noticed(message, where, spare):
  """Including bits of the length, which the buffer or the sections' sizes give away."""
  indices, values, arguments = message
  length = len(wire.encode(indices, values, **arguments))
  words = wire.encode(indices, values, **arguments, capacity=length + spare)
  position = where % (32 * length)
  words[position // 32] ^= np.uint32(1 << (position % 32))
  with pytest.raises(ValueError):
    decode_as(words, arguments)


@RELAXED
@given(messages(), st.integers(0, 2**30))
def test_truncation_is_noticed(message, where):
  """Any shorter buffer."""
  indices, values, arguments = message
  words = wire.encode(indices, values, **arguments)
  with pytest.raises(ValueError):
    decode_as(words[:where % len(words)], arguments)


@RELAXED
@given(messages(), st.integers(7, 60))
def test_a_wrong_length_is_noticed_without_the_checksum(message, length):
  """The sections must add up, so even a resealed length does not pass."""
  indices, values, arguments = message
  words = wire.encode(indices, values, **arguments)
  if length != len(words):
    words = np.concatenate([words, np.zeros(60, np.uint32)])
    with pytest.raises(ValueError):
      decode_as(resealed(words, w1=length), arguments)


@RELAXED
@given(messages(), st.data())
def test_garbage_with_a_right_checksum(message, data):
  """Any words either decode to valid indices or are refused; nothing else is raised."""
  indices, values, arguments = message
  words = wire.encode(indices, values, **arguments)
  for _ in range(3):
    position = data.draw(st.integers(2, len(words) - 1))
    words[position] = data.draw(st.integers(0, 2**32 - 1) | st.integers(0, 40))
  try:
    seen = decode_as(resealed(words), arguments)
  except ValueError:
    return
  assert len(seen.indices) == seen.count
  assert all(first < second for first, second in itertools.pairwise(seen.indices))
  assert all(0 <= index < arguments['universe'] for index in seen.indices)


@RELAXED
@given(index_sets(2**18), st.sampled_from(INDEX_CODECS + ['auto']))
def test_section_sizes(index_set, codec):
  """The exact size is what encode writes and stays within the bound."""
  universe, indices = index_set
  words = wire.encode(indices, np.zeros(len(indices)), universe=universe, index_codec=codec)
  exact = wire.index_section_words(indices, universe, codec)
  assert len(words) == 6 + exact + len(indices)
  assert exact <= wire.index_bound_words(len(indices), universe, codec)


@RELAXED
@given(index_sets())
def test_rice_against_strings(index_set):
  """Rice once more with strings of bits and every parameter tried."""
  universe, indices = index_set
  def packed(bits):
    bits += '0' * (-len(bits) % 32)
    return [int(bits[i:i + 32][::-1], 2) for i in range(0, len(bits), 32)]
  def section(b):
    unary = remainders = ''
    for previous, index in itertools.pairwise([-1] + indices):
      gap = index - previous - 1
      unary += '0' * (gap // 2**b) + '1'
      remainders += f'{gap % 2**b:0{b}b}'[::-1] if b else ''
    return packed(unary) + packed(remainders)
  allowed = [0]
  if indices:
    b0 = max(b for b in range(32) if 2**b <= universe // len(indices))
    allowed = [b for b in range(b0 - 2, b0 + 2) if b >= 0]
  sections = {b: section(b) for b in allowed}
  best = min(sections, key=lambda b: (len(sections[b]), b))
  words = wire.encode(indices, np.zeros(len(indices)), universe=universe, index_codec='rice')
  assert words[4] >> 24 == best
  assert body(words)[:len(sections[best])] == sections[best]


# Selection.


def test_rank():
  """0.29 * 100 is 28.999999999999996 in floating point and 29 here."""
  assert select.rank(100, 0.29) == 29
  assert select.rank(100, np.float64(0.29)) == 29
  assert select.rank(5, 0.1) == 1
  assert select.rank(5, 1) == 5
  assert select.rank(5, 0.99) == 4


def test_threshold_and_mask():
  """|x| sorted is 0 1 2 2 5."""
  x = f32(-2, 0, 5, 2, -1)
  assert [select.threshold(x, rank) for rank in (1, 2, 3, 4, 5)] == [0, 1, 2, 2, 5]
  assert select.threshold(x.reshape(5, 1), 5) == 5
  assert select.dct_mask(x, 2).tolist() == [True, False, True, True, False]
  assert select.dct_mask(x, 0).tolist() == [True, False, True, True, True]
  assert not select.dct_mask(f32(-0.0, 0), 0).any()


def test_top_k():
  """Ties go to the lowest index; zeros are never taken."""
  x = f32(1, -2, 2, 0, 2)
  assert np.flatnonzero(select.top_k_mask(x, 2)).tolist() == [1, 2]
  assert np.flatnonzero(select.top_k_mask(x, 9)).tolist() == [0, 1, 2, 4]
  assert not select.top_k_mask(x, 0).any()
  assert select.top_k_mask(f32(1, 2, 3, 4).reshape(2, 2), 1).tolist() == [
      [False, False], [False, True]]


def test_bucket_top_k():
  """Buckets [1 5 -5], [0 0 0], [3 2]."""
  x = f32(1, 5, -5, 0, 0, 0, 3, 2)
  assert np.flatnonzero(select.bucket_top_k_mask(x, 3, 1)).tolist() == [1, 6]
  assert np.flatnonzero(select.bucket_top_k_mask(x, 3, 3)).tolist() == [0, 1, 2, 6, 7]


def test_block_top_k():
  """Sums of squares of blocks of 2: 2, 9, 0, 9, 4 (the last block is short)."""
  x = f32(1, 1, 0, 3, 0, 0, -3, 0, 2)
  assert select.block_top_k_blocks(x, 2, 1).tolist() == [1]
  assert select.block_top_k_blocks(x, 2, 3).tolist() == [1, 3, 4]
  assert select.block_top_k_blocks(x, 2, 9).tolist() == [0, 1, 3, 4]
  assert select.block_top_k_blocks(f32(0, 1e-30), 1, 2).tolist() == [1]


@RELAXED
@given(st.lists(st.integers(-4, 4), min_size=1, max_size=30), st.integers(0, 35))
def test_top_k_is_a_largest_set(values, k):
  """Nothing left out is larger, or equal and earlier."""
  x = np.array(values, F32)
  mask = select.top_k_mask(x, k)
  assert mask.sum() == min(k, np.count_nonzero(x))
  for i, j in itertools.product(np.flatnonzero(mask), np.flatnonzero(~mask)):
    assert (-abs(x[i]), i) < (-abs(x[j]), j)


@RELAXED
@given(st.lists(st.integers(-4, 4), min_size=1, max_size=30), st.integers(1, 100))
def test_a_fresh_threshold_keeps_the_rest_and_ties(values, percent):
  """N - rank + 1 entries and ties, zeros excepted."""
  x = np.array(values, F32)
  rank = select.rank(len(x), percent / 100)
  tau = select.threshold(x, rank)
  assert rank == max(1, len(x) * percent // 100)
  assert np.count_nonzero(np.abs(x) >= tau) >= len(x) - rank + 1
  assert np.count_nonzero(np.abs(x) > tau) <= len(x) - rank
  kept = select.dct_mask(x, tau)
  assert kept.sum() == sum(1 for value in x if abs(value) >= tau and value != 0)


# Algorithm 1.


def test_three_steps_of_algorithm_1():
  """Five elements, eta = 0.6 (rank 3), L = 2, one worker."""
  oracle = dct_dp.DctDpOracle(1, [(5,)], 0.6, 2)

  # k = 0: sorted 0 1 2 3 4, tau = 2.
  update, = oracle.step([[f32(1, -4, 2, 0, 3)]])
  assert (oracle.tau[0][0], oracle.k) == (2, 1)
  assert oracle.masks[0][0].tolist() == [False, True, True, False, True]
  assert update.tolist() == oracle.sent[0][0].tolist() == [0, -4, 2, 0, 3]
  assert oracle.error[0][0].tolist() == [1, 0, 0, 0, 0]

  # k = 1: W = 2 1 -1 0.5 1 with the old tau; >= keeps the 2.
  update, = oracle.step([[f32(1, 1, -1, 0.5, 1)]])
  assert (oracle.tau[0][0], oracle.k) == (2, 2)
  assert update.tolist() == [2, 0, 0, 0, 0]
  assert oracle.error[0][0].tolist() == [0, 1, -1, 0.5, 1]

  # k = 2: W = 0 1.5 -2 1 1, sorted 0 1 1 1.5 2, a new tau = 1; the tie is kept.
  update, = oracle.step([[f32(0, 0.5, -1, 0.5, 0)]])
  assert (oracle.tau[0][0], oracle.k) == (1, 3)
  assert oracle.masks[0][0].tolist() == [False, True, True, True, True]
  assert update.tolist() == [0, 1.5, -2, 1, 1]
  assert oracle.error[0][0].tolist() == [0, 0, 0, 0, 0]

  # k = 3: the old tau = 1 keeps nothing; the message is empty and all is error.
  update, = oracle.step([[f32(0.5, 0.5, -0.5, 0, 0)]])
  assert not oracle.masks[0][0].any() and not update.any()
  assert oracle.error[0][0].tolist() == [0.5, 0.5, -0.5, 0, 0]


def test_workers_and_layers_are_apart():
  """Each worker has a threshold for each layer; the updates are means over both workers."""
  oracle = dct_dp.DctDpOracle(2, [(4,), (2, 2)], 0.75, 10)
  updates = oracle.step([
      [f32(1, 2, 3, 4), f32(0, 0, 0, 8).reshape(2, 2)],
      [f32(-8, 2, 4, 6), f32(1, 1, 1, 1).reshape(2, 2)],
  ])
  # Rank 3. Worker 0: tau 3 and 0 (zeros are not payload); worker 1: tau 6 and 1 (all tie).
  assert [[float(tau) for tau in taus] for taus in oracle.tau] == [[3, 0], [6, 1]]
  assert updates[0].tolist() == [-4, 0, 1.5, 5]
  assert updates[1].tolist() == [[0.5, 0.5], [0.5, 4.5]]
  assert oracle.masks[0][1].tolist() == [[False, False], [False, True]]
  assert oracle.error[0][0].tolist() == [1, 2, 0, 0]
  assert oracle.error[1][0].tolist() == [0, 2, 4, 0]


def test_float16_and_dense_layers():
  """The error keeps what rounding or saturation took away, in dense layers too."""
  oracle = dct_dp.DctDpOracle(1, [(2,), (1,)], 1, 1, value_codec='float16', dense_below=2)
  updates = oracle.step([[f32(100, 2049), f32(65505)]])
  assert [update.tolist() for update in updates] == [[0, 2048], [65504]]
  assert [error.tolist() for error in oracle.error[0]] == [[100, 1], [1]]
  assert oracle.tau[0][1] is None and oracle.masks[0][1].all()
  # A layer of exactly dense_below elements is not dense. Now W = 100 2050 and 1.
  updates = oracle.step([[f32(0, 2049), f32(0)]])
  assert [update.tolist() for update in updates] == [[0, 2050], [1]]
  assert [error.tolist() for error in oracle.error[0]] == [[100, 0], [0]]


@RELAXED
@given(st.integers(1, 3), st.integers(1, 4), st.sampled_from([0.3, 0.9, 1]), st.data())
def test_nothing_is_lost(workers, lifespan, eta, data):
  """With small integers float32 is exact: sent and residual add up to all gradients."""
  oracle = dct_dp.DctDpOracle(workers, [(7,), (3, 2)], eta, lifespan)
  gradients = np.zeros(13)
  sent = np.zeros(13)
  for _ in range(5):
    numbers = data.draw(st.lists(st.integers(-9, 9), min_size=13 * workers,
                                 max_size=13 * workers))
    flat = np.array(numbers, F32).reshape(workers, 13)
    updates = oracle.step([[row[:7], row[7:].reshape(3, 2)] for row in flat])
    gradients += flat.sum(0)
    total = sum(np.concatenate([layer.ravel() for layer in layers]) for layers in oracle.sent)
    sent += total
    assert np.concatenate([u.ravel() for u in updates]).tolist() == (
        total * F32(1 / workers)).tolist()
  residual = sum(np.concatenate([layer.ravel() for layer in layers]) for layers in oracle.error)
  assert (sent + residual).tolist() == gradients.tolist()


@pytest.mark.parametrize('value_codec', VALUE_CODECS)
def test_what_is_sent_survives_the_wire(value_codec):
  """The oracle's shortcut, cast in place of encode and decode, changes nothing."""
  oracle = dct_dp.DctDpOracle(1, [(300,)], 0.9, 1, value_codec=value_codec)
  update, = oracle.step([[np.random.default_rng(1).normal(size=300).astype(F32)]])
  indices = np.flatnonzero(oracle.masks[0][0])
  assert len(indices) == 300 - 270 + 1
  words = wire.encode(indices, update[indices], universe=300, value_codec=value_codec)
  message = wire.decode(words, universe=300, value_codec=value_codec)
  scattered = np.zeros(300, F32)
  scattered[message.indices] = message.values
  assert scattered.tobytes() == update.tobytes()


def test_mean_is_in_worker_order():
  """In float32 2^24 + 1 + 1 is 2^24 and 1 + 1 + 2^24 is 2^24 + 2; a third as float32."""
  big = 2.0**24
  def mean(*values):
    return collectives.mean_of([[f32(value)] for value in values])[0]
  assert mean(big, 1, 1).tolist() == [float(F32(big) * F32(1 / 3))]
  assert mean(1, 1, big).tolist() == [float(F32(big + 2) * F32(1 / 3))]
  assert mean(1, 1, big).dtype == F32
  assert mean(5).tolist() == [5]


# Independence.


def test_oracles_do_not_import_what_they_judge():
  """No file here imports jax or dct_jax."""
  files = sorted(pathlib.Path(__file__).parent.rglob('*.py'))
  assert len(files) >= 6
  for file in files:
    for node in ast.walk(ast.parse(file.read_text(encoding='utf-8'))):
      names = []
      if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
      elif isinstance(node, ast.ImportFrom):
        names = [node.module or '']
      for name in names:
        assert name.split('.')[0] not in ('jax', 'jaxlib', 'dct_jax'), f'{file}: {name}'


@settings(deadline=None, max_examples=100)
@given(st.lists(st.sampled_from([121, 121, 121, 121, 0, 242]), max_size=120), st.integers(1, 9))
def test_3lc_in_partitions_decodes_to_the_same(code, parts):
  """The paper's parallel encoder, and the serial one."""
  code = np.array(code, np.uint8)
  in_parts = three_lc.zero_run_in_parts(code, parts)
  np.testing.assert_array_equal(three_lc.zero_run_decode(in_parts), code)
  assert in_parts.size <= three_lc.zero_run(code).size + parts - 1
  np.testing.assert_array_equal(three_lc.zero_run_decode(three_lc.zero_run(code)), code)


def test_a_sample_has_one_entry_of_each_stretch():
  for size, count in [(1000, 1000), (1000, 999), (1000, 333), (7, 3), (1, 1)]:
    at = rivals.sample_positions(size, count, 12345, 6)
    edges = np.arange(count + 1) * size // count
    assert (edges[:-1] <= at).all() and (at < edges[1:]).all()
  often = np.bincount(np.concatenate([rivals.sample_positions(64, 8, 0, s) for s in range(4000)]), minlength=64)
  assert np.abs(often / 4000 - 1 / 8).max() < 5 * np.sqrt(1 / 8 * 7 / 8 / 4000)
