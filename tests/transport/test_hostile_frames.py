"""A worker that sends nonsense: the exchange ends with an error that names it, never with a crash or a wrong sum.

The other end of the connection is a socket in Python, which copies what an honest worker sends and changes it.
`fuzz_frames.cc` does the same to the reader alone, thousands of times and under sanitizers.
"""

import re
import socket
import struct
import threading

import jax
import numpy as np
import pytest
import workers
from marks import slow
from reference import frames as oracle

from dct_jax import native, transport
from dct_jax.collectives.algorithms import ALGORITHMS
from dct_jax.wire.exchanges import Settings

PARCEL = oracle.PARCEL
FIELDS = ('form', 'codec', 'rice', 'pad', 'count', 'index_words', 'nonfinite', 'corrupt', 'wanted', 'encoded',
          'missing', 'entries', 'sent', 'present')
SPARSE, DENSE, QUANTIZED = range(3)
NOTHING = PARCEL.pack(*[0] * len(FIELDS))  # a sparse vector without entries
UNREADABLE = r'worker 1 \(liar\) sent a frame that cannot be read: '


def changed(**fields):
  """An answer: the worker's own parcel with other numbers in its head, and perhaps another `body`."""
  body = fields.pop('body', None)

  def answer(frame):
    head = dict(zip(FIELDS, PARCEL.unpack_from(frame), strict=True)) | fields
    return PARCEL.pack(*head.values()) + (frame[PARCEL.size:] if body is None else body)

  return answer


def same(frame):
  return frame


def silence(frame):
  """An answer: a vector without entries."""
  del frame
  return NOTHING


def words(*numbers):
  return struct.pack(f'<{len(numbers)}I', *numbers)


def floats(*numbers):
  return struct.pack(f'<{len(numbers)}f', *numbers)


class Liar:
  """Worker 1 of two. It answers the frames of worker 0 with `answers`, which say what to do with each.

  With `first` it is worker 0, and answers worker 1.
  """

  def __init__(self, *answers, first=False):
    mine, self._socket = socket.socketpair()
    self._socket.settimeout(20)
    order = slice(None, None, -1 if first else 1)
    self.channel = native.module().open_channel(
        int(first), [-1, mine.detach()][order], ['me', 'liar'][order], 10.0, 20.0, True)
    self._thread = threading.Thread(target=self._lie, args=(answers,))

  def __enter__(self):
    self._thread.start()
    return self.channel

  def __exit__(self, *unused):
    self._thread.join(30)
    native.module().close_channel(self.channel)
    self._socket.close()

  def _take(self, count):
    data = b''
    while len(data) < count and (more := self._socket.recv(count - len(data))):
      data += more
    return data

  def _lie(self, answers):
    for answer in answers:
      head = self._take(oracle.HEAD.size)
      _, kind, length, sequence, _ = oracle.HEAD.unpack(head)
      frame = head + self._take(length + oracle.TAIL.size)
      lie = answer(oracle.decode(frame, kind, sequence, length))
      self._socket.sendall(lie(kind, sequence) if callable(lie) else oracle.encode(lie, kind, sequence))


def reduce_against(*answers, **options):
  """Worker 0's sum of its vector (ones at 1, 5 and 20 of 50) and a liar's."""
  with Liar(*answers) as channel:
    return np.asarray(workers.reducer(channel, **options)()[1])


def error_against(*answers, **options):
  """The text of the error, which must come before any timeout."""
  with Liar(*answers) as channel:
    text, seconds = workers.error_of(workers.reducer(channel, **options))
    assert seconds < 5
    assert 'dct_jax: worker 1 (liar) sen' in text
    # The channel is closed, and says why.
    assert 'the channel is closed: worker 1 (liar) sen' in workers.error_of(workers.reducer(channel, **options))[0]
  return text


@pytest.mark.parametrize('codec', ['int32', 'gap16', 'bitmap', 'rice'])
def test_an_honest_copy_is_believed(codec):
  """Or all that follows would show nothing."""
  out = reduce_against(same, algorithm='all_gather', settings=Settings(codec))
  np.testing.assert_array_equal(np.flatnonzero(out), [1, 5, 20])
  assert out.sum() == 6


@pytest.mark.parametrize('rice', [2**32 - 1, 2**32 - 32, 2**31, 32, 255])
def test_rice_parameters_out_of_range(rice):
  assert re.search(UNREADABLE + 'its index codec', error_against(
      changed(rice=rice), algorithm='all_gather', settings=Settings('rice')))


@pytest.mark.parametrize('dtype', [np.float32, np.uint32])
@pytest.mark.parametrize('algorithm', ['split_all_gather', 'dsar'])
def test_quantized_vectors_that_nobody_asked_for(algorithm, dtype):
  """With 0 bits the length of a block is the number of its scales, behind which there is nothing to read."""
  lie = lambda frame: PARCEL.pack(QUANTIZED, 0, 0, 0, 25, 1, *[0] * 8) + words(0x3F800000)
  assert re.search(UNREADABLE + 'it has a form that nobody asked for', error_against(
      silence, lie, algorithm=algorithm, dtype=dtype))


@pytest.mark.parametrize('index_words', [2**62, 2**62 + 1, 2**61, -2**62, -1, 2**63 - 1, -2**63, 1000])
def test_index_words_that_overflow_or_go_beyond_the_frame(index_words):
  assert re.search(UNREADABLE + 'it is too short for its indices', error_against(
      changed(index_words=index_words), algorithm='all_gather', settings=Settings('rice')))


HEADS = {
    'unknown form': (changed(form=3), 'it has a form'),
    'huge form': (changed(form=2**32 - 1), 'it has a form'),
    'negative count': (changed(count=-1), 'its number of entries'),
    'large count': (changed(count=51), 'its number of entries'),
    'count that overflows in bytes': (changed(count=2**62), 'its number of entries'),
    'count beyond the values': (changed(count=4), 'it has another length'),
    'count below the values': (changed(count=2), 'it has another length'),
    'no count, but entries': (changed(count=0), 'its index codec'),
    'no codec': (changed(codec=0), 'its index codec'),
    'unknown codec': (changed(codec=5), 'its index codec'),
    'Rice parameter of another codec': (changed(codec=1, rice=3), 'its index codec'),
    'reserved bits': (changed(pad=1), 'its index codec'),
    'dense, of another count': (changed(form=DENSE), 'its number of entries'),
    'dense, too short': (changed(form=DENSE, codec=0, rice=0, count=50, index_words=0), 'it has another length'),
    'dense, with indices': (changed(form=DENSE, codec=0, rice=0, count=50), 'it has words that mean nothing'),
    'more damaged workers than there are': (changed(corrupt=3), 'its accounts'),
    'more entries than addresses': (changed(entries=2**63), 'its accounts'),
    'bytes that overflow a sum': (changed(sent=2**64 - 1), 'its accounts'),
    'more coordinates than there are': (changed(present=51), 'its accounts'),
}


@pytest.mark.parametrize('case', HEADS)
def test_heads_that_lie(case):
  answer, reason = HEADS[case]
  assert re.search(UNREADABLE + reason, error_against(
      answer, algorithm='all_gather', settings=Settings('rice')))


ONES = floats(1, 1, 1)
INDICES = {
    'repeated': (1, 3, words(1, 5, 5) + ONES),
    'falling': (1, 3, words(5, 1, 20) + ONES),
    'at the size': (1, 3, words(1, 5, 50) + ONES),
    'huge': (1, 3, words(1, 5, 2**32 - 1) + ONES),
    'fewer words than indices': (1, 2, words(1, 5) + ONES),
    'more words than indices': (1, 4, words(1, 5, 20, 21) + ONES),
    'gap16 beyond the size': (2, 2, words(1 | 65535 << 16, 0) + ONES),
    'gap16 that never ends': (2, 1, words(1 | 2 << 16) + ONES),
    'bitmap with too few': (3, 2, words(3, 0) + ONES),
    'bitmap with too many': (3, 2, words(15, 0) + ONES),
    'bitmap beyond the size': (3, 2, words(3, 1 << 31) + ONES),
    'bitmap of another length': (3, 1, words(7) + ONES),
    'Rice without an end': (4, 1, words(0) + ONES),
    'Rice without words': (4, 0, ONES),
}


@pytest.mark.parametrize('case', INDICES)
def test_indices_that_lie(case):
  codec, count, body = INDICES[case]
  lie = changed(codec=codec, rice=0, index_words=count, body=body)
  assert re.search(UNREADABLE + 'its indices are not strictly increasing', error_against(
      lie, algorithm='all_gather', settings=Settings('rice')))


@pytest.mark.parametrize('scale', [0x7FC00000, 0x7F800000, 0x80000001, 0xFFFFFFFF])
def test_scales_that_no_encoder_writes(scale):
  """NaN, infinity and negative ones would enter the sum, or make another sum of it."""
  settings = Settings(bits=4, bucket=32)
  block = lambda m: lambda frame: PARCEL.pack(QUANTIZED, 0, 0, 0, 18, 4, *[0] * 8) + words(m, 0, 0, 0)
  assert reduce_against(silence, block(0x3F800000), algorithm='dsar', settings=settings).shape == (50,)
  assert re.search(UNREADABLE + 'its scales', error_against(
      silence, block(scale), algorithm='dsar', settings=settings))


def test_a_quantized_vector_of_another_length():
  lie = lambda frame: PARCEL.pack(QUANTIZED, 0, 0, 0, 18, 3, *[0] * 8) + words(0x3F800000, 0, 0)
  assert re.search(UNREADABLE + 'it has another length', error_against(
      silence, lie, algorithm='dsar', settings=Settings(bits=4, bucket=32)))


@pytest.mark.parametrize('length', [0, 1, 16, 95, 96, 97, 99, 100, 111])
@pytest.mark.parametrize('algorithm', ['all_gather', 'recursive_double'])
def test_truncated_frames(algorithm, length):
  assert re.search(UNREADABLE, error_against(
      lambda frame: frame[:length], algorithm=algorithm, settings=Settings('rice')))


@pytest.mark.parametrize('extra', [1, 4, 12])
def test_frames_with_something_behind(extra):
  assert re.search(UNREADABLE + 'it has another length', error_against(
      lambda frame: frame + bytes(extra), algorithm='all_gather', settings=Settings('rice')))


def head_of(magic, kind, length, sequence):
  start = struct.pack('<IIQI', magic, kind, length, sequence)
  return start + oracle.TAIL.pack(oracle.crc32c(start))


@pytest.mark.parametrize('said', [2**64 - 1, 2**63, 2**63 - 1, 2**62, 2**40, 1000])
def test_frames_longer_than_makes_sense_take_no_memory(said):
  lie = lambda frame: lambda kind, sequence: head_of(oracle.MAGIC, kind, said, sequence) + frame
  assert re.search(rf'worker 1 \(liar\) sends a frame of {said} bytes where at most \d+ make sense', error_against(
      lie, algorithm='all_gather'))


def flipped(bit):
  """An answer: an honest frame with one bit that is another."""

  def answer(body):
    def frame(kind, sequence):
      data = bytearray(oracle.encode(body, kind, sequence))
      data[bit // 8 % len(data)] ^= 1 << bit % 8
      return bytes(data)

    return frame

  return answer


FRAME_BITS = 8 * (oracle.HEAD.size + oracle.PARCEL.size + 12 + 12 + oracle.TAIL.size)  # of the honest one


@pytest.mark.parametrize('every', [5, *slow(1)])
def test_no_bit_of_a_frame_flips_unnoticed(every):
  """Bits of the head and the tail, and a seventh of those of the body; the error names worker and exchange."""
  inside = range(8 * oracle.HEAD.size, FRAME_BITS - 8 * oracle.TAIL.size)
  heads = {*range(FRAME_BITS)} - {*inside}
  for bit in sorted(heads | {*inside[::7]})[::every]:
    text = error_against(flipped(bit), algorithm='all_gather', settings=Settings('int32'))
    assert re.search(r'worker 1 \(liar\) sent a frame that was damaged on its way: (its checksum|the checksum of its '
                     r'head) is wrong \(exchange 1: all_gather of 50 coordinates\)', text), bit


@pytest.mark.parametrize(('magic', 'ahead', 'error'), [
    (0xDC7F0001, 0, 'sends frames of another version'), (0x12345678, 0, 'sends frames of another version'),
    (oracle.MAGIC, 1, 'is in another exchange'), (oracle.MAGIC, 2**32 - 1, 'is in another exchange')])
def test_frames_of_another_version_or_place(magic, ahead, error):
  lie = lambda body: lambda kind, sequence: head_of(magic, kind, len(body), (sequence + ahead) % 2**32) + body
  with Liar(lie) as channel:
    text, seconds = workers.error_of(workers.reducer(channel, algorithm='all_gather'))
  assert f'worker 1 (liar) {error}' in text
  assert seconds < 5


@pytest.mark.parametrize('algorithm', ALGORITHMS)
@pytest.mark.parametrize('answer', [lambda frame: b'', lambda frame: bytes(range(96)), changed(form=7)],
                         ids=['empty', 'random', 'form'])
def test_every_algorithm_refuses_in_its_first_round(answer, algorithm):
  assert re.search(UNREADABLE, error_against(answer, algorithm=algorithm))


@pytest.mark.parametrize('answer', [lambda frame: b'', lambda frame: frame[:-1], lambda frame: frame[:-4]])
def test_the_ring_refuses_values_of_another_length(answer):
  size = 2**17
  with Liar(answer) as channel:
    call = jax.jit(lambda x: transport.reduce_stream(
        np.zeros(0, np.uint32), x, size, size, channel, Settings(), algorithm=ALGORITHMS.index('dense')))
    text, _ = workers.error_of(lambda: jax.block_until_ready(call(np.ones(size, np.float32))))
  assert re.search(UNREADABLE + 'it has another length', text)


def error_in_union(*answers, size, index=0, first=False):
  """The text of the error of a union of our one entry with a liar's vector."""
  with Liar(*answers, first=first) as channel:
    call = jax.jit(lambda i, v: transport.reduce_stream(
        i, v, 1, size, channel, Settings(), algorithm=ALGORITHMS.index('union')))
    arguments = jax.device_put((np.array([index], np.uint32), np.ones(1, np.float32)))
    return workers.error_of(lambda: jax.block_until_ready(call(*arguments)))[0]


def bitmap_of(*numbers):
  """An answer: a dense vector of words."""
  return lambda frame: changed(form=DENSE, codec=0, rice=0, index_words=0, count=len(numbers),
                               body=words(*numbers))(frame)


LAST = 2**17 + 1  # of a bitmap that is not gathered, with one bit in its last word
HALF = 2049  # words of the first worker's share of that bitmap, one more than of the second's
RING = 2**22 + 1  # of a bitmap that goes around a ring, likewise
RING_HALF = 2**16 + 1


@pytest.mark.parametrize('bits', [1 << 18, 1 << 31, 2**32 - 1])
@pytest.mark.parametrize('form', ['dense', 'sparse'])
def test_bits_behind_the_last_unit(form, bits):
  """They would lead to coordinates behind the vector's end."""
  answer = bitmap_of(0, bits) if form == 'dense' else changed(
      form=SPARSE, codec=1, rice=0, count=1, index_words=1, body=words(1, bits))
  assert re.search(UNREADABLE + 'its bitmap has bits behind the last unit', error_against(answer, algorithm='union'))


def test_bits_behind_the_last_unit_of_what_an_owner_shows():
  show = bitmap_of(*[0] * (HALF - 2), 2)
  assert re.search(UNREADABLE + 'its bitmap has bits behind the last unit', error_in_union(
      bitmap_of(*[0] * HALF), show, size=LAST))


@pytest.mark.parametrize('first', [False, True])
def test_bits_behind_the_last_unit_in_a_ring(first):
  """The second worker's share is the last. It shows them, or is told of them by the first."""
  wrong = words(*[0] * (RING_HALF - 2), 2)
  show = lambda frame: PARCEL.pack(DENSE, 0, 0, 0, RING_HALF - 1, 0, *[0] * 8) + wrong
  answers = [lambda frame: wrong] if first else [lambda frame: bytes(4 * RING_HALF), show]
  named = UNREADABLE.replace('1', '0') if first else UNREADABLE
  assert re.search(named + 'its bitmap has bits behind the last unit', error_in_union(
      *answers, size=RING, first=first))


def test_an_owner_that_leaves_our_units_out():
  """Our values would have no place in the union."""
  assert re.search(UNREADABLE + 'its bitmap lacks units that it was told of', error_in_union(
      bitmap_of(*[0] * HALF), bitmap_of(*[0] * (HALF - 1)), size=LAST, index=LAST - 1))


@pytest.mark.parametrize('answer', [lambda frame: frame[:-4], lambda frame: b'', changed(count=3), changed(form=9)],
                         ids=['short', 'empty', 'count', 'form'])
def test_values_that_do_not_fit_the_union(answer):
  """All agree on the union; who sends another number of values does not."""
  assert re.search(UNREADABLE, error_against(bitmap_of(0xFFFF0000, 0), answer, algorithm='union'))


def test_units_that_only_the_liar_has_are_units():
  """Nobody can tell: our half of the union's 32 is right for what was said."""
  out = reduce_against(bitmap_of(2**32 - 1, 0), silence, silence, algorithm='union')
  assert out.shape == (50,)
  np.testing.assert_array_equal(np.flatnonzero(out[:16]), [1, 5])


def test_a_worker_that_lies_in_the_background_is_named_by_wait():
  message = np.zeros(6, np.uint32)
  message[:3] = 0xDC720000, 6, 6
  message[5] = checksum(message)
  layers = (np.zeros(10, np.float32),)
  options = {'algorithm': ALGORITHMS.index('split_all_gather')}
  with Liar(changed(form=9)) as channel:
    start = jax.jit(lambda m: transport.start_messages(m, layers, channel, Settings(), **options))
    wait = jax.jit(lambda h: transport.wait_messages(h, message, layers, channel, Settings(), **options))
    handle = start(message)
    text, _ = workers.error_of(lambda: jax.block_until_ready(wait(handle)))
  assert re.search(UNREADABLE + 'it has a form', text)


def checksum(message):
  from reference import wire
  return wire.checksum(message, int(message[1]))


@pytest.mark.parametrize('exchange', ['gather', 'scatter', 'reduce'])
@pytest.mark.parametrize('answer', [
    lambda frame: b'', lambda frame: frame[:4], lambda frame: frame[:-4], lambda frame: frame[:-1],
    lambda frame: frame + bytes(4), lambda frame: frame[:4] + words(5) + frame[8:]],
    ids=['empty', 'word', 'short', 'byte', 'long', 'length'])
def test_messages_of_another_length_than_they_say(exchange, answer):
  """What lay in the buffer before would be taken for the rest of a message."""
  message = np.zeros(40, np.uint32)
  message[:3] = 0xDC720000, 6, 6
  message[5] = checksum(message)
  with Liar(answer) as channel:
    call = jax.jit({
        'gather': lambda m: transport.gather_messages(m, channel, 2),
        'scatter': lambda m: transport.scatter_messages(np.stack([message, message]), channel),
        'reduce': lambda m: transport.reduce_messages(m, (np.zeros(30),), channel, Settings(), algorithm=0),
    }[exchange])
    text, _ = workers.error_of(lambda: jax.block_until_ready(call(message)))
  assert re.search(r'worker 1 \(liar\) sent a message of \d+ bytes, which is not what its header says', text)


def test_random_changes_end_in_an_error_or_in_a_sum():
  """Whatever bits flip. A flip among values is another value, and one of some accounts another account."""
  rng = np.random.default_rng(0)
  refused = 0
  for trial in range(60):

    def flip(frame):
      data = bytearray(frame)
      for _ in range(1 + trial % 3):
        data[rng.integers(len(data))] ^= 1 << rng.integers(8)
      return bytes(data)

    with Liar(flip) as channel:
      try:
        out = np.asarray(workers.reducer(channel, algorithm='all_gather', settings=Settings('rice'))()[1])
        assert out.shape == (50,)
        assert np.count_nonzero(out) <= 6
      except (jax.errors.JaxRuntimeError, ValueError) as error:
        assert re.search(UNREADABLE, str(error))
        refused += 1
  assert 20 < refused < 60
