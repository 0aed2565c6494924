"""3LC, written from the paper's section 3 and docs/wire_format.md alone.

Where the text is open: exactly half rounds to zero; padding comes after the +1, so that a pad is the digit 0;
runs of more than 14 are cut into 14s from the left, and what is left over of one stays 121.
"""

import numpy as np

from reference.qsgd import checksum

CODEC = 19
ZERO = 121  # five zeros in a byte
TINY, MOST = np.float32(1e-30), np.float32(np.finfo(np.float32).max)


def scale(x, s):
  """m: the largest magnitude times the sparsity multiplier; 0 when there is nothing worth sending."""
  largest = np.abs(x).max(initial=0)
  if largest < TINY:
    return np.float32(0)
  with np.errstate(over='ignore'):
    return min(np.float32(largest) * np.float32(s), MOST)


def quantize(x, s):
  """float32 -> (values of -1, 0 and 1, m)."""
  x, m = np.asarray(x, np.float32), scale(x, s)
  half = m * np.float32(0.5)
  return np.where(m > 0, (x > half).astype(np.int8) - (x < -half).astype(np.int8), 0).astype(np.int8), m


def dequantize(q, m):
  return q.astype(np.float32) * m


def fold(q):
  """Five 3-values a byte: the array is cut into five equal parts, and part 0 has the highest digit."""
  digits = (q.astype(np.int64) + 1).reshape(-1)
  digits = np.pad(digits, (0, -digits.size % 5))
  p = digits.reshape(5, -1)
  return (p[0] * 81 + p[1] * 27 + p[2] * 9 + p[3] * 3 + p[4]).astype(np.uint8)


def unfold(code, count):
  """The inverse of `fold`."""
  rest, digits = code.astype(np.int64), []
  for _ in range(5):
    digits.append(rest % 3)
    rest = rest // 3
  return (np.concatenate(digits[::-1])[:count] - 1).astype(np.int8)


def run_codes(length):
  """The bytes for a run of so many 121s."""
  out = [255] * (length // 14)
  rest = length % 14
  return out + ([] if rest == 0 else [ZERO] if rest == 1 else [243 + rest - 2])


def zero_run(code):
  """Zero-run encoding, byte by byte."""
  out, run = [], 0
  for b in code.tolist():
    if b == ZERO:
      run += 1
      continue
    out += run_codes(run) + [b]
    run = 0
  return np.array(out + run_codes(run), np.uint8)


def run_length(b):
  """How many 121s a byte stands for; 0 for any other."""
  return b - 241 if b >= 243 else int(b == ZERO)


def zero_run_in_parts(code, parts):
  """The paper's parallel form: each partition on its own, bytes at borders joined where one can hold both."""
  out = []
  for part in np.array_split(code, parts):
    new = zero_run(part).tolist()
    if out and new and run_length(out[-1]) and run_length(new[0]):
      together = run_length(out[-1]) + run_length(new[0])
      if together <= 14:
        out[-1:], new = [243 + together - 2], new[1:]
    out += new
  return np.array(out, np.uint8)


def zero_run_decode(code):
  out = []
  for b in code.tolist():
    out += [ZERO] * (b - 241) if b >= 243 else [b]
  return np.array(out, np.uint8)


def encode(layers, dense, s, zero_runs=True, budget=None, nonfinite=False, empty=False):
  """One message, and what it says of each layer.

  Header, dense values, a scale for each layer, the bytes of each layer, then these bytes, one layer after the
  other. What a budget of words cuts off is not said, and decodes as zero; each layer loses its share.
  """
  scales, bodies = [], []
  for x in layers:
    q, m = quantize(x, s)
    scales.append(m)
    bodies.append(zero_run(fold(q)) if zero_runs else fold(q))
  fixed = 6 + dense.size + 2 * len(layers)
  wanted = fixed + -(-sum(b.size for b in bodies) // 4)
  room = max(0, 4 * (wanted if budget is None else int(budget)) - 4 * fixed)
  kept, before, total = [], 0, sum(b.size for b in bodies)
  for b in bodies:
    share = cut_at(before + b.size, room, total) - cut_at(before, room, total)
    kept.append(b[:share])
    before += b.size
  body = np.concatenate([*kept, np.zeros(0, np.uint8)])
  words = np.concatenate([
      np.zeros(6, np.uint32), dense.astype(np.float32).view(np.uint32),
      np.array(scales, np.float32).view(np.uint32), np.array([b.size for b in kept], np.uint32),
      np.pad(body, (0, -body.size % 4)).view(np.uint32)])
  words = words[:6] if empty else words
  words[:5] = [0xDC720000 | CODEC, words.size, wanted, 0, nonfinite]
  words[5] = checksum(words, words.size)
  said = [np.zeros(x.shape, np.float32) if empty else
          dequantize(decode_layer(b, x.size), m).reshape(x.shape)
          for x, b, m in zip(layers, kept, scales, strict=True)]
  return words, said


def cut_at(n, keep, have):
  """How many of the first n of `have` things stay if `keep` do: n keep / have, in 32 binary places, rounded up."""
  return n if keep >= have else n * -(-(keep << 32) // have) >> 32


def decode_layer(code, count):
  """Bytes of a layer -> its 3-values; bytes that are missing at the end stand for zeros."""
  full = zero_run_decode(code)
  return unfold(np.pad(full, (0, -(-count // 5) - full.size), constant_values=ZERO), count)


def decode(message, sizes, num_dense):
  """The values of (layers..., dense) that a message carries, zeros if it is empty; None if it is refused."""
  length = int(message[1])
  fixed = 6 + num_dense + 2 * len(sizes)
  if int(message[0]) != 0xDC720000 | CODEC or int(message[3]) or length > message.size:
    return None
  if length < 6 or checksum(message, length) != int(message[5]):
    return None
  if length == 6:
    return [np.zeros(n, np.float32) for n in (*sizes, num_dense)]
  if length < fixed:
    return None
  scales = message[6 + num_dense:][:len(sizes)]
  sizes_in_bytes = message[6 + num_dense + len(sizes):][:len(sizes)].astype(np.int64)
  if length != fixed + -(-int(sizes_in_bytes.sum()) // 4) or (scales > MOST.view(np.uint32)).any():
    return None
  body, out = message[fixed:length].view(np.uint8), []
  for n, b, m in zip(sizes, sizes_in_bytes, scales.view(np.float32), strict=True):
    if zero_run_decode(body[:b]).size > -(-n // 5):
      return None
    out.append(dequantize(decode_layer(body[:b], n), m))
    body = body[b:]
  return [*out, message[6:6 + num_dense].view(np.float32)]
