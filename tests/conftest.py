"""Eight host devices for every test, and compilations kept between runs."""

import os
import pathlib
import sys

import jax
import pytest

TESTS = pathlib.Path(__file__).parent
sys.path.insert(0, str(TESTS))  # `from reference import wire` in any test

jax.config.update('jax_num_cpu_devices', 8)
jax.config.update('jax_compilation_cache_dir', str(TESTS.parent / '.jax_cache'))
jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.3)
os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', str(TESTS.parent / '.jax_cache'))


@pytest.fixture(params=[True, False], ids=['native', 'twin'])
def native(request):
  """Runs a test with the native kernels and with their twins."""
  from dct_jax import kernels
  with kernels.use_native(request.param):
    if request.param and not kernels.native_in_use():
      pytest.skip('the native kernels are not built here')
    yield request.param


@pytest.fixture(scope='session')
def shared_data():
  """The directory of real data sets, which are no part of the project: DCT_JAX_DATA, or beside it."""
  path = pathlib.Path(os.environ.get('DCT_JAX_DATA', TESTS.parents[1] / 'shared/data'))
  if not path.is_dir():
    pytest.skip('there is no real data here: DCT_JAX_DATA may name its directory')
  return path
