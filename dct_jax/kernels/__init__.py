"""Native CPU kernels beside their pure-JAX twins. Use these functions, never a twin directly."""

from dct_jax.kernels import bit_packing, bitmaps, blocks, choices, cuts, hashing, levels, three_values, zero_runs
from dct_jax.kernels.blocks import BlockCodec
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
    shared_read,
    shared_write,
    sketch_insert,
    sketch_query,
    three_lc_encode,
    three_lc_sum,
    threshold,
    unpack_sum,
    use_native,
)

__all__ = [
    'BlockCodec', 'NO_QUOTA', 'Selected', 'all_finite', 'bit_packing', 'bitmaps', 'blocks', 'choices', 'cuts', 'encode',
    'hashing', 'levels', 'native_in_use', 'pack', 'qsgd_encode', 'qsgd_round_trip', 'qsgd_sum', 'settle',
    'shared_read', 'shared_write', 'sketch_insert', 'sketch_query', 'three_lc_encode', 'three_lc_sum', 'three_values',
    'threshold', 'unpack_sum', 'use_native', 'zero_runs',
]
