"""Activations as bytes: what is written is read again, and is laid out as the documentation says."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from dct_jax.wire.activations import Parcel, pack, unpack

KINDS = {'float32': 'none', 'float16': 'one', 'int8': 'rows'}


def make_parcel(shape, dtype, density, seed):
  rng = np.random.default_rng(seed)
  scales = {'none': None, 'one': (1,) * len(shape), 'rows': (*shape[:-1], 1)}[KINDS[dtype]]
  mask = rng.random(shape) < density
  values = np.where(mask, rng.integers(-100, 100, shape), 0).astype(dtype)
  return Parcel(values, None if scales is None else rng.random(scales, np.float32), mask)


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(st.lists(st.integers(1, 19), min_size=1, max_size=3), st.sampled_from(list(KINDS)),
                  st.sampled_from([0.0, 0.1, 1.0]), st.integers(0, 2**16))
def test_what_is_written_is_read_again(shape, dtype, density, seed):
  parcel = make_parcel(tuple(shape), dtype, density, seed)
  forward, back = pack(parcel), pack(parcel, with_mask=False)
  found, length = unpack(forward + b'more', dtype, scales=KINDS[dtype], masked=True)
  again, shorter = unpack(back, dtype, scales=KINDS[dtype], mask=parcel.mask)
  assert (length, shorter) == (len(forward), len(back))
  for read in (found, again):
    np.testing.assert_array_equal(read.values, parcel.values)
    np.testing.assert_array_equal(read.mask, parcel.mask)
    if parcel.scale is not None:
      np.testing.assert_array_equal(read.scale, parcel.scale)


def test_the_bytes_by_hand():
  values = np.array([[1.5, 0, 0, -2], [0, 0, 0.25, 0]], np.float16)
  head = b'\2\0\0\0' b'\2\0\0\0' b'\4\0\0\0'  # two dimensions: 2 and 4
  numbers = np.array([1.5, -2, 0.25], '<f2').tobytes()
  parcel = Parcel(values, None, values != 0)
  assert pack(parcel) == head + bytes([0b10010000, 0b00100000]) + numbers
  assert pack(parcel, with_mask=False) == head + numbers
  assert pack(Parcel(values, None, None)) == head + values.tobytes()


def test_nan_and_infinity_are_numbers_like_others():
  values = np.array([[np.nan, 0, np.inf], [-np.inf, 1, 0]], np.float16)
  parcel = Parcel(values, np.array([[np.nan]], np.float32), values != 0)
  found, _ = unpack(pack(parcel), 'float16', scales='one', masked=True)
  assert all(a.tobytes() == b.tobytes() for a, b in zip(found, parcel, strict=True))


def test_what_is_cut_off_or_of_another_shape_is_refused():
  parcel = make_parcel((3, 9), 'float32', 0.5, 0)
  data = pack(parcel)
  for end in range(4, len(data)):
    with pytest.raises(ValueError, match='cut off'):
      unpack(data[:end], 'float32', masked=True)
  with pytest.raises(ValueError, match='shape of its activation'):
    unpack(pack(parcel, with_mask=False), 'float32', mask=np.ones((3, 8), bool))
