"""Pure-JAX twins of the message kernels: the same bits as the native ones, on any platform.

Lengths are data, shapes are not: every section is computed at the size of its buffer and masked.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dct_jax import axes
from dct_jax.arrays import ceil_div, cut, u32
from dct_jax.kernels.hashing import checksum
from dct_jax.wire import values
from dct_jax.wire.format import HEADER, INDEX_CODES, MAGIC, NO_INDICES, VALUE_CODES

_NEVER = 0xFFFFFFFF  # words of a codec that may not be used


def rice_candidates(count, universe):
  """The four parameters that are tried, and which of them are real."""
  ratio = jnp.maximum(u32(1), u32(universe) // jnp.maximum(count, 1))
  b0 = jnp.where(count > 0, 31 - lax.clz(ratio).astype(jnp.int32), 0)
  first = jnp.maximum(b0 - 2, 0)
  last = jnp.where(count > 0, b0 + 1, 0)
  b = first + jnp.arange(4)
  return u32(jnp.minimum(b, last)), b <= last


def rice_words(count, quotients, b):
  return ceil_div(count + quotients, 32) + ceil_div(count * b, 32)


class Choice(NamedTuple):
  codec: jax.Array  # position in INDEX_CODES
  rice: jax.Array
  words: jax.Array


def cheapest(sizes, rice_sizes, bs, real, wish) -> Choice:
  """The smallest index section, or the one that was wished for; the first on a tie."""
  best = jnp.argmin(jnp.where(real, rice_sizes, u32(_NEVER)))
  sizes = jnp.stack([*(u32(s) for s in sizes), rice_sizes[best]])
  codec = jnp.argmin(sizes) if wish == 'auto' else jnp.int32(INDEX_CODES[wish] - 1)
  return Choice(codec, jnp.where(codec == 3, bs[best], 0), sizes[codec])


def gaps_of(index, count):
  valid = jnp.arange(index.size) < count
  previous = jnp.concatenate([jnp.full(1, u32(0xFFFFFFFF)), index[:-1]])
  return jnp.where(valid, index - previous - 1, 0), valid


def choose_codec(index, count, universe, wish) -> Choice:
  gap, _ = gaps_of(index, count)
  bs, real = rice_candidates(count, universe)
  skips = jnp.sum(gap // 65535, dtype=jnp.uint32)
  quotients = jnp.sum(gap >> bs[:, None], axis=1, dtype=jnp.uint32)
  sizes = (count, ceil_div(count + skips, 2), ceil_div(universe, 32))
  return cheapest(sizes, rice_words(count, quotients, bs), bs, real, wish)


def index_bound(count, universe, wish):
  """Words that any `count` indices fit into."""
  count = u32(count)
  bs, real = rice_candidates(count, universe)
  sizes = (count, ceil_div(count + universe // 65535, 2), ceil_div(universe, 32))
  words = cheapest(sizes, rice_words(count, u32(universe) >> bs, bs), bs, real, wish).words
  return words if wish == 'bitmap' else jnp.where(count == 0, 0, words)


def _set_bits(words, position, valid):
  """Sets the bits at distinct positions."""
  at = jnp.where(valid, (position >> 5).astype(jnp.int32), words.size)
  return words.at[at].add(u32(1) << (position & 31), mode='drop')


def _write_int32(section, index, count, rice):
  del rice
  head = jnp.where(jnp.arange(index.size) < count, index, 0)[:section.size]
  return section.at[:head.size].set(head)


def _write_gap16(section, index, count, rice):
  del rice
  gap, valid = gaps_of(index, count)
  tokens = jnp.arange(2 * section.size)
  ends = jnp.cumsum(jnp.where(valid, gap // 65535 + 1, 0), dtype=jnp.uint32)
  half = jnp.where(tokens < ends[-1], u32(65535), 0)
  at = jnp.where(valid, (ends - 1).astype(jnp.int32), half.size)
  return values.pair(half.at[at].set(gap % 65535, mode='drop'))


def _write_bitmap(section, index, count, rice):
  del rice
  return _set_bits(section, index, jnp.arange(index.size) < count)


def _write_rice(section, index, count, rice):
  gap, valid = gaps_of(index, count)
  ends = jnp.cumsum(jnp.where(valid, (gap >> rice) + 1, 0), dtype=jnp.uint32)
  section = _set_bits(section, ends - 1, valid)
  remainder = gap & ((u32(1) << rice) - 1)
  bit = jnp.arange(index.size, dtype=jnp.uint32) * rice
  word = (ceil_div(ends[-1], 32) + (bit >> 5)).astype(jnp.int32)
  shift = bit & 31
  at = jnp.where(valid, word, section.size)
  section = section.at[at].add(remainder << shift, mode='drop')
  spills = valid & (shift + rice > 32)
  at = jnp.where(spills, word + 1, section.size)
  return section.at[at].add(remainder >> ((32 - shift) & 31), mode='drop')


_WRITERS = (_write_int32, _write_gap16, _write_bitmap, _write_rice)


def encode(index, value, dense, count, wanted_count, flags, empty, capacity, universe, unit,
           index_codec, value_codec):
  count = jnp.where(empty != 0, u32(0), u32(count))
  fixed = HEADER + dense.size
  choice = choose_codec(index, count, universe, index_codec)
  section = axes.vary_as(jnp.zeros(capacity - fixed, jnp.uint32), (index, value, count))
  section = lax.switch(choice.codec, _WRITERS, section, index, count, choice.rice)

  sent = jnp.where(jnp.arange(value.size) < count * unit, value, 0)
  packed = values.to_words(sent, value_codec)
  place = jnp.arange(section.size) - choice.words.astype(jnp.int32)
  here = (place >= 0) & (place < packed.size)
  section = jnp.where(here, packed[jnp.clip(place, 0, packed.size - 1)], section)

  full = fixed + choice.words + values.num_words(count * unit, value_codec)
  length = jnp.where(empty != 0, u32(HEADER), full)
  bound = (fixed + index_bound(wanted_count, universe, index_codec)
           + values.num_words(wanted_count * unit, value_codec))
  wanted = jnp.where((wanted_count == count) & (empty == 0), length, bound)
  codec = jnp.where(empty != 0, u32(NO_INDICES), u32(choice.codec) + 1)
  rice = jnp.where(empty != 0, u32(0), choice.rice)
  header = jnp.stack([
      u32(MAGIC) | codec << 8 | u32(VALUE_CODES[value_codec]), length, wanted, count,
      rice << 24 | flags & 0xFF, jnp.zeros_like(length)])
  words = jnp.concatenate([header, dense, section])
  words = jnp.where(jnp.arange(capacity) < length, words, 0)
  return words.at[5].set(checksum(words, length))


def _nth_bit(word, n):
  """Position of the n-th set bit (from 0) of each word, by halving."""
  position = jnp.zeros_like(word)
  for width in (16, 8, 4, 2, 1):
    low = (word >> position) & ((u32(1) << width) - 1)
    ones = lax.population_count(low)
    skip = n >= ones
    n = jnp.where(skip, n - ones, n)
    position = jnp.where(skip, position + width, position)
  return position


def _bit_positions(words, capacity):
  """Positions of the set bits in order, and how many there are in all."""
  totals = jnp.cumsum(lax.population_count(words).astype(jnp.uint32), dtype=jnp.uint32)
  n = jnp.arange(capacity, dtype=jnp.uint32)
  word = jnp.minimum(jnp.searchsorted(totals, n, side='right'), words.size - 1)
  before = jnp.where(word > 0, totals[word - 1], 0)
  return u32(word) * 32 + _nth_bit(words[word], n - before), totals[-1]


def _read_int32(section, size, count, rice, capacity):
  del rice
  padded = jnp.pad(section, (0, max(0, capacity - section.size)))
  return padded[:capacity], size == count


def _read_gap16(section, size, count, rice, capacity):
  del rice
  token = values.unpair(section)
  entry = token != 65535
  order = jnp.cumsum(entry, dtype=jnp.uint32)
  after = jnp.cumsum(token + entry, dtype=jnp.uint32)
  at = jnp.where(entry & (order <= count), (order - 1).astype(jnp.int32), capacity)
  index = jnp.zeros(capacity, jnp.uint32).at[at].set(after - 1, mode='drop')
  used = jnp.searchsorted(order, count) + jnp.where(count > 0, 1, 0)
  return index, ceil_div(u32(used), 2) == size


def _read_bitmap(section, size, count, rice, capacity):
  del rice
  index, total = _bit_positions(_head(section, size), capacity)
  return index, total == count


def _read_rice(section, size, count, rice, capacity):
  low_words = ceil_div(count * rice, 32)
  unary_words = size - low_words
  ends, total = _bit_positions(_head(section, unary_words), capacity)
  bit = jnp.arange(capacity, dtype=jnp.uint32) * rice
  word = (unary_words + (bit >> 5)).astype(jnp.int32)
  shift = bit & 31
  low = _at(section, word) >> shift
  high = jnp.where(shift + rice > 32, _at(section, word + 1) << ((32 - shift) & 31), 0)
  remainder = (low | high) & ((u32(1) << rice) - 1)
  quotient = ends - jnp.concatenate([jnp.zeros(1, jnp.uint32), ends[:-1] + 1])
  index = jnp.cumsum((quotient << rice) + remainder + 1, dtype=jnp.uint32) - 1
  last = jnp.where(count > 0, _at(ends, count.astype(jnp.int32) - 1) + 1, 0)
  exact = ceil_div(last, 32) == unary_words
  return index, (total == count) & exact & (low_words <= size) & (rice < 32)


def _head(words, size):
  """The first `size` words; the others become zero."""
  return jnp.where(jnp.arange(words.size) < size, words, 0)


def _at(words, i):
  """words[i], zero outside."""
  return jnp.where(i < words.size, words[jnp.clip(i, 0, words.size - 1)], 0)


_READERS = (_read_int32, _read_gap16, _read_bitmap, _read_rice)


class Decoded(NamedTuple):
  """One decoded message. Where it is not intact every index is out of range and every value zero."""

  intact: jax.Array
  indices: jax.Array
  value: jax.Array
  dense: jax.Array


def max_count(capacity, universe, unit, num_dense, value_codec):
  """How many entries a message of `capacity` words can hold at the most, indices for free."""
  room = capacity - HEADER - values.num_words(num_dense, value_codec)
  return max(1, min(universe, room * 32 // (values.BITS[value_codec] * unit)))


def decode(words, universe, unit, num_dense, value_codec) -> Decoded:
  capacity = words.size
  dense_words = values.num_words(num_dense, value_codec)
  room = max(1, capacity - HEADER - dense_words)
  most = max_count(capacity, universe, unit, num_dense, value_codec)
  length, count, rice = words[1], words[3], words[4] >> 24
  codec = (words[0] >> 8) & 0xFF
  value_words = values.num_words(count * unit, value_codec)
  empty = codec == NO_INDICES
  fixed = u32(HEADER + dense_words)
  sane = ((words[0] & u32(0xFFFF0000)) == u32(MAGIC)) & (length >= HEADER) & (length <= capacity)
  sane &= ((words[0] & 0xFF) == VALUE_CODES[value_codec]) & (count <= most)
  sane &= checksum(words, length) == words[5]
  sane &= jnp.where(empty, (count == 0) & (length == HEADER), length >= fixed + value_words)

  section = jnp.pad(words[HEADER + dense_words:], (0, max(0, HEADER + dense_words + 1 - capacity)))
  section = section[:room]
  size = jnp.where(sane & ~empty, length - fixed - value_words, 0)
  readers = [lambda *args, r=r: axes.vary_as(r(*args, most), (words,)) for r in _READERS]
  index, complete = lax.switch(
      jnp.clip(codec.astype(jnp.int32) - 1, 0, 3), readers, section, size,
      jnp.where(sane, count, 0), rice)
  n = jnp.arange(most)
  rising = jnp.where((n > 0) & (n < count), index > jnp.roll(index, 1), True)
  complete &= (rising & ((index < universe) | (n >= count))).all() & (codec <= 4)
  complete &= (codec != 3) | (size == ceil_div(universe, 32))
  intact = sane & (empty | complete)

  use = intact & ~empty
  place = (size + jnp.arange(values.num_words(most * unit, value_codec))).astype(jnp.int32)
  value = values.from_words(_at(section, place), most * unit, value_codec)
  value = jnp.where(use & (jnp.arange(most * unit) < count * unit), value, 0)
  dense = values.from_words(words[HEADER:HEADER + dense_words], num_dense, value_codec)
  index = jnp.where(use & (n < count), index, u32(universe))
  return Decoded(intact, index, value, jnp.where(use, dense, 0))


def unpack_sum(words, sparse, dense, unit, value_codec):
  """Adds decoded messages in their order; `sparse` and `dense` are the shapes of the layers."""
  units = [ceil_div(s.size, unit) for s in sparse]
  num_dense = sum(s.size for s in dense)

  def add(total, message):
    stream = decode(message, sum(units), unit, num_dense, value_codec)
    flat = total[0].at[stream.indices.astype(jnp.int32)].add(
        stream.value.reshape(-1, unit), mode='drop')
    return (flat, total[1] + stream.dense), stream.intact.astype(jnp.uint32)

  zero = (jnp.zeros((sum(units), unit), jnp.float32), jnp.zeros(num_dense, jnp.float32))
  (flat, rest), intact = lax.scan(add, axes.vary_as(zero, (words,)), words)
  parts = jnp.split(flat, [sum(units[:i]) for i in range(1, len(units))]) if units else []
  out = [p.reshape(-1)[:s.size].reshape(s.shape) for p, s in zip(parts, sparse, strict=True)]
  return intact, (*out, *cut(rest, dense))


def settle(mode, words, residual, dense_layers, unit, value_codec):
  cut = len(residual) - dense_layers
  _, own = unpack_sum(words[None], residual[:cut], residual[cut:], unit, value_codec)
  taken = lambda e, x: jnp.where(mode == 1, 0, jnp.where(mode == 2, e + x, e))
  return jax.tree.map(taken, tuple(residual), own)
