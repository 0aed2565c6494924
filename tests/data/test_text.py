"""What readers hold in memory is bounded, whatever a file unpacks to."""

import lzma
import resource

import pytest

from dct_jax.data import text
from dct_jax.data.clicks import criteo
from dct_jax.data.linear import libsvm, urls
from dct_jax.data.words import wikitext


def bomb(path, size, piece=b'x'):
  """A small file that unpacks to a line of `size` bytes."""
  with lzma.open(path, 'wb', preset=0) as file:
    for _ in range(size >> 20):
      file.write(piece * (1 << 20))
  return path


def peak():
  """Bytes that this process has held at most."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def test_a_line_has_a_longest_length(tmp_path):
  path, before = bomb(tmp_path / 'bomb.xz', 256 << 20), peak()
  assert path.stat().st_size < 1 << 20
  for read in (libsvm.read_libsvm, urls.read_urls, lambda p: criteo.prepare(p, tmp_path / 'cache', progress=False)):
    with pytest.raises(text.TooLargeError, match='bomb.xz has a line of more than 16,777,216 bytes'):
      read(path)
  assert peak() - before < 160 << 20


def test_a_line_of_the_longest_length_is_read(tmp_path):
  path = tmp_path / 'lines'
  path.write_bytes(b'a' * 100 + b'\n' + b'b' * 100)
  for size in (7, 64, 1000):
    assert b''.join(text.blocks(path, size, longest=100)) == path.read_bytes() + b'\n'
    with pytest.raises(text.TooLargeError):
      list(text.blocks(path, size, longest=99))


def test_a_whole_file_has_a_largest_size(tmp_path, monkeypatch):
  path = bomb(tmp_path / 'bomb.xz', 4 << 20, b'a\n')
  assert len(text.read_bytes(path)) == 8 << 20
  with pytest.raises(text.TooLargeError, match='more than 1,000 bytes'):
    text.read_bytes(path, most=1000)
  monkeypatch.setattr(text.read_bytes, '__defaults__', (1000,))
  with pytest.raises(text.TooLargeError):
    wikitext.read(path)


def test_a_file_says_how_much_memory_unpacking_takes(tmp_path, monkeypatch):
  path = tmp_path / 'greedy.xz'
  path.write_bytes(lzma.compress(b'a\n', filters=[{'id': lzma.FILTER_LZMA2, 'dict_size': 1 << 29}]))
  with pytest.raises(text.TooLargeError, match='wants more than 268,435,456 bytes'):
    text.read_bytes(path)
  monkeypatch.setattr(text, 'UNPACKER', 1 << 30)
  assert text.read_bytes(path) == b'a\n'


def test_nothing_is_no_set(tmp_path):
  path = tmp_path / 'empty'
  path.write_bytes(b'')
  for read in (libsvm.read_libsvm, urls.read_urls, lambda p: criteo.prepare(p, tmp_path / 'cache', progress=False)):
    with pytest.raises(ValueError, match=r'empty has (no|0) rows'):
      read(path)
