"""Native CPU kernels beside their pure-JAX twins. Use these functions, never a twin directly."""

from dct_jax.kernels.dispatch import (
    NO_QUOTA,
    Selected,
    all_finite,
    encode,
    native_in_use,
    pack,
    qsgd_encode,
    qsgd_round_trip,
    qsgd_sum,
    settle,
    stop_if,
    three_lc_encode,
    three_lc_sum,
    threshold,
    unpack_sum,
    use_native,
)

__all__ = [
    'NO_QUOTA', 'Selected', 'all_finite', 'encode', 'native_in_use', 'pack', 'qsgd_encode',
    'qsgd_round_trip', 'qsgd_sum', 'settle', 'stop_if', 'three_lc_encode',
    'three_lc_sum', 'threshold', 'unpack_sum', 'use_native',
]
