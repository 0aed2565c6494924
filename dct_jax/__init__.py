"""dct_jax: Dynamic Communication Thresholding, and other ways to train over a slow network.

The sentence that the library exists for:

    tx = optax.chain(dct_jax.dct_dp(sparsity=0.99, lifespan=1000, axis_name='data'), optax.sgd(0.1))
"""

from dct_jax import contract, state
from dct_jax.arrays import Stream
from dct_jax.boundaries import SparseBoundary, sparse_boundary
from dct_jax.collectives import (
    Costs,
    all_gather,
    open_exchange,
    psum,
    s2,
    sparse_all_reduce,
    streams,
    union_sum,
)
from dct_jax.compressors import (
    block_top_k,
    bucket_top_k,
    cast,
    dct_threshold,
    error_feedback,
    identity,
    int8,
    one_bit,
    power_sgd,
    qsgd,
    random_k,
    sampled_top_k,
    sign_vote,
    stochastic_ternary,
    three_lc,
    top_k,
)
from dct_jax.contract import Collective, Compressor, Room, whole_room
from dct_jax.transforms import (
    CompressedMeanState,
    accumulate,
    bmuf,
    bucketed_mean,
    compressed_mean,
    dct_dp,
    dense_mean,
    easgd,
    group_specs,
    init,
    init_groups,
    local_value_and_grad,
    make_mesh,
    map_groups,
    model_averaging,
    per_worker,
    push_pull,
    raise_if_bad,
    server_params,
    simulate,
    stale_mean,
    state_specs,
    synchronize,
    vmap_axes,
)
from dct_jax.transport import Transport, connect
from dct_jax.version import __version__

__all__ = [
    'Collective', 'CompressedMeanState', 'Compressor', 'Costs', 'Room', 'SparseBoundary', 'Stream', 'Transport',
    'accumulate', 'all_gather', 'block_top_k', 'bmuf', 'bucket_top_k', 'bucketed_mean', 'cast', 'compressed_mean',
    'connect', 'contract', 'dct_dp', 'dct_threshold', 'dense_mean', 'easgd', 'error_feedback', 'group_specs',
    'identity', 'init', 'init_groups', 'int8', 'local_value_and_grad', 'make_mesh', 'map_groups', 'model_averaging',
    'one_bit', 'open_exchange', 'per_worker', 'power_sgd', 'psum', 'push_pull', 'qsgd', 'raise_if_bad', 'random_k',
    's2', 'sampled_top_k', 'server_params', 'sign_vote', 'simulate', 'sparse_all_reduce', 'sparse_boundary',
    'stale_mean', 'state', 'state_specs', 'stochastic_ternary', 'streams', 'synchronize', 'three_lc', 'top_k',
    'union_sum', 'vmap_axes', 'whole_room', '__version__',
]
