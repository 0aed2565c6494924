"""Values of a plan as bytes. Both ends know the plan, so that only numbers travel, and lengths are checked."""

from __future__ import annotations

import functools
import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from dct_jax.partition import codecs
from dct_jax.partition.graph import Graph
from dct_jax.partition.programs import Transfer

HEAD, CHECKSUM = struct.Struct('<BxHIQQII'), struct.Struct('<I')  # the checksum is the end of the head
MOST = 1 << 31  # bytes of a message; a connection takes no longer ones

RUN, NEXT, SYNC, ERROR, END, WAIT = range(1, 7)


class Head(NamedTuple):
  """What a message is about.

  Attributes:
    kind: RUN a round, NEXT batch, SYNC parameters; of answers also ERROR, whose body is text,
      END of the data, and WAIT and ask again.
    round: of the batch.
    sender: number of a net or group.
    batch: its number, or another one that the kind needs.
    stamp: when this attempt at the batch began; later ones of a net have larger stamps, also after a restart.
    checksum: CRC32 of the rest of the head and the body.
  """

  kind: int
  round: int = 0
  sender: int = 0
  batch: int = 0
  stamp: int = 0
  length: int = 0
  checksum: int = 0


def join(head: Head, body: bytes = b'') -> bytes:
  """A message."""
  start = HEAD.pack(*head._replace(length=len(body), checksum=0))[:-CHECKSUM.size]
  return start + CHECKSUM.pack(zlib.crc32(body, zlib.crc32(start))) + body


def part(message: bytes) -> tuple[Head, memoryview]:
  """Head and body of a message.

  Raises:
    ConnectionError: if they do not fit each other.
  """
  if len(message) < HEAD.size:
    raise ConnectionError(f'a message of {len(message)} bytes has no head')
  head, body = Head(*HEAD.unpack_from(message)), memoryview(message)[HEAD.size:]
  start = memoryview(message)[:HEAD.size - CHECKSUM.size]
  if head.length != len(body) or head.checksum != zlib.crc32(body, zlib.crc32(start)):
    raise ConnectionError(f'a message was damaged on its way: {len(body)} bytes came of {head.length}')
  return head, body


class ArrayBytes:
  """Arrays of known shapes and types, one behind the other."""

  def __init__(self, shapes: Any):
    self.shapes, self._tree = jax.tree.flatten(shapes)
    self.length = sum(math.prod(s.shape) * s.dtype.itemsize for s in self.shapes)

  def pack(self, arrays: Any) -> bytes:
    """Their bytes.

    Raises:
      ValueError: if shapes or types are others.
    """
    plain = [np.asarray(x, order='C') for x in jax.tree.leaves(arrays)]
    apart = [(x, s) for x, s in zip(plain, self.shapes, strict=True) if (x.shape, x.dtype) != (s.shape, s.dtype)]
    if apart:
      x, s = apart[0]
      raise ValueError(f'the plan has {s.dtype}{list(s.shape)} here, got {x.dtype}{list(x.shape)}')
    return b''.join(x.tobytes() for x in plain)

  def unpack(self, body: bytes | memoryview) -> Any:
    """Arrays of these bytes.

    Raises:
      ConnectionError: if there are more or fewer.
    """
    if len(body) != self.length:
      raise ConnectionError(f'{len(body)} bytes came where the plan has {self.length}')
    found, at = [], 0
    for s in self.shapes:
      count = math.prod(s.shape)
      found.append(np.frombuffer(body, s.dtype, count, at).reshape(s.shape))
      at += count * s.dtype.itemsize
    return jax.tree.unflatten(self._tree, found)


def layout_of(graph: Graph, transfers: Sequence[Transfer]) -> ArrayBytes:
  """Of what a node sends to another in a round."""
  return ArrayBytes([_encoded(graph.avals[t.value], t.codec) for t in transfers])


def plain_shape(aval: Any) -> Any:
  """Shape and type of a value that travels as it is; a key travels as its words."""
  return _encoded(aval, codecs.EXACT)


def plain_value(x: Any, aval: Any) -> Any:
  """The value that came."""
  return codecs.decode(x, codecs.EXACT, aval)


def _encoded(aval: Any, codec: str) -> Any:
  return jax.eval_shape(functools.partial(codecs.encode, codec=codec), jax.ShapeDtypeStruct(aval.shape, aval.dtype))
