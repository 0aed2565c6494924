"""Training to the end, as a user would: minutes, so these run after the others."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from wire.fuzz import fuzz

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_digits_with_99_percent_dct_reach_the_loss_of_dense(tmp_path):
  """Eight workers, real data: the final loss is within 1% of dense, with a fraction of the bytes."""
  done = subprocess.run([sys.executable, 'experiments/digits_mlp.py', f'--workdir={tmp_path}'], cwd=ROOT,
                        capture_output=True, text=True, timeout=900, check=False)
  assert done.returncode == 0, done.stderr
  rows: dict[str, list[str]] = {}
  for line in done.stdout.splitlines():
    if re.match(r' *(dense|dct)', line):
      rows.setdefault(line.split()[0], line.split()[1:])  # of the first table
  dense = float(rows['dense'][0])
  for method in ('dct', 'dct_tracked'):
    assert float(rows[method][0]) < 1.01 * dense, done.stdout


@pytest.mark.slow
def test_a_hundred_thousand_broken_messages():
  done, accepted = fuzz(100_000, seed=1)
  assert 0 < accepted < done / 2
