"""Some thousands of broken messages in every run; fuzz.py has done a million."""

from wire.fuzz import fuzz


def test_broken_messages_are_refused_or_right(native):
  done, accepted = fuzz(4000 if native else 1000, seed=7)
  assert 0 < accepted < done / 2
