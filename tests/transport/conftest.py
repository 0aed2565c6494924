"""`import workers` in any test of this directory."""

import pathlib
import sys

import pytest

from dct_jax import native

sys.path.insert(0, str(pathlib.Path(__file__).parent))


@pytest.fixture(autouse=True)
def _needs_native():
  if not native.AVAILABLE:
    pytest.skip('the native kernels are not built')
