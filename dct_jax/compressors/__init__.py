"""Compressors: layers + residual -> one message + what is left. One method a file."""

from dct_jax.compressors import linear, stream
from dct_jax.compressors.block_top_k import block_top_k
from dct_jax.compressors.cast import cast
from dct_jax.compressors.dct_threshold import DctThresholdState, dct_threshold
from dct_jax.compressors.error_feedback import drain, empty_residual, error_feedback
from dct_jax.compressors.identity import identity
from dct_jax.compressors.one_bit import one_bit
from dct_jax.compressors.power_sgd import PowerSgdState, power_sgd
from dct_jax.compressors.qsgd import QsgdState, qsgd
from dct_jax.compressors.random_k import RandomKState, random_k
from dct_jax.compressors.sampled import SampledTopKState, sampled_top_k
from dct_jax.compressors.sign_vote import sign_vote
from dct_jax.compressors.ternary import StochasticTernaryState, stochastic_ternary
from dct_jax.compressors.three_lc import three_lc
from dct_jax.compressors.top_k import TopKState, bucket_top_k, top_k
from dct_jax.compressors.uniform import int8

__all__ = [
    'DctThresholdState', 'PowerSgdState', 'QsgdState', 'RandomKState', 'SampledTopKState', 'StochasticTernaryState',
    'TopKState', 'block_top_k', 'bucket_top_k', 'cast', 'dct_threshold', 'drain', 'empty_residual',
    'error_feedback', 'identity', 'int8', 'one_bit', 'power_sgd', 'qsgd', 'random_k', 'sampled_top_k',
    'sign_vote', 'stochastic_ternary', 'three_lc', 'top_k',
    'linear', 'stream',  # modules with what compressors of one's own are made of
]
