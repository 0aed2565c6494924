"""Some ten thousand broken frames in every run: no byte out of bounds is read, and the oracle reads the same."""

import pathlib
import re

import numpy as np
import pytest
import sanitized
from reference import frames as oracle

SOURCE = pathlib.Path(__file__).parent / 'fuzz_frames.cc'
FRAMES = 40000


@pytest.fixture(scope='module')
def printed(tmp_path_factory):
  return sanitized.run(SOURCE, tmp_path_factory.mktemp('fuzz'), str(FRAMES), '0', '11')


def test_frames_under_address_sanitizer(printed):
  """Not a byte is read out of bounds, whatever the frame says; what is believed is a vector, what is honest is read."""
  *_, last = printed.splitlines()
  frames, honest, believed, united, framed, messages, told = map(int, re.findall(r'\d+', last))
  assert frames == FRAMES
  assert frames / 100 < united < frames / 8
  assert frames / 40 < framed < frames / 8
  assert frames / 40 < messages < frames / 8
  assert frames / 20 < honest <= believed < frames / 2
  assert frames / 40 < told


def test_the_oracle_reads_every_parcel_alike(printed):
  """What is refused, and what is read from the others."""
  lines = [line.split() for line in printed.splitlines() if line.startswith('parcel')]
  refused = 0
  for _, dtype, size, workers, bits, bucket, body, verdict, *parts in lines:
    try:
      found = oracle.read_parcel(bytes.fromhex(body[1:]), int(size), np.dtype(dtype), int(workers), int(bits),
                                 int(bucket))
    except oracle.Refused as why:
      assert verdict == 'refused', why
      refused += 1
      continue
    assert verdict == ('dense' if found.indices is None else 'sparse')
    index, values = (bytes.fromhex(part[1:]) for part in parts)
    assert values == found.values.tobytes()
    assert index == (b'' if found.indices is None else found.indices.astype(np.uint32).tobytes())
  assert len(lines) / 4 < refused < len(lines) * 0.95
