"""Marks of cases among the parameters of a test."""

import pytest


def slow(*cases):
  """Cases for `make test-slow`: `@parametrize('workers', [1, 3, *slow(2, 4, 8)])`; a tuple has several arguments."""
  return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow) for case in cases]
