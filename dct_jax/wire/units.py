"""Rates and sizes as people write them."""

from __future__ import annotations

import re

_PREFIXES = {'': 1, 'k': 1e3, 'm': 1e6, 'g': 1e9, 't': 1e12}


def bits_per_second(rate: str) -> float:
  """A rate in tc's words as a number.

  Raises:
    ValueError: if it is not one.
  """
  match = re.fullmatch(r'(\d+(?:\.\d+)?)([kmgt]?)bit', rate.lower())
  if not match:
    raise ValueError(f"rate must look like '100mbit' or '1gbit', got {rate=}")
  return float(match[1]) * _PREFIXES[match[2]]


def number_of_bytes(size: str) -> float:
  """A size as a number: '8GB' is 8e9, '8GiB' is 8 * 2**30.

  Raises:
    ValueError: if it is not one.
  """
  match = re.fullmatch(r'(\d+(?:\.\d+)?)([kmgt]?)(i?)b', size.lower())
  if not match or (match[3] and not match[2]):
    raise ValueError(f"a size must look like '512MB' or '8GiB', got {size=}")
  base = 2.0 ** (10 * ' kmgt'.index(match[2])) if match[3] else _PREFIXES[match[2]]
  return float(match[1]) * base


def size_text(size: float) -> str:
  """A number of bytes in three digits or so, as in '12.3 MB'."""
  for unit, factor in (('GB', 1e9), ('MB', 1e6), ('KB', 1e3)):
    if size >= factor:
      return f'{size / factor:.3g} {unit}' if size < 999.5 * factor else f'{size / factor:,.0f} {unit}'
  return f'{size:.0f} B'
