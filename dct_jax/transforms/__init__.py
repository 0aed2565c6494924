"""Optax transformations: error feedback + compressor + collective, and where their state lives."""

from dct_jax.transforms.accumulate import AccumulateState, accumulate
from dct_jax.transforms.aliases import dct_dp, dense_mean
from dct_jax.transforms.compressed_mean import CompressedMeanState, compressed_mean
from dct_jax.transforms.overlap import StaleMeanState, bucketed_mean, stale_mean
from dct_jax.transforms.per_worker import PerWorkerState, per_worker
from dct_jax.transforms.placement import (
    init,
    local_value_and_grad,
    make_mesh,
    state_specs,
    vmap_axes,
)
from dct_jax.transforms.push_pull import PushPullState, push_pull, server_params
from dct_jax.transforms.simulate import simulate

__all__ = [
    'AccumulateState', 'CompressedMeanState', 'PerWorkerState', 'PushPullState', 'StaleMeanState',
    'accumulate', 'bucketed_mean', 'compressed_mean', 'dct_dp', 'dense_mean', 'init', 'local_value_and_grad',
    'make_mesh', 'per_worker', 'push_pull', 'server_params', 'simulate', 'stale_mean', 'state_specs',
    'vmap_axes',
]
