"""QSGD blocks and messages, written from docs/wire_format.md alone."""

import numpy as np

CODEC = {2: 16, 4: 17, 8: 18}
TINY, MOST = np.float32(1e-30), np.float32(2.0**127)
MASK = 0xFFFFFFFF


def mix(x):
  """The 32-bit mixer of the random numbers, on an array of uint64 that hold 32-bit numbers."""
  x = x ^ (x >> np.uint64(16))
  x = (x * np.uint64(0x7FEB352D)) & np.uint64(MASK)
  x = x ^ (x >> np.uint64(15))
  x = (x * np.uint64(0x846CA68B)) & np.uint64(MASK)
  return x ^ (x >> np.uint64(16))


def noise(seed, index):
  """U: 16 random bits for every index."""
  key = mix(np.array([(seed + 0x9E3779B1) & MASK], np.uint64))
  index = np.asarray(index, np.uint64) & np.uint64(MASK)
  return (mix(index ^ key) >> np.uint64(16)).astype(np.int64)


def levels(bits):
  return 2 ** (bits - 1) - 1


def words(count, bits, bucket):
  return -(-count // bucket) + -(-count * bits // 32)


def scale(x):
  m = np.abs(x).max()
  return np.float32(0) if m < TINY else min(m, MOST)


def quantize(x, first_index, seed, bits, bucket):
  """float32[count] -> the words of a block."""
  x, s = np.asarray(x, np.float32), levels(bits)
  scales, codes = [], []
  for at in range(0, x.size, bucket):
    part = x[at:at + bucket]
    m = scale(part)
    scales.append(m)
    factor = np.float32(s * 65536) / m if m else np.float32(0)
    t = np.minimum(np.abs(part) * factor, np.float32(s * 65536)).astype(np.int64)
    u = noise(seed, first_index + at + np.arange(part.size))
    q = np.minimum(s, (t + u) >> 16)
    codes.append(np.where(part < 0, -q, q) + s)
  return np.concatenate([np.array(scales, np.float32).view(np.uint32),
                         pack(np.concatenate(codes) if codes else np.zeros(0, np.int64), bits)])


def pack(codes, bits):
  """Codes to words, lowest bits first."""
  out = np.zeros(-(-codes.size * bits // 32), np.uint32)
  for i, code in enumerate(codes.tolist()):
    out[i * bits // 32] |= np.uint32(code << (i * bits % 32))
  return out


def dequantize(block, count, bits, bucket):
  """The words of a block -> float32[count]."""
  s, buckets = levels(bits), -(-count // bucket)
  scales = block[:buckets].view(np.float32)
  out = np.zeros(count, np.float32)
  for i in range(count):
    word = int(block[buckets + i * bits // 32])
    q = min((word >> (i * bits % 32)) & (2**bits - 1), 2 * s) - s
    out[i] = np.float32(q) * (scales[i // bucket] / np.float32(s))
  return out


def checksum(message, length):
  place = np.arange(1, length + 1, dtype=np.uint64)
  key = (place * np.uint64(0x9E3779B1)) & np.uint64(MASK)
  odd = (((key ^ (key >> np.uint64(15))) * np.uint64(0x2C1B3C6D)) & np.uint64(MASK)) | np.uint64(1)
  each = (mix(np.asarray(message[:length], np.uint64) ^ key) * odd) & np.uint64(MASK)
  total = int(each.sum()) - (int(each[5]) if length > 5 else 0)
  return int(mix(np.array([total & MASK], np.uint64))[0])


def message_words(sizes, num_dense, bits, bucket):
  return 6 + num_dense + sum(words(n, bits, bucket) for n in sizes)


def encode(layers, dense, seed, bits, bucket, empty=False, nonfinite=False):
  """One message: header, dense values, one block for each layer."""
  body, at = [np.asarray(dense, np.float32).view(np.uint32)], 0
  for x in layers:
    body.append(quantize(x, at, seed, bits, bucket))
    at += x.size
  body = np.concatenate(body)
  out = np.concatenate([np.zeros(6, np.uint32), np.zeros(0, np.uint32) if empty else body])
  out[:5] = [0xDC720000 | CODEC[bits], out.size, 6 + body.size, 0, nonfinite]
  out[5] = checksum(out, out.size)
  return out


def decode(message, sizes, num_dense, bits, bucket):
  """The values of (layers..., dense) that a message carries, zeros if it is empty; None if it is refused."""
  full = message_words(sizes, num_dense, bits, bucket)
  nothing = [np.zeros(n, np.float32) for n in (*sizes, num_dense)]
  length = int(message[1])
  if int(message[0]) != 0xDC720000 | CODEC[bits] or int(message[3]) or length not in (6, full):
    return None
  if length > message.size or checksum(message, length) != int(message[5]):
    return None
  if length == 6:
    return nothing
  out, at = [], 6 + num_dense
  for n in sizes:
    block = message[at:at + words(n, bits, bucket)]
    if (block[:-(-n // bucket)] > MOST.view(np.uint32)).any():  # negative, too large or not a number
      return None
    out.append(dequantize(block, n, bits, bucket))
    at += block.size
  return [*out, message[6:6 + num_dense].view(np.float32)]
