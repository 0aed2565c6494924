"""Collectives: every worker's message -> the sum over a mesh axis. One algorithm a file."""

from dct_jax.collectives.algorithms import ALGORITHMS
from dct_jax.collectives.all_gather import AllGatherState, all_gather
from dct_jax.collectives.costs import Costs, Instance
from dct_jax.collectives.dense_streams import allgather_dense, allreduce_dense, open_exchange
from dct_jax.collectives.psum import psum
from dct_jax.collectives.s2 import S2State, s2
from dct_jax.collectives.sparse_all_reduce import SparseAllReduceState, sparse_all_reduce
from dct_jax.collectives.streams import allgather_disjoint, allreduce
from dct_jax.collectives.union_sum import union_sum

__all__ = [
    'ALGORITHMS', 'AllGatherState', 'Costs', 'Instance', 'S2State', 'SparseAllReduceState',
    'all_gather', 'allgather_dense', 'allgather_disjoint', 'allreduce', 'allreduce_dense', 'open_exchange',
    'psum', 's2', 'sparse_all_reduce', 'union_sum',
    'costs',  # a module
]
