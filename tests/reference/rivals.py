"""The compressors that 3LC is compared with, written from docs/wire_format.md and their papers alone.

Three of them share a message: header, dense values, and a block for each layer, always as many words.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from reference.qsgd import checksum, mix, noise, pack
from reference.three_lc import fold, unfold

TINY = np.float32(1e-30)  # a scale below it is 0
NORMAL = np.finfo(np.float32).tiny  # what is below it is denormal, and counts as 0
LARGEST = np.finfo(np.float32).max


class Block(NamedTuple):
  """How a layer becomes words."""

  code: int
  quantize: Callable  # (float32[n], index of the first entry, seed) -> words
  dequantize: Callable  # (words, n) -> float32[n]
  words: Callable  # n -> how many
  scales: int  # how many of them are scales
  most: np.float32  # the largest scale


def word(x):
  return np.array([x], np.float32).view(np.uint32)


def unpack(words, count, bits):
  per = 32 // bits
  return np.array([int(words[i // per]) >> (bits * (i % per)) & (2**bits - 1) for i in range(count)], np.int64)


def largest(x, most):
  m = np.abs(x).max(initial=0)
  return np.float32(0) if m < TINY else min(m, most)


# 8-bit integers.

INT8_MOST = np.float32(2.0**127)


def quantize_int8(x, first_index, seed):
  m = largest(x, INT8_MOST)
  factor = np.float32(127) / m if m else np.float32(0)
  q = np.clip(np.rint(x * factor), -127, 127)
  return np.concatenate([word(m), pack(q.astype(np.int64) + 127, 8)])


def dequantize_int8(words, count):
  unit = words[:1].view(np.float32)[0] / np.float32(127)
  unit = unit if unit >= NORMAL else np.float32(0)
  return (np.minimum(unpack(words[1:], count, 8), 254) - 127).astype(np.float32) * unit


# Stochastic 3-values.


def quantize_ternary(x, first_index, seed):
  m = largest(x, LARGEST)
  factor = np.float32(65536) / m if m else np.float32(0)
  t = np.minimum(np.abs(x) * factor, np.float32(65536)).astype(np.int64)
  q = np.minimum((t + noise(seed, first_index + np.arange(x.size))) >> 16, 1)
  code = fold(np.where(x < 0, -q, q).astype(np.int8))
  return np.concatenate([word(m), pack(code, 8)])


def dequantize_ternary(words, count):
  code = unpack(words[1:], -(-count // 5), 8)
  return unfold(code, count).astype(np.float32) * words[:1].view(np.float32)[0]


# One bit.


def tree_sum(x):
  """The second half is added to the first, which is not the shorter one, until one number is left."""
  while x.size > 1:
    half = -(-x.size // 2)
    first, second = x[:half].copy(), x[half:]
    first[:second.size] += second
    x = first
  return x[0]


def mean_magnitude(x, count):
  """Of `count` entries, of which those that are not here are 0."""
  shrink = np.float32(2.0**-32) if x.max(initial=0) > np.float32(2.0**64) else np.float32(1)
  small = x * shrink
  small = np.where(small < NORMAL, np.float32(0), small)
  mean = tree_sum(small) / np.float32(max(count, 1))
  with np.errstate(over='ignore'):
    mean = min(mean / shrink, LARGEST)
  return np.float32(0) if mean < TINY else mean


def quantize_one_bit(x, first_index, seed):
  negative = x <= -NORMAL
  above = mean_magnitude(np.where(x >= NORMAL, x, np.float32(0)), np.sum(~negative))
  below = mean_magnitude(np.where(negative, -x, np.float32(0)), np.sum(negative))
  return np.concatenate([word(above), word(below), pack(negative.astype(np.int64), 1)])


def dequantize_one_bit(words, count):
  above, below = words[:2].view(np.float32)
  return np.where(unpack(words[2:], count, 1) == 1, -below, above).astype(np.float32)


BLOCKS = {
    'int8': Block(20, quantize_int8, dequantize_int8, lambda n: 1 + -(-n // 4), 1, INT8_MOST),
    'ternary': Block(21, quantize_ternary, dequantize_ternary, lambda n: 1 + -(-n // 20), 1, LARGEST),
    'one_bit': Block(22, quantize_one_bit, dequantize_one_bit, lambda n: 2 + -(-n // 32), 2, LARGEST),
}


def encode(name, layers, dense, seed=0, empty=False, nonfinite=False):
  """One message: header, dense values, one block for each layer."""
  block, body, at = BLOCKS[name], [np.asarray(dense, np.float32).view(np.uint32)], 0
  for x in layers:
    body.append(block.quantize(np.asarray(x, np.float32), at, seed))
    at += x.size
  body = np.concatenate(body)
  out = np.concatenate([np.zeros(6, np.uint32), body[:0] if empty else body])
  out[:5] = [0xDC720000 | block.code, out.size, 6 + body.size, 0, nonfinite]
  out[5] = checksum(out, out.size)
  return out


def decode(name, message, sizes, num_dense):
  """The values of (layers..., dense) that a message carries, zeros if it is empty; None if it is refused."""
  block, length = BLOCKS[name], int(message[1])
  full = 6 + num_dense + sum(block.words(n) for n in sizes)
  if int(message[0]) != 0xDC720000 | block.code or int(message[3]) or length not in (6, full):
    return None
  if length > message.size or checksum(message, length) != int(message[5]):
    return None
  if length == 6:
    return [np.zeros(n, np.float32) for n in (*sizes, num_dense)]
  out, at = [], 6 + num_dense
  for n in sizes:
    words = message[at:at + block.words(n)]
    if (words[:block.scales] > block.most.view(np.uint32)).any():  # negative, too large or not a number
      return None
    out.append(block.dequantize(words, n))
    at += words.size
  return [*out, message[6:6 + num_dense].view(np.float32)]


# A threshold from a sample.


ROUND, SAMPLE, SKETCH = 1, 2, 6  # purposes of random choices


def seed_of(purpose, seed, group, step, worker):
  """The number that a step of a worker draws by."""
  one = lambda x: int(mix(np.array([x % 2**32], np.uint64))[0])
  out = one(purpose)
  for number in (seed, group, step, worker):
    out = one(out + number)
  return out


def sample_positions(size, count, first_index, seed):
  """One entry of each of `count` equal stretches of a layer."""
  edges = np.arange(count + 1) * size // count
  key = mix(np.array([(seed + 0x9E3779B1) % 2**32], np.uint64))
  random = mix(((first_index + edges[:-1]) % 2**32).astype(np.uint64) ^ key)
  return edges[:-1] + (random % np.diff(edges).astype(np.uint64)).astype(np.int64)


def sampled_threshold(x, keep, sample, least, first_index, seed):
  """The magnitude that a share `keep` of the sampled entries reaches."""
  count = min(x.size, max(least, math.floor(sample * x.size)))
  seen = np.sort(np.abs(x[sample_positions(x.size, count, first_index, seed)]))
  return seen[count - max(1, math.floor(keep * count))]
