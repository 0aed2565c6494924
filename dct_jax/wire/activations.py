"""Activations on their way between two workers: the shape, a bitmap of what crosses, and the values that do.

Written and read by NumPy on the host, because messages are as long as they are.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np

COUNT = struct.Struct('<I')


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
    ValueError: if it is cut off or of another shape.
  """
  dtype, at = np.dtype(dtype), COUNT.size
  (dimensions,) = COUNT.unpack_from(data)

  def read(count, kind):
    nonlocal at
    if at + count * np.dtype(kind).itemsize > len(data):
      raise ValueError(f'a message of activations is cut off, got {len(data)} bytes')
    at += count * np.dtype(kind).itemsize
    return np.frombuffer(data, kind, count, at - count * np.dtype(kind).itemsize)

  shape = tuple(int(n) for n in read(dimensions, np.uint32))
  rows = shape[:-1]
  if masked:
    bits = read(int(np.prod(rows)) * -(-shape[-1] // 8), np.uint8).reshape(*rows, -1)
    mask = np.unpackbits(bits, axis=-1, count=shape[-1]).view(bool)
  if mask is not None and mask.shape != shape:
    raise ValueError(f'a gradient must have the shape of its activation, got {shape=} and {mask.shape=}')
  scaled = {'none': None, 'one': (1,) * len(shape), 'rows': (*rows, 1)}[scales]
  scale = None if scaled is None else read(int(np.prod(scaled)), np.float32).reshape(scaled)
  if mask is None:
    return Parcel(read(int(np.prod(shape)), dtype).reshape(shape), scale, None), at
  values = np.zeros(shape, dtype)
  values[mask] = read(int(np.count_nonzero(mask)), dtype)
  return Parcel(values, scale, mask), at
