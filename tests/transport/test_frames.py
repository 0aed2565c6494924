"""Frames: their checksum, and what honest workers send, against the oracle of docs/wire_format.md."""

import re
import socket
import threading

import jax
import numpy as np
import pytest
import workers
from reference import frames as oracle
from reference import wire as wire_oracle

from dct_jax import native, transport
from dct_jax.collectives.algorithms import ALGORITHMS
from dct_jax.transport.connect import Patience
from dct_jax.transport.links import KIND, SocketLinks
from dct_jax.wire.exchanges import Settings

SIZE = 50


@pytest.mark.parametrize('tables', [False, True])
def test_the_checksum_is_crc32c(tables):
  """By the instruction and by tables; every length up to 300, and those at which stretches begin and end."""
  crc32c = lambda data, before=0: native.module().crc32c(data, before, tables)
  assert crc32c(b'123456789') == 0xE3069283  # the catalogue's check value
  assert crc32c(bytes(32)) == 0x8A9136AA and crc32c(b'\xff' * 32) == 0x62A8AB43  # RFC 3720, B.4
  data = np.random.default_rng(0).bytes(3 * 4096 + 3 * 256 + 9)
  for n in (*range(300), 767, 768, 769, 12287, 12288, 12289, len(data)):
    assert crc32c(memoryview(data)[n % 7:n]) == oracle.crc32c(data[n % 7:n])
  for cut in (0, 1, 100, 5000, len(data)):  # in two pieces
    assert crc32c(data[cut:], crc32c(data[:cut])) == oracle.crc32c(data)


def test_both_ways_of_summing_agree_on_much():
  data = memoryview(np.random.default_rng(1).bytes(1 << 20))
  for begin, end in ((0, len(data)), (3, len(data) - 5), (1, 24577)):
    assert native.module().crc32c(data[begin:end]) == native.module().crc32c(data[begin:end], 0, True)


class Listener:
  """Worker 1 of two, which keeps what worker 0 sends, and answers each frame with `answer(body)`."""

  def __init__(self, answer=lambda body: body):
    mine, self._socket = socket.socketpair()
    self._socket.settimeout(20)
    self.channel = native.module().open_channel(0, [-1, mine.detach()], ['me', 'it'], 10.0, 20.0, True)
    self.frames, self._answer = [], answer
    self._thread = threading.Thread(target=self._listen)

  def _take(self, count):
    data = b''
    while len(data) < count and (more := self._socket.recv(count - len(data))):
      data += more
    return data

  def _listen(self):
    while head := self._take(oracle.HEAD.size):
      _, kind, length, sequence, _ = oracle.HEAD.unpack(head)
      frame = head + self._take(length + oracle.TAIL.size)
      self.frames.append(frame)
      self._socket.sendall(oracle.encode(self._answer(oracle.decode(frame, kind, sequence, length)), kind, sequence))

  def __enter__(self):
    self._thread.start()
    return self

  def __exit__(self, *unused):
    native.module().close_channel(self.channel)
    self._thread.join(30)
    self._socket.close()


def bodies(frames):
  """Those of consecutive frames of an exchange, each checked by the oracle."""
  kinds = {oracle.HEAD.unpack_from(f)[1] for f in frames}
  assert len(kinds) == 1
  return [oracle.decode(f, *kinds, n, len(f)) for n, f in enumerate(frames)]


@pytest.mark.parametrize('codec', ['int32', 'gap16', 'bitmap', 'rice'])
@pytest.mark.parametrize('dtype', [np.float32, np.uint32])
def test_the_oracle_reads_sparse_vectors_and_writes_the_same_bytes(codec, dtype):
  with Listener() as it:
    workers.reducer(it.channel, algorithm='all_gather', settings=Settings(codec), dtype=dtype)()
  body, = bodies(it.frames)
  vector = oracle.read_parcel(body, SIZE, dtype, 2)
  np.testing.assert_array_equal(vector.indices, [1, 5, 20])
  np.testing.assert_array_equal(vector.values, np.ones(3, dtype))
  assert body == oracle.write_parcel(SIZE, vector.values, vector.indices, codec, vector.accounts)


zeros = lambda n: oracle.write_parcel(n, np.zeros(n, np.float32))
NOTHING = oracle.write_parcel(25, np.zeros(0, np.float32), [])
REPLIES = {
    'recursive_double': [lambda body: body],
    'split_all_gather': [lambda body: NOTHING] * 2,
    'dsar': [lambda body: NOTHING, lambda body: zeros(25)],
    'union': [lambda body: body, lambda body: zeros(2), lambda body: zeros(1)],
}


@pytest.mark.parametrize('algorithm', REPLIES)
def test_the_oracle_reads_what_every_algorithm_sends(algorithm):
  """Of a vector with ones at 1, 5 and 20, in a range of 25, or in a union of three of which two are the first's."""
  turn = iter(REPLIES[algorithm])
  with Listener(lambda body: next(turn)(body)) as it:
    out = np.asarray(workers.reducer(it.channel, algorithm=algorithm)()[1])
  own, *shown = bodies(it.frames)
  if algorithm == 'union':
    bitmap = oracle.read_parcel(own, 2, np.uint32, 2)
    assert bitmap.values[0] == 1 << 1 | 1 << 5 | 1 << 20
    assert [oracle.read_parcel(b, n, np.float32, 2).values.tolist() for b, n in zip(shown, (1, 2), strict=True)] == [
        [1], [1, 1]]
    return
  size = 50 if algorithm == 'recursive_double' else 25
  for body in (own, *shown) if algorithm == 'recursive_double' else shown:
    vector = oracle.read_parcel(body, size, np.float32, 2)
    at = np.arange(size) if vector.indices is None else vector.indices
    assert at[np.flatnonzero(vector.values)].tolist() == [1, 5, 20]
    assert (vector.indices is None) == (algorithm == 'dsar')
  assert np.flatnonzero(out).tolist() == [1, 5, 20]


def test_the_oracle_reads_quantized_vectors():
  settings = Settings(bits=4, bucket=32)
  reply = iter([oracle.write_parcel(32, np.zeros(0, np.float32), []),
                oracle.write_parcel(18, np.zeros(18, np.float32))])
  with Listener(lambda body: next(reply)) as it:
    out = np.asarray(workers.reducer(it.channel, algorithm='dsar', settings=settings)()[1])
  vector = oracle.read_parcel(bodies(it.frames)[1], 32, np.float32, 2, 4, 32)
  np.testing.assert_array_equal(vector.values, out[:32])
  assert vector.values[1] == 1 and np.count_nonzero(vector.values) == 3


def test_the_oracle_reads_gathered_messages_and_the_ring():
  message = wire_oracle.encode([1, 7], [1.0, 2.0], universe=30, capacity=40)
  with Listener() as it:
    out = np.asarray(jax.jit(lambda m: transport.gather_messages(m, it.channel, 2))(message))
  words = oracle.read_message(bodies(it.frames)[0])
  np.testing.assert_array_equal(words, message[:message[1]])
  np.testing.assert_array_equal(out[:, :words.size], [words, words])  # what is behind means nothing

  size = 2**17
  x = np.arange(size, dtype=np.float32)
  show = lambda body: oracle.write_parcel(size // 2, np.frombuffer(body, np.float32, size // 2))
  reply = iter([lambda body: body, lambda body: show(body[oracle.PARCEL.size:])])
  with Listener(lambda body: next(reply)(body)) as it:
    call = jax.jit(lambda x: transport.reduce_stream(
        np.zeros(0, np.uint32), x, size, size, it.channel, Settings(), algorithm=ALGORITHMS.index('dense'))[1])
    out = np.asarray(call(x))
  raw, shown = bodies(it.frames)
  np.testing.assert_array_equal(np.frombuffer(raw, np.float32), x[size // 2:])
  total = oracle.read_parcel(shown, size // 2, np.float32, 2).values
  np.testing.assert_array_equal(total, out[:size // 2])


def test_frames_in_many_pieces_are_frames():
  """As slow networks deliver them; longer than what is summed in one go."""
  size = 200_000
  with Listener() as it:
    call = jax.jit(lambda x: transport.reduce_stream(
        np.zeros(0, np.uint32), x, size, size, it.channel, Settings(), algorithm=0)[1])
    out = np.asarray(call(np.ones(size, np.float32)))
  assert out.sum() == 2 * size
  assert len(bodies(it.frames)[0]) == oracle.PARCEL.size + 4 * size


@pytest.fixture
def link():
  a, b = socket.socketpair()
  links = SocketLinks(0, [None, a], ['me', 'there'], Patience(2.0, 5.0))
  b.settimeout(10)
  yield links, b
  links.close()
  b.close()


def test_links_send_frames_of_the_same_format(link):
  links, there = link
  for n, message in enumerate((b'', b'activations', bytes(70_000))):
    links.send(1, message)
    frame = b''
    while len(frame) < 28 + len(message):
      frame += there.recv(1 << 20)
    assert oracle.decode(frame, KIND, n, len(message)) == message
    there.sendall(oracle.encode(message, KIND, n))
    assert links.receive(1, len(message)) == message


def test_no_bit_of_a_links_frame_flips_unnoticed():
  whole = oracle.encode(b'gradient', KIND, 0)
  for bit in range(8 * len(whole)):
    a, b = socket.socketpair()
    links = SocketLinks(0, [None, a], ['me', 'there'], Patience(2.0, 5.0))
    hurt = bytearray(whole)
    hurt[bit // 8] ^= 1 << bit % 8
    b.sendall(hurt)
    with pytest.raises(ConnectionError, match=r'worker 1 \(there\) sent a frame that was damaged .* \(message 1 from'):
      links.receive(1)
    with pytest.raises(ConnectionError, match='damaged'):
      links.send(1, b'more')
    links.close()
    b.close()


def test_links_take_no_memory_for_what_a_length_claims(link):
  links, there = link
  start = oracle.struct.pack('<IIQI', oracle.MAGIC, KIND, 6 << 30, 0)
  there.sendall(start + oracle.TAIL.pack(oracle.crc32c(start)))
  with pytest.raises(ConnectionError, match=r'worker 1 \(there\) sends a frame of 6442450944 bytes where at most 100 '):
    links.receive(1, 100)


@pytest.mark.parametrize(('magic', 'kind', 'sequence', 'error'), [
    (0xDC7F0001, KIND, 0, 'another version'), (oracle.MAGIC, KIND + 1, 0, 'another exchange'),
    (oracle.MAGIC, KIND, 1, 'another exchange')])
def test_links_of_another_version_or_place(link, magic, kind, sequence, error):
  links, there = link
  start = oracle.struct.pack('<IIQI', magic, kind, 0, sequence)
  there.sendall(start + oracle.TAIL.pack(oracle.crc32c(start)) + bytes(4))
  with pytest.raises(ConnectionError, match=rf'worker 1 \(there\) .*{error}'):
    links.receive(1)


def test_without_checksums_both_ends_are_told(monkeypatch):
  """The switch is this process's own: a worker that has it on is refused by those that have not."""
  monkeypatch.setenv('DCT_JAX_FRAME_CRC', '0')
  first, second = transport.local_group(2)
  with pytest.warns(RuntimeWarning, match='frames of this channel are not checked'):
    unchecked = first.open()
  monkeypatch.delenv('DCT_JAX_FRAME_CRC')
  checked = second.open()
  texts = workers.in_threads(lambda c: workers.error_of(workers.reducer(c))[0], [unchecked, checked])
  assert 'the checksum of its head is wrong' in texts[1]
  assert re.search('worker 1 .*(closed|reached|another)', texts[0])
