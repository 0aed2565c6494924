"""Activations on their way between two workers: the shape, a bitmap of what crosses, and the values that do.

Written and read by NumPy on the host, because messages are as long as they are.
"""

from __future__ import annotations

import math
import struct
from typing import Any, NamedTuple

import numpy as np

COUNT = struct.Struct('<I')
DIMENSIONS, ENTRIES = 8, 1 << 31  # of an array: it has no more of the former, and fewer of the latter


class Parcel(NamedTuple):
  """An array that crosses a cut; of NumPy's or, in a traced function, of JAX's arrays.

  Attributes:
    values: float32, float16 or int8[..., d].
    scale: float32 that values are to be multiplied with, [..., 1] or one for all; None for 1.
    mask: bool[..., d], what of the values crosses; None if all do.
  """

  values: Any
  scale: Any
  mask: Any


def pack(parcel: Parcel, *, with_mask: bool = True) -> bytes:
  """The bytes of a parcel; without its mask for a receiver that has it already."""
  values = np.asarray(parcel.values)
  pieces = [COUNT.pack(values.ndim), np.array(values.shape, np.uint32).tobytes()]
  if parcel.mask is not None and with_mask:
    pieces.append(np.packbits(np.asarray(parcel.mask), axis=-1).tobytes())
  if parcel.scale is not None:
    pieces.append(np.asarray(parcel.scale).tobytes())
  pieces.append((values if parcel.mask is None else values[np.asarray(parcel.mask)]).tobytes())
  return b''.join(pieces)


def most_bytes(parcel: Parcel) -> int:
  """Bytes that no gradient exceeds that comes back where this parcel crossed."""
  values = parcel.values
  return COUNT.size * (1 + values.ndim) + 4 * values.size + 4 * (1 + values.size // max(1, values.shape[-1]))


def unpack(data: bytes, dtype: np.dtype | str, *, scales: str = 'none', masked: bool = False,
           mask: np.ndarray | None = None) -> tuple[Parcel, int]:
  """The inverse of `pack`.

  Args:
    data: that begins with a parcel.
    dtype: of its values.
    scales: whether it has 'none', 'one' for all values, or one for each of its 'rows'.
    masked: whether it has a mask.
    mask: what crosses, if that is known here.

  Returns:
    The parcel, zeros where nothing has crossed, and its length in bytes.

  Raises:
    ValueError: if it is cut off, of another shape, or nothing that `pack` writes.
  """
  dtype, at = np.dtype(dtype), 0

  def read(count, kind):
    nonlocal at
    length = count * np.dtype(kind).itemsize  # Python's integers, which do not overflow
    if at + length > len(data):
      raise ValueError(f'a message of activations is cut off, got {len(data)} bytes')
    at += length
    return np.frombuffer(data, kind, count, at - length)

  (dimensions,) = (int(n) for n in read(1, np.uint32))
  if not 1 <= dimensions <= DIMENSIONS:
    raise ValueError(f'activations have 1 to {DIMENSIONS} dimensions, got {dimensions}')
  shape = tuple(int(n) for n in read(dimensions, np.uint32))
  if math.prod(max(1, n) for n in shape) >= ENTRIES:  # NumPy takes no larger ones, empty or not
    raise ValueError(f'activations have fewer than {ENTRIES} entries, got {shape=}')
  rows = shape[:-1]
  if mask is not None and mask.shape != shape:
    raise ValueError(f'a gradient must have the shape of its activation, got {shape=} and {mask.shape=}')
  if masked:
    bits = read(math.prod(rows) * -(-shape[-1] // 8), np.uint8)
    mask = _mask_of(bits.reshape(math.prod(rows), -(-shape[-1] // 8)), shape)
  scaled = {'none': None, 'one': (1,) * len(shape), 'rows': (*rows, 1)}[scales]
  scale = None if scaled is None else _checked(read(math.prod(scaled), np.float32)).reshape(scaled)
  if mask is None:
    return Parcel(_codes(read(math.prod(shape), dtype)).reshape(shape), scale, None), at
  values = np.zeros(shape, dtype)
  values[mask] = _codes(read(int(np.count_nonzero(mask)), dtype))
  return Parcel(values, scale, mask), at


def _mask_of(bits, shape):
  """The mask of a bitmap, whose rows have no bits behind their ends."""
  spare = -shape[-1] % 8
  if spare and bits.size and (bits[:, -1] & ((1 << spare) - 1)).any():
    raise ValueError('a bitmap of activations has bits behind the end of a row')
  return np.unpackbits(bits, axis=-1, count=shape[-1]).view(bool).reshape(shape)


def _checked(scale):
  """NaN stands for a row with one; no other scale is not a number that multiplies a magnitude."""
  if np.signbit(scale[~np.isnan(scale)]).any() or np.isinf(scale).any():
    raise ValueError('a scale of activations is negative or infinite')
  return scale


def _codes(values):
  if values.dtype == np.int8 and (values == -128).any():
    raise ValueError('activations have a code that nobody writes')
  return values
