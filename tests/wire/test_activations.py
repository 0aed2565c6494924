"""Activations as bytes: what is written is read again, and is laid out as the documentation says."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from reference import frames as oracle

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
  for end in range(len(data)):
    with pytest.raises(ValueError, match='cut off'):
      unpack(data[:end], 'float32', masked=True)
  with pytest.raises(ValueError, match='shape of its activation'):
    unpack(pack(parcel, with_mask=False), 'float32', mask=np.ones((3, 8), bool))


def fuzz(messages, seed=0):
  """Broken and honest messages, of which the reader believes what the oracle does; how many it believed."""
  rng, believed = np.random.default_rng(seed), 0
  for _ in range(messages):
    dtype = rng.choice(list(KINDS))
    shape = tuple(int(n) for n in rng.integers(0, 12, rng.integers(1, 4)))
    parcel, back = make_parcel(shape, dtype, rng.random(), int(rng.integers(2**16))), bool(rng.integers(2))
    data = bytearray(pack(parcel, with_mask=not back))
    for _ in range(rng.integers(3)):
      damage(data, rng)
    kind = rng.choice(['none', 'one', 'rows']) if rng.integers(8) == 0 else KINDS[dtype]
    arguments = {'scales': kind, 'masked': not back, 'mask': parcel.mask if back else None}
    try:
      want = oracle.read_activation(bytes(data), dtype, **arguments)
    except oracle.Refused:
      with pytest.raises(ValueError):
        unpack(bytes(data), dtype, **arguments)
      continue
    found, length = unpack(bytes(data), dtype, **arguments)
    believed += 1
    assert length == want[2]
    assert found.values.tobytes() == want[0].tobytes()
    assert (found.scale is None) == (want[1] is None)
    assert found.scale is None or found.scale.tobytes() == want[1].tobytes()
  return believed


def damage(data, rng):
  kind = rng.integers(5)
  if kind == 0:
    del data[rng.integers(len(data) + 1):]
  elif kind == 1 and data:
    data[rng.integers(len(data))] ^= 1 << rng.integers(8)
  elif kind == 2 and len(data) >= 8:  # dimensions that do not fit, or overflow when they are multiplied
    at = 4 * rng.integers(2)
    data[at:at + 4] = int(rng.choice([0, 1, 2, 8, 9, 32, 2**16, 2**31, 2**32 - 1])).to_bytes(4, 'little')
  elif kind == 3 and len(data) >= 4:
    at = rng.integers(len(data) - 3)
    data[at:at + 4] = np.float32(rng.choice([-1, np.inf, np.nan, -0.0, 1e38])).tobytes()
  else:
    data += rng.bytes(rng.integers(9))


def test_the_reader_believes_what_the_oracle_does():
  believed = fuzz(3000)
  assert 600 < believed < 2700


@pytest.mark.parametrize(('data', 'error'), [
    (b'', 'cut off'), (b'\0\0\0\0', '1 to 8 dimensions'), (b'\xff\xff\xff\xff', '1 to 8 dimensions'),
    (b'\4\0\0\0' + b'\0\0\0\x80' * 4, 'fewer than 2147483648 entries'),  # 2^124 values, whose product is 0 in 64 bits
    (b'\2\0\0\0' + b'\1\0\0\0' + b'\3\0\0\0' + b'\x01', 'bits behind the end of a row')])
def test_heads_that_lie(data, error):
  with pytest.raises(ValueError, match=error):
    unpack(data, 'float32', masked=True)


@pytest.mark.parametrize('scale', [-1, np.inf, -np.inf, -0.0])
def test_scales_that_nobody_writes(scale):
  parcel = Parcel(np.ones((1, 4), np.int8), np.full((1, 1), scale, np.float32), np.ones((1, 4), bool))
  with pytest.raises(ValueError, match='negative or infinite'):
    unpack(pack(parcel), 'int8', scales='rows', masked=True)


def test_codes_that_nobody_writes():
  parcel = Parcel(np.full((1, 4), -128, np.int8), np.ones((1, 1), np.float32), np.ones((1, 4), bool))
  with pytest.raises(ValueError, match='a code that nobody writes'):
    unpack(pack(parcel), 'int8', scales='rows', masked=True)
