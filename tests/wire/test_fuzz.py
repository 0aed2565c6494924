"""Some thousands of broken messages in every run; a million were done once (see fuzz.py)."""

import pathlib

import sanitized

from wire.fuzz import fuzz

HERE = pathlib.Path(__file__).parent


def test_broken_messages_are_refused_or_right(native):
  done, accepted = fuzz(4000 if native else 1000, seed=7)
  assert 0 < accepted < done / 2


def test_native_decoder_under_address_sanitizer(tmp_path):
  """Not a word is read out of bounds, whatever the message says."""
  sanitized.run(HERE / 'fuzz_sanitized.cc', tmp_path, '200000')
