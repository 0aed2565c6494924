"""Workers as threads of this process, connected by socket pairs."""

import threading

import pytest

from dct_jax import transport
from dct_jax.kernels import native


def run_workers(size, body, timeout=30.0):
  """body(transport) on one thread a worker; their results in order, or the first error."""
  group = transport.local_group(size, timeout)
  results, errors = [None] * size, []

  def work(t):
    try:
      results[t.rank] = body(t)
    except BaseException as error:
      errors.append(error)
      t.close()

  threads = [threading.Thread(target=work, args=(t,)) for t in group]
  for t in threads:
    t.start()
  for t in threads:
    t.join()
  for t in group:
    t.close()
  if errors:
    raise errors[0]
  return results


@pytest.fixture(autouse=True)
def _needs_native():
  if not native.AVAILABLE:
    pytest.skip('the native kernels are not built')
