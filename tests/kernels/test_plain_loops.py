"""The loops for processors without AVX2, on one that has it."""

import os
import pathlib
import subprocess
import sys

import pytest

from dct_jax import kernels

TESTS = pathlib.Path(__file__).parents[1]


@pytest.mark.slow
def test_kernels_without_avx2_pass_the_same_tests():
  if not kernels.native_in_use():
    pytest.skip('needs the native kernels')
  which = ('kernels/test_kernels.py', 'compressors/test_three_lc.py', 'compressors/test_qsgd.py')
  done = subprocess.run(
      [sys.executable, '-m', 'pytest', '-m', 'not slow', '-p', 'no:cacheprovider', '-p', 'no:xdist',
       *(str(TESTS / name) for name in which)], capture_output=True, text=True, cwd=TESTS.parent,
      env=os.environ | {'DCT_JAX_AVX2': '0'}, timeout=1200, check=False)
  assert done.returncode == 0, done.stdout
  assert 'passed' in done.stdout or '[100%]' in done.stdout
