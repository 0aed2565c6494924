"""Collectives: every worker's message -> the sum over a mesh axis. One algorithm a file."""

from dct_jax.collectives.all_gather import AllGatherState, all_gather
from dct_jax.collectives.dense_slices import allgather_dense
from dct_jax.collectives.psum import psum

__all__ = ['AllGatherState', 'all_gather', 'allgather_dense', 'psum']
