"""Frames and what is in them, written from docs/wire_format.md alone: bytes in, numbers out, and back."""

import struct
from typing import NamedTuple

import numpy as np

from reference import qsgd, wire

MAGIC = 0xDC7F0002
HEAD = struct.Struct('<IIQII')  # magic and version, kind, length, number of the frame, checksum of what is before it
TAIL = struct.Struct('<I')
PARCEL = struct.Struct('<IIIIqq8Q')
SPARSE, DENSE, QUANTIZED = range(3)
CODECS = {1: 'int32', 2: 'gap16', 3: 'bitmap', 4: 'rice'}
FAR = 1 << 48


def crc32c(data, start=0):
  """Castagnoli's polynomial, bits reversed, one bit after the other."""
  state = start ^ 0xFFFFFFFF
  for byte in bytes(data):
    state ^= byte
    for _ in range(8):
      state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
  return state ^ 0xFFFFFFFF


class Refused(ValueError):
  """What no receiver must believe."""


def encode(body, kind, sequence):
  """A frame."""
  start = struct.pack('<IIQI', MAGIC, kind, len(body), sequence)
  head = start + TAIL.pack(crc32c(start))
  return head + bytes(body) + TAIL.pack(crc32c(head + bytes(body)))


def decode(data, kind, sequence, most):
  """The body of a frame, which is all of `data`."""
  if len(data) < HEAD.size:
    raise Refused('cut off')
  magic, its_kind, length, number, check = HEAD.unpack_from(data)
  if check != crc32c(data[:HEAD.size - 4]):
    raise Refused('head')
  if magic != MAGIC:
    raise Refused('version')
  if (its_kind, number) != (kind, sequence):
    raise Refused('exchange')
  if length > most:
    raise Refused('length')
  if len(data) != HEAD.size + length + TAIL.size:
    raise Refused('cut off')
  if TAIL.unpack_from(data, HEAD.size + length)[0] != crc32c(data[:HEAD.size + length]):
    raise Refused('checksum')
  return data[HEAD.size:HEAD.size + length]


class Vector(NamedTuple):
  """What a parcel holds; `indices` is None if it is dense."""

  indices: object
  values: np.ndarray
  accounts: tuple


def read_parcel(body, size, dtype, workers, bits=0, bucket=0):
  """The vector in the body of a frame, of `size` coordinates, from one of so many workers."""
  if len(body) < PARCEL.size:
    raise Refused('head')
  form, codec, rice, pad, count, words, *accounts = PARCEL.unpack_from(body)
  nonfinite, corrupt, wanted, encoded, missing, entries, sent, present = accounts
  if form > QUANTIZED or (form == QUANTIZED and (not bits or np.dtype(dtype) != np.float32)):
    raise Refused('form')
  if not 0 <= count <= size or (form != SPARSE and count != size):
    raise Refused('count')
  if not 0 <= words <= (len(body) - PARCEL.size) // 4:
    raise Refused('index words')
  indexed = form == SPARSE and count > 0
  if (codec not in CODECS if indexed else codec) or rice > (31 if codec == 4 else 0) or pad:
    raise Refused('codec')
  if not indexed and form != QUANTIZED and words:
    raise Refused('words that mean nothing')
  if max(nonfinite, corrupt) > workers or present > size or max(wanted, encoded, missing, entries, sent) >= FAR:
    raise Refused('accounts')
  first, rest = body[PARCEL.size:PARCEL.size + 4 * words], body[PARCEL.size + 4 * words:]
  first = np.frombuffer(first, np.uint32)
  if form == QUANTIZED:
    return Vector(None, _quantized(first, rest, size, bits, bucket), tuple(accounts))
  if len(rest) != count * np.dtype(dtype).itemsize:
    raise Refused('length of the values')
  values = np.frombuffer(bytes(rest), dtype)
  if form == DENSE:
    return Vector(None, values, tuple(accounts))
  return Vector(_indices(first, codec, rice, count, size), values, tuple(accounts))


def _quantized(words, rest, size, bits, bucket):
  scales = -(-size // bucket)
  if rest or len(words) != scales + -(-size * bits // 32):
    raise Refused('length of the values')
  levels = words[:scales].view(np.float32)
  if not all(0 <= m <= np.float32(2.0**127) for m in levels) or np.signbit(levels).any():
    raise Refused('scales')
  return qsgd.dequantize(words, size, bits, bucket)


def _indices(words, codec, rice, count, size):
  if not count:
    return np.zeros(0, np.int64)
  section = words.tolist()
  read = {1: lambda: wire.read_int32(section, count), 2: lambda: wire.read_gap16(section, count),
          3: lambda: wire.read_bitmap(section, count, size), 4: lambda: wire.read_rice(section, count, rice)}
  try:
    indices, used = read[codec]()
  except ValueError as error:
    raise Refused('indices') from error
  if used != len(section) or any(gap < 0 for gap in wire.gaps_of(indices)) or indices[-1] >= size:
    raise Refused('indices')
  if codec == 4:  # as many ones as indices; other padding means nothing
    unary = section[:len(section) - -(-count * rice // 32)]
    if sum(word.bit_count() for word in unary) != count:
      raise Refused('indices')
  return np.array(indices, np.int64)


def write_parcel(size, values, indices=None, codec='int32', accounts=(0,) * 8):
  """The body of a frame with a vector; dense without `indices`."""
  values = np.asarray(values)
  if indices is None:
    return PARCEL.pack(DENSE, 0, 0, 0, size, 0, *accounts) + values.tobytes()
  indices, rice = [int(i) for i in indices], 0
  if not indices:
    return PARCEL.pack(SPARSE, 0, 0, 0, 0, 0, *accounts)
  if codec == 'rice':
    rice = wire.rice_parameter(indices, size)
  write = {'int32': lambda: indices, 'gap16': lambda: wire.gap16_section(indices),
           'bitmap': lambda: wire.bitmap_section(indices, size), 'rice': lambda: wire.rice_section(indices, rice)}
  words = write[codec]()
  number = next(k for k, name in CODECS.items() if name == codec)
  head = PARCEL.pack(SPARSE, number, rice, 0, len(indices), len(words), *accounts)
  return head + np.array(words, np.uint32).tobytes() + values.tobytes()


def read_message(body):
  """A gathered message: as many words as it says."""
  if len(body) < 24 or len(body) != 4 * int.from_bytes(body[4:8], 'little'):
    raise Refused('length of the message')
  return np.frombuffer(bytes(body), np.uint32)


def read_activation(data, dtype, scales, masked, mask=None):
  """Values, scale and length of what crosses a cut, at the beginning of `data`; bit by bit."""
  dtype, at = np.dtype(dtype), 0

  def take(count):
    nonlocal at
    if at + count > len(data):
      raise Refused('cut off')
    at += count
    return data[at - count:at]

  dimensions = int.from_bytes(take(4), 'little')
  if not 1 <= dimensions <= 8:
    raise Refused('dimensions')
  shape = [int.from_bytes(take(4), 'little') for _ in range(dimensions)]
  nonzero = 1
  for n in shape:
    nonzero *= max(1, n)
  if nonzero >= 1 << 31:
    raise Refused('too large')
  if mask is not None and list(mask.shape) != shape:
    raise Refused('another shape')
  *rows, width = shape
  count = 1
  for n in rows:
    count *= n
  crossing = None if mask is None else mask.reshape(-1).tolist()
  if masked:
    line, crossing = -(-width // 8), []
    bitmap = take(count * line)
    for row in range(count if width else 0):
      for j in range(8 * line):
        bit = bitmap[row * line + j // 8] >> (7 - j % 8) & 1
        if j < width:
          crossing.append(bool(bit))
        elif bit:
          raise Refused('bits behind the end')
  scale = None
  if scales != 'none':
    scale = np.frombuffer(take(4 * (count if scales == 'rows' else 1)), np.float32)
    if any(m < 0 or np.isinf(m) or (m == 0 and np.signbit(m)) for m in scale.tolist()):
      raise Refused('scale')
  number = count * width if crossing is None else sum(crossing)
  values = np.frombuffer(take(number * dtype.itemsize), dtype)
  if dtype == np.int8 and -128 in values.tolist():
    raise Refused('code')
  if crossing is None:
    return values, scale, at
  out, following = np.zeros(len(crossing), dtype), iter(values)
  for i, there in enumerate(crossing):
    if there:
      out[i] = next(following)
  return out, scale, at
