"""What every test has: eight host devices, compilations that are kept, Ctrl-C, and a process that stays small."""

import ctypes
import gc
import os
import pathlib
import signal
import sys

import jax
import pytest

TESTS = pathlib.Path(__file__).parent
sys.path.insert(0, str(TESTS))  # `from reference import wire` in any test

jax.config.update('jax_num_cpu_devices', 8)
# Compilations are kept between runs, and programs that tests start inherit that.
KEEP = {'jax_compilation_cache_dir': str(TESTS.parent / '.jax_cache'),
        'jax_persistent_cache_min_compile_time_secs': 0.3}
for name, value in KEEP.items():
  jax.config.update(name, value)
  os.environ.setdefault(name.upper(), str(value))

LARGE = 1.4e9  # bytes of a process; a test adds less than 0.3e9
PAGE = os.sysconf('SC_PAGE_SIZE')


def resident():
  """Bytes of memory that this process has, or 0 where the system does not say."""
  try:
    return int(pathlib.Path('/proc/self/statm').read_text().split()[1]) * PAGE
  except OSError:
    return 0


def forget():
  """Forgets all compiled programs."""
  jax.clear_caches()
  gc.collect()
  if trim := getattr(ctypes.CDLL(None), 'malloc_trim', None):  # what is free goes back to the system
    trim(0)


@pytest.fixture(autouse=True)
def _small_process():
  """JAX keeps every program that it compiled, 1.5 MB and more each: a process that has many forgets them."""
  yield
  if resident() > LARGE:
    forget()


@pytest.fixture(autouse=True, scope='session')
def _ctrl_c():
  """Ctrl-C works in tests, and in what they start, also if it is ignored: by nohup, or in the background."""
  before = signal.getsignal(signal.SIGINT)
  if before == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
  yield
  signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True, scope='module')
def _plain_code(request):
  """Programs of files that are marked `plain_code` compile a third faster, to slower code that rounds otherwise.

  Such files compare with a tolerance, or two runs of the same. Where bits are compared with an oracle's, or those of
  one program with those of another, tests see what users run.
  """
  plain = request.node.get_closest_marker('plain_code') is not None
  if plain != jax.config.read('jax_disable_most_optimizations'):
    forget()  # what was compiled for files of the other kind
  jax.config.update('jax_disable_most_optimizations', plain)


def place(nodeid):
  """Tests with the same place run in one process, one after the other: a file's, and a case's of the laws.

  Then they share what is compiled, and no two processes compile the same.
  """
  path, case = nodeid.partition('::')[0], nodeid.partition('[')[2]
  return path + case if path.endswith('test_laws.py') else path


def pytest_collection_modifyitems(items):
  """The laws come last: their places are many and small, so that all processes end at the same time.

  Files with plain code come before them, together.
  """
  items.sort(key=lambda item: (item.path.name == 'test_laws.py', item.get_closest_marker('plain_code') is not None))


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config, log):
  from xdist.scheduler import LoadScopeScheduling

  class Places(LoadScopeScheduling):
    def _split_scope(self, nodeid):
      return place(nodeid)

  if config.getvalue('dist') != 'load':  # somebody asks for something else
    return None
  config.option.loadscopereorder = False
  return Places(config, log)


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
