"""Some ten thousand broken frames in every run."""

import pathlib
import re

import sanitized


def test_frames_under_address_sanitizer(tmp_path):
  """Not a byte is read out of bounds, whatever the frame says; what is believed is a vector, what is honest is read."""
  printed = sanitized.run(pathlib.Path(__file__).parent / 'fuzz_frames.cc', tmp_path, '30000')
  frames, honest, believed, united = map(int, re.findall(r'\d+', printed))
  assert frames == 30000
  assert frames / 16 < united < frames / 4
  assert frames / 20 < honest <= believed < frames / 2
