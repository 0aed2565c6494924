"""Sparse rows for linear models: libsvm files, URLs, and a synthetic set."""

from dct_jax.data.linear.csr import Csr
from dct_jax.data.linear.sets import load

__all__ = [
    'Csr', 'load',
    'columns', 'entries', 'libsvm', 'synthetic', 'urls',  # modules
]
