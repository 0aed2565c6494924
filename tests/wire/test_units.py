"""Rates and sizes in words."""

import pytest

from dct_jax.wire import units


@pytest.mark.parametrize('text, number', [
    ('8GB', 8e9), ('8GiB', 8 * 2**30), ('1.5mb', 1.5e6), ('3KiB', 3072), ('7B', 7)])
def test_sizes(text, number):
  assert units.number_of_bytes(text) == number


@pytest.mark.parametrize('text', ['', '8', 'GB', '8 GB', '-1GB', '8iB', '8GBit', 'infGB'])
def test_what_is_no_size(text):
  with pytest.raises(ValueError, match='a size must look like'):
    units.number_of_bytes(text)


@pytest.mark.parametrize('size, text', [
    (0, '0 B'), (999, '999 B'), (1000, '1 KB'), (262_144, '262 KB'), (1_456_789, '1.46 MB'), (5e12, '5,000 GB')])
def test_sizes_are_written(size, text):
  assert units.size_text(size) == text
