"""Memory that threads share: alone exact to the bit, together nothing of others is undone; native and twin alike."""

import threading

import numpy as np
import pytest

from dct_jax import kernels

RNG = np.random.default_rng(0)
BOTH = pytest.mark.parametrize('native', [True, False])
TYPES = pytest.mark.parametrize('dtype', [np.float32, np.int32, np.uint32, np.float16])


def some(dtype, shape=(7, 13)):
  return (RNG.normal(size=shape) * 100).astype(dtype)


@BOTH
@TYPES
def test_alone_it_is_what_was_meant(native, dtype):
  with kernels.use_native(native):
    shared, after = some(dtype), some(dtype)
    before = kernels.shared_read(shared)
    assert before is not shared and np.array_equal(before, shared)
    kernels.shared_write(shared, before, after)
  assert shared.tobytes() == after.tobytes()


@BOTH
def test_what_others_wrote_stays(native):
  with kernels.use_native(native):
    before = some(np.float32)
    others, mine = before.copy(), before.copy()
    others[0], mine[:2] = before[0] + 3, before[:2] + 5  # one row of both, one of mine alone
    shared = others.copy()
    kernels.shared_write(shared, before, mine)
  np.testing.assert_array_equal(shared[0], others[0] + (mine[0] - before[0]))
  assert shared[1].tobytes() == mine[1].tobytes() and shared[2:].tobytes() == before[2:].tobytes()


@BOTH
def test_zeros_of_both_signs_and_nan(native):
  before = np.array([0.0, -0.0, np.nan, 1.0, np.inf], np.float32)
  after = np.array([-0.0, 0.0, 2.0, np.nan, 3.0], np.float32)
  shared = before.copy()
  with kernels.use_native(native):
    kernels.shared_write(shared, before, after)
  assert shared.tobytes() == after.tobytes()


@BOTH
def test_numbers_without_dimensions_and_empty_ones(native):
  with kernels.use_native(native):
    for shape in ((), (0,), (3, 0)):
      shared = np.zeros(shape, np.int32)
      kernels.shared_write(shared, kernels.shared_read(shared), np.ones(shape, np.int32))
      assert np.array_equal(shared, np.ones(shape, np.int32))


def test_other_shapes_and_types_are_refused():
  shared = np.zeros(4, np.float32)
  for before, after in ((np.zeros(3, np.float32), np.zeros(4, np.float32)), (shared, np.zeros(4, np.int32))):
    with pytest.raises(ValueError, match='shapes and types must be equal'):
      kernels.shared_write(shared, before, after)


@BOTH
def test_threads_that_change_rows_of_their_own_lose_nothing(native):
  """A write of the whole array would undo what the others wrote since it was read."""
  shared = np.zeros((4, 500), np.float32)

  def work(row):
    for _ in range(200):
      before = kernels.shared_read(shared)
      after = before.copy()
      after[row] += 1
      kernels.shared_write(shared, before, after)

  with kernels.use_native(native):
    threads = [threading.Thread(target=work, args=(row,)) for row in range(4)]
    for t in threads:
      t.start()
    for t in threads:
      t.join()
  assert (shared == 200).all()
