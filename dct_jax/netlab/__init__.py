"""A lab of shaped networks on one machine.

    python -m dct_jax.netlab run --hosts 4 --rate 100mbit -- python program.py
    python -m dct_jax.netlab check --hosts 4 --rate 100mbit
"""

from dct_jax.netlab.check import Check
from dct_jax.netlab.lab import Lab, Run, end_on_sigterm
from dct_jax.netlab.namespaces import Counters, Link, missing
from dct_jax.wire.units import bits_per_second

__all__ = [
    'Check', 'Counters', 'Lab', 'Link', 'Run', 'bits_per_second', 'end_on_sigterm', 'missing',
    'advise', 'calibrate',  # modules
]
