"""Loads the native code. Whether kernels use it is decided in `kernels/dispatch.py`."""

from __future__ import annotations

import importlib
import os
import types
import warnings

import jax

from dct_jax.native import whereabouts

INTERFACE = 13  # raised, here and in module.cc, when a kernel's arguments change

_native: types.ModuleType | None
try:
  _native = importlib.import_module('dct_jax.native._native')
  if _native.INTERFACE != INTERFACE:
    raise ImportError(f'they were built for interface {_native.INTERFACE}, not {INTERFACE}: rebuild them')
except ImportError as error:
  _native = None
  if os.environ.get('DCT_JAX_NATIVE') != '0':
    # pip hides the output of a build that failed, so the only place to say it is here, once.
    warnings.warn(
        f'dct_jax runs without its native CPU kernels ({error}) and uses pure JAX, which is several '
        f'times slower on a CPU. {whereabouts.advice()} DCT_JAX_NATIVE=0 silences this.', RuntimeWarning, stacklevel=2)

AVAILABLE = _native is not None

if _native is not None:
  for _name, _handler in _native.handlers().items():
    jax.ffi.register_ffi_target(f'dct_jax_{_name}', _handler, platform='cpu')


def module() -> types.ModuleType:
  """The native module, for what is not a kernel.

  Raises:
    RuntimeError: if it was not built.
  """
  if _native is None:
    raise RuntimeError(f'this needs the native kernels, which were not built. {whereabouts.advice()}')
  return _native
