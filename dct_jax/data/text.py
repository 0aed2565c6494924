"""Lines of plain, .gz and .xz files, in blocks of bounded size or all at once.

A small packed file may unpack to anything. What is held in memory is therefore bounded, and the bounds are arguments.
"""

from __future__ import annotations

import gzip
import lzma
import os
import zlib
from collections.abc import Iterator
from typing import IO

MAGIC = {b'\x1f\x8b': gzip.open, b'\xfd7': lzma.open}  # the first two bytes: names may lie
BLOCK = 4 << 20
LONGEST = 16 << 20  # bytes of a line
LARGEST = 4 << 30  # bytes of a file that is read as a whole
UNPACKER = 256 << 20  # bytes that unpacking may take for itself; a file's header says how much it wants
DAMAGE = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error)  # what unpacking raises


class DamagedError(ValueError):
  """A packed file is cut off, or was changed."""


class TooLargeError(ValueError):
  """A file, or a line of it, is larger than what was allowed."""


def _opener(path):
  with open(path, 'rb') as file:
    return MAGIC.get(file.read(2), open)


def open_bytes(path: str | os.PathLike) -> IO[bytes]:
  """Opens a file for reading, unpacked if it is packed.

  Raises:
    TooLargeError: if unpacking would take more memory than `UNPACKER`.
  """
  opener = _opener(path)
  if opener is lzma.open:
    _check_unpacker(path)
  return opener(path, 'rb')


def _check_unpacker(path):
  with open(path, 'rb') as file:
    try:
      lzma.LZMADecompressor(memlimit=UNPACKER).decompress(file.read(1 << 12), max_length=1)
    except lzma.LZMAError as error:
      if 'limit' in str(error).lower():  # anything else is told when it is read
        raise TooLargeError(f'{path} wants more than {UNPACKER:,} bytes of memory for unpacking') from error


def read_bytes(path: str | os.PathLike, most: int = LARGEST) -> bytes:
  """What is in a file, unpacked if it is packed.

  Raises:
    FileNotFoundError: if there is no such file.
    DamagedError: if it cannot be unpacked.
    TooLargeError: if there are more bytes than `most`.
  """
  with open_bytes(path) as file:
    data = _read(file, most + 1, path)
  if len(data) > most:
    raise TooLargeError(f'{path} has more than {most:,} bytes')
  return data


def plain_size(path: str | os.PathLike) -> int | None:
  """How many bytes there are to read; None if the file is packed, for then only reading tells."""
  return os.path.getsize(path) if _opener(path) is open else None


def blocks(path: str | os.PathLike, size: int = BLOCK, longest: int = LONGEST) -> Iterator[bytes]:
  """Whole lines, about `size` bytes at a time; the last one gets a newline if it has none.

  Args:
    path: a plain, .gz or .xz file.
    size: bytes of a block.
    longest: bytes of a line that is still believed to be one.

  Raises:
    FileNotFoundError: if there is no such file.
    DamagedError: if it cannot be unpacked, perhaps after some blocks.
    TooLargeError: if a line is longer than `longest`, or unpacking takes too much memory.
  """
  with open_bytes(path) as file:
    rest: list[bytes] = []
    while block := _read(file, size, path):
      if sum(map(len, rest)) + (block.find(b'\n') if b'\n' in block else len(block)) > longest:
        raise TooLargeError(f'{path} has a line of more than {longest:,} bytes: is it a file of text?')
      head, newline, tail = block.rpartition(b'\n')
      if newline:
        yield b''.join([*rest, head, newline])
        rest = []
      rest.append(tail)
    if last := b''.join(rest):
      yield last + b'\n'


def _read(file, size, path):
  try:
    return file.read(size)
  except DAMAGE as error:
    raise DamagedError(f'{path} cannot be unpacked: {error}') from error


def read_lines(path: str | os.PathLike) -> list[str]:
  """Lines of a plain, .gz or .xz file, without their ends.

  Only a newline ends a line: others that Unicode knows occur within sentences, and a reader that splits there
  puts all lines behind out of step with those of a translation.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: if it is cut off, too large, or is not UTF-8; the message has the line.
  """
  data = read_bytes(path)
  data += b'' if data.endswith(b'\n') or not data else b'\n'
  try:
    lines = data.decode('utf-8-sig').split('\n')
  except UnicodeDecodeError as error:
    line = data.count(b'\n', 0, error.start) + 1
    raise ValueError(f'{path}, line {line}: this is not UTF-8: {error.reason}') from error
  return [line.removesuffix('\r') for line in lines[:-1]]


class Malformed:
  """Counts lines that are not of a file's format, and refuses the file when they are too many.

  Args:
    path: of the file, for the message.
    limit: how many are skipped without complaint.
    form: what a line should look like.
  """

  def __init__(self, path: str | os.PathLike, limit: int, form: str):
    self.path, self.limit, self.form = os.fspath(path), limit, form
    self.count, self.first = 0, 0  # how many, and the number of the first line

  def add(self, line: int, text: bytes) -> None:
    """Counts one.

    Raises:
      ValueError: past the limit, with the number of the line (from 1) and its beginning.
    """
    self.count, self.first = self.count + 1, self.first or line
    if self.count > self.limit:
      raise ValueError(f'{self.path}, line {line}: expected {self.form!r}, got {text[:60]!r} '
                       f'(malformed lines so far: {self.count}, limit: {self.limit})')
