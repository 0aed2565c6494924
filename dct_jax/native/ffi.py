"""Calls a native kernel from a traced function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from dct_jax import axes


def call(name: str, results: Sequence[jax.ShapeDtypeStruct], args: Sequence[jax.Array],
         aliases: dict[int, int] | None = None, **attributes: Any) -> tuple[jax.Array, ...]:
  """Calls a native kernel on `args`; `attributes` are static numbers."""
  attributes = {k: np.int64(v) if type(v) is int else v for k, v in attributes.items()}
  out = jax.ffi.ffi_call(
      f'dct_jax_{name}', tuple(results), vmap_method='sequential',
      input_output_aliases=aliases or {})(*args, **attributes)
  # JAX takes the results of a foreign call for equal on all workers; they differ where inputs do.
  return axes.vary_as(tuple(out), args)
