"""Native code for the CPU (C++ through jax.ffi): kernels and the transport. Every kernel has a pure-JAX twin."""

from dct_jax.native.ffi import call
from dct_jax.native.loader import AVAILABLE, INTERFACE, module

__all__ = ['AVAILABLE', 'INTERFACE', 'call', 'module']
