"""The wire format of docs/wire_format.md in plain NumPy: literal, slow, independent."""

import math
from typing import NamedTuple

import ml_dtypes
import numpy as np

MAGIC = 0xDC7
VERSION = 2
HEADER_WORDS = 6
CHECKSUM_WORD = 5
MAX_UNIVERSE = 1 << 30
ESCAPE = 65535
# Id 0 ('none') is absent on purpose: such a body is not a sparse stream and is not read here.
INDEX_CODECS = {'int32': 1, 'gap16': 2, 'bitmap': 3, 'rice': 4}
VALUE_CODECS = {'float32': 0, 'float16': 1, 'bfloat16': 2}
HALF_TYPES = {'float16': np.float16, 'bfloat16': ml_dtypes.bfloat16}


class Message(NamedTuple):
  """What a message says, values widened to float32."""
  dense: np.ndarray
  indices: np.ndarray
  values: np.ndarray
  count: int
  wanted: int
  length: int
  nonfinite: bool


def ceil_div(numerator, denominator):
  """The quotient of two non-negative integers, rounded up."""
  return -(-numerator // denominator)


def checksum(words, length):
  """The header's checksum of the first `length` words; word 5 itself is left out."""
  words = np.asarray(words, np.uint32)[:length]
  position = np.arange(len(words), dtype=np.uint32)
  # Arrays of uint32 wrap modulo 2^32, which is the arithmetic that the page asks for.
  x = shares(position, words)
  x[CHECKSUM_WORD:CHECKSUM_WORD + 1] = 0
  return int(mix2(np.sum(x, dtype=np.uint32, keepdims=True))[0])


def shares(position, words):
  """What words at some places add to a checksum."""
  key = (position + np.uint32(1)) * np.uint32(0x9E3779B1)
  odd = (key ^ (key >> np.uint32(15))) * np.uint32(0x2C1B3C6D) | np.uint32(1)
  return mix2(words ^ key) * odd


def mix2(x):
  """The page's mixer."""
  x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
  x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
  return x ^ (x >> np.uint32(16))


# Bits.


def bits_to_words(bits):
  """Packs bits from the lowest bit of each word up; the last word is padded with zeros."""
  words = [0] * ceil_div(len(bits), 32)
  for position, bit in enumerate(bits):
    words[position // 32] |= bit << (position % 32)
  return words


def words_to_bits(words):
  """Yields the bits of the words, lowest bit of the first word first."""
  for word in words:
    for position in range(32):
      yield (word >> position) & 1


def low_bits(number, width):
  """The low `width` bits of a number as a list, lowest first."""
  return [(number >> position) & 1 for position in range(width)]


# Values.


def cast(values, value_codec):
  """Rounds float32 values as the codec does, saturating, and widens them again."""
  values = np.asarray(values, np.float32)
  if value_codec == 'float32':
    return values.copy()
  if value_codec not in HALF_TYPES:
    raise ValueError(f'unknown value codec {value_codec!r}')
  half = HALF_TYPES[value_codec]
  limit = np.float32(ml_dtypes.finfo(half).max)
  # Clipping comes first: rounding would turn a large magnitude into infinity.
  return np.clip(values, -limit, limit).astype(half).astype(np.float32)


def value_words(number, value_codec):
  """The words that `number` values take."""
  if value_codec not in VALUE_CODECS:
    raise ValueError(f'unknown value codec {value_codec!r}')
  return number if value_codec == 'float32' else ceil_div(number, 2)


def value_section(values, value_codec):
  """The values as a list of words."""
  rounded = cast(values, value_codec)
  if value_codec == 'float32':
    return rounded.view(np.uint32).tolist()
  halves = rounded.astype(HALF_TYPES[value_codec]).view(np.uint16).tolist()
  if len(halves) % 2:
    halves.append(0)
  return [low | (high << 16) for low, high in zip(halves[0::2], halves[1::2], strict=False)]


def read_values(words, number, value_codec):
  """The first `number` values in a list of words, as float32."""
  if value_codec == 'float32':
    return np.array(words, np.uint32).view(np.float32)[:number]
  halves = []
  for word in words:
    halves += [word & 0xFFFF, word >> 16]
  return np.array(halves, np.uint16).view(HALF_TYPES[value_codec])[:number].astype(np.float32)


# Indices, writing.


def gaps_of(indices):
  """How many absent indices lie before each index."""
  gaps, previous = [], -1
  for index in indices:
    gaps.append(index - previous - 1)
    previous = index
  return gaps


def gap16_tokens(indices):
  """The 16-bit tokens of the codec gap16."""
  tokens = []
  for gap in gaps_of(indices):
    tokens += [ESCAPE] * (gap // ESCAPE) + [gap % ESCAPE]
  return tokens


def gap16_section(indices):
  """The gap16 tokens two a word, the first in the low half."""
  tokens = gap16_tokens(indices)
  if len(tokens) % 2:
    tokens.append(0)
  return [low | (high << 16) for low, high in zip(tokens[0::2], tokens[1::2], strict=False)]


def bitmap_section(indices, universe):
  """One bit for each index of the universe."""
  words = [0] * ceil_div(universe, 32)
  for index in indices:
    words[index // 32] |= 1 << (index % 32)
  return words


def rice_section(indices, b):
  """The unary part and the remainder part with a given parameter, each padded to a word."""
  unary, remainders = [], []
  for gap in gaps_of(indices):
    unary += [0] * (gap >> b) + [1]
    remainders += low_bits(gap, b)
  return bits_to_words(unary) + bits_to_words(remainders)


def rice_words(indices, b):
  """The words of rice_section, without building it."""
  unary = sum((gap >> b) + 1 for gap in gaps_of(indices))
  return ceil_div(unary, 32) + ceil_div(len(indices) * b, 32)


def rice_candidates(count, universe):
  """The Rice parameters that the encoder may take, smallest first."""
  if count == 0:
    return [0]
  b0 = (universe // count).bit_length() - 1
  return [b for b in (b0 - 2, b0 - 1, b0, b0 + 1) if b >= 0]


def rice_parameter(indices, universe):
  """The candidate with the smallest section in words, the smallest of them on a tie."""
  # min() keeps the first of equals and the candidates ascend.
  return min(rice_candidates(len(indices), universe), key=lambda b: rice_words(indices, b))


def index_section_words(indices, universe, codec):
  """The exact words of an index section; 'auto' gives the smallest."""
  indices = [int(index) for index in indices]
  if codec == 'auto':
    return min(index_section_words(indices, universe, each) for each in INDEX_CODECS)
  if codec == 'int32':
    return len(indices)
  if codec == 'gap16':
    # Counted, not built: one token an index and the escapes before it.
    return ceil_div(sum(gap // ESCAPE + 1 for gap in gaps_of(indices)), 2)
  if codec == 'bitmap':
    return ceil_div(universe, 32)
  if codec == 'rice':
    return rice_words(indices, rice_parameter(indices, universe))
  raise ValueError(f'unknown index codec {codec!r}')


def index_bound_words(count, universe, codec):
  """The words that any `count` indices below `universe` surely fit into."""
  if count == 0 and codec != 'bitmap':
    return 0
  if codec == 'auto':
    return min(index_bound_words(count, universe, each) for each in INDEX_CODECS)
  if codec == 'int32':
    return count
  if codec == 'gap16':
    return ceil_div(count + universe // ESCAPE, 2)
  if codec == 'bitmap':
    return ceil_div(universe, 32)
  if codec == 'rice':
    return min(ceil_div(count + (universe >> b), 32) + ceil_div(count * b, 32)
               for b in rice_candidates(count, universe))
  raise ValueError(f'unknown index codec {codec!r}')


def entropy_bits(count, universe):
  """The bits that `count` of `universe` positions take on average: universe * H2."""
  if count in (0, universe):
    return 0.0
  p = count / universe
  return universe * -(p * math.log2(p) + (1 - p) * math.log2(1 - p))


def check_geometry(universe, unit):
  """Raises ValueError when no message can have this universe and unit."""
  if not 0 <= universe <= MAX_UNIVERSE:
    raise ValueError(f'a universe of {universe}, which is not within 0..2^30')
  if unit < 1:
    raise ValueError(f'a unit of {unit} values')


def encode(indices, values, *, universe, unit=1, dense=(), index_codec='auto',
           value_codec='float32', wanted=None, nonfinite=False, capacity=None):
  """One message as uint32 words, padded with zeros to `capacity` words if given."""
  check_geometry(universe, unit)
  indices = [int(index) for index in indices]
  values = np.asarray(values, np.float32).ravel()
  dense = np.asarray(dense, np.float32).ravel()
  if any(gap < 0 for gap in gaps_of(indices)):
    raise ValueError('indices are negative or do not increase')
  if indices and indices[-1] >= universe:
    raise ValueError(f'index {indices[-1]} in a universe of {universe}')
  if len(values) != len(indices) * unit:
    raise ValueError(f'{len(values)} values for {len(indices)} units of {unit}')
  if index_codec == 'auto':
    # The codecs are listed by id and min() keeps the first of equals.
    index_codec = min(INDEX_CODECS, key=lambda each: index_section_words(indices, universe, each))
  b = 0
  if index_codec == 'int32':
    section = indices
  elif index_codec == 'gap16':
    section = gap16_section(indices)
  elif index_codec == 'bitmap':
    section = bitmap_section(indices, universe)
  elif index_codec == 'rice':
    b = rice_parameter(indices, universe)
    section = rice_section(indices, b)
  else:
    raise ValueError(f'unknown index codec {index_codec!r}')
  body = value_section(dense, value_codec) + section + value_section(values, value_codec)
  length = HEADER_WORDS + len(body)
  words = [
      (MAGIC << 20) | (VERSION << 16) | (INDEX_CODECS[index_codec] << 8)
      | VALUE_CODECS[value_codec],
      length,
      length if wanted is None else wanted,
      len(indices),
      (b << 24) | int(nonfinite),
      0,
  ] + body
  words[CHECKSUM_WORD] = checksum(np.array(words, np.uint32), length)
  if capacity is not None:
    if length > capacity:
      raise ValueError(f'{length} words do not fit into {capacity}')
    words += [0] * (capacity - length)
  return np.array(words, np.uint32)


# Indices, reading. Each reader gets all words that may belong to the section and returns the
# indices with the words it used, for the caller to hold against the header's length.


def read_int32(section, count):
  """Reads a word each."""
  if count > len(section):
    raise ValueError('int32 indices end early')
  return section[:count], count


def read_gap16(section, count):
  """Reads 16-bit tokens until `count` indices have appeared."""
  tokens = []
  for word in section:
    tokens += [word & 0xFFFF, word >> 16]
  indices, position, used = [], 0, 0
  while len(indices) < count:
    if used == len(tokens):
      raise ValueError('gap16 tokens end early')
    token = tokens[used]
    used += 1
    position += token
    if token != ESCAPE:
      indices.append(position)
      position += 1
  return indices, ceil_div(used, 2)


def read_bitmap(section, count, universe):
  """Reads the set bits; a set bit beyond the universe is an index out of range."""
  used = ceil_div(universe, 32)
  if used > len(section):
    raise ValueError('bitmap ends early')
  indices = []
  for number, word in enumerate(section[:used]):
    if word:
      indices += [32 * number + bit for bit in range(32) if (word >> bit) & 1]
  if len(indices) != count:
    raise ValueError(f'bitmap of {len(indices)} indices, count says {count}')
  return indices, used


def read_rice(section, count, b):
  """Reads the unary part up to its last one bit, then the remainders in the words after it."""
  if b > 31:
    raise ValueError(f'Rice parameter {b}')
  quotients, zeros, used_bits = [], 0, 0
  bits = words_to_bits(section)
  while len(quotients) < count:
    bit = next(bits, None)
    if bit is None:
      raise ValueError('unary bits end early')
    used_bits += 1
    if bit:
      quotients.append(zeros)
      zeros = 0
    else:
      zeros += 1
  start = ceil_div(used_bits, 32)
  used = start + ceil_div(count * b, 32)
  if used > len(section):
    raise ValueError('Rice remainders end early')
  remainders = words_to_bits(section[start:used])
  indices, previous = [], -1
  for quotient in quotients:
    remainder = sum(next(remainders) << position for position in range(b))
    previous += (quotient << b) + remainder + 1
    indices.append(previous)
  return indices, used


def decode(words, *, universe, unit=1, num_dense=0, value_codec='float32'):
  """Reads a message; raises ValueError, saying why, when it is malformed."""
  check_geometry(universe, unit)
  words = np.asarray(words)
  if words.ndim != 1 or words.dtype != np.uint32:
    raise ValueError(f'not a flat array of uint32 words: {words.dtype}{list(words.shape)}')
  if len(words) < HEADER_WORDS:
    raise ValueError(f'{len(words)} words are not a header')
  first, length, wanted, count, flags, claimed = words[:HEADER_WORDS].tolist()
  index_id, value_id = (first >> 8) & 0xFF, first & 0xFF
  b, nonfinite = flags >> 24, flags & 1
  if first >> 20 != MAGIC:
    raise ValueError(f'magic {first >> 20:#x}')
  if (first >> 16) & 0xF != VERSION:
    raise ValueError(f'version {(first >> 16) & 0xF}')
  if length < HEADER_WORDS:
    raise ValueError(f'length {length} is less than a header')
  if length > len(words):
    raise ValueError(f'length {length} is beyond the buffer of {len(words)} words')
  if claimed != checksum(words, length):
    raise ValueError(f'checksum {claimed:#010x}, should be {checksum(words, length):#010x}')
  if index_id not in INDEX_CODECS.values():
    raise ValueError(f'unknown index codec {index_id}')
  if value_id not in VALUE_CODECS.values():
    raise ValueError(f'unknown value codec {value_id}')
  if value_id != VALUE_CODECS[value_codec]:
    raise ValueError(f'value codec {value_id} is not {value_codec}')
  if flags & 0x00FFFFFE:
    raise ValueError(f'flags {flags:#010x} have bits without a meaning')
  if b and index_id != INDEX_CODECS['rice']:
    raise ValueError(f'Rice parameter {b} with index codec {index_id}')
  if count > universe:
    raise ValueError(f'{count} indices in a universe of {universe}')

  # The value sections' sizes follow from the header; what they leave must be the indices.
  index_start = HEADER_WORDS + value_words(num_dense, value_codec)
  value_start = length - value_words(count * unit, value_codec)
  if index_start > value_start:
    raise ValueError(f'length {length} is too short for its values')
  section = words[index_start:value_start].tolist()
  if index_id == INDEX_CODECS['int32']:
    indices, used = read_int32(section, count)
  elif index_id == INDEX_CODECS['gap16']:
    indices, used = read_gap16(section, count)
  elif index_id == INDEX_CODECS['bitmap']:
    indices, used = read_bitmap(section, count, universe)
  else:
    indices, used = read_rice(section, count, b)
  if used != len(section):
    raise ValueError(f'length {length} leaves {len(section)} words for {used} words of indices')
  if any(gap < 0 for gap in gaps_of(indices)):
    raise ValueError('indices do not increase')
  if indices and indices[-1] >= universe:
    raise ValueError(f'index {indices[-1]} in a universe of {universe}')
  return Message(
      dense=read_values(words[HEADER_WORDS:index_start].tolist(), num_dense, value_codec),
      indices=np.array(indices, np.int64),
      values=read_values(words[value_start:length].tolist(), count * unit, value_codec),
      count=count,
      wanted=wanted,
      length=length,
      nonfinite=bool(nonfinite),
  )
