"""Optax transformations: error feedback + compressor + collective, replicas that synchronize, and where state lives."""

from dct_jax.transforms import averaging
from dct_jax.transforms.accumulate import AccumulateState, accumulate
from dct_jax.transforms.aliases import dct_dp, dense_mean
from dct_jax.transforms.compressed_mean import CompressedMeanState, compressed_mean, raise_if_bad
from dct_jax.transforms.groups import group_specs, init_groups, map_groups
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
from dct_jax.transforms.synchronize import SynchronizeState, bmuf, easgd, model_averaging, synchronize

__all__ = [
    'AccumulateState', 'CompressedMeanState', 'PerWorkerState', 'PushPullState', 'StaleMeanState', 'SynchronizeState',
    'accumulate', 'averaging', 'bmuf', 'bucketed_mean', 'compressed_mean', 'dct_dp', 'dense_mean', 'easgd',
    'group_specs', 'init', 'init_groups', 'local_value_and_grad', 'make_mesh', 'map_groups', 'model_averaging',
    'per_worker', 'push_pull', 'raise_if_bad', 'server_params', 'simulate', 'stale_mean', 'state_specs', 'synchronize',
    'vmap_axes',
]
