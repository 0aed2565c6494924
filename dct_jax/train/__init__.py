"""Training: one loop, step builders, checkpoints, metrics, and starting processes.

`python -m dct_jax.train.launch` starts several processes on this machine; see `launch.launch`.
"""

from dct_jax.train.checkpoint import Checkpoints
from dct_jax.train.distributed import define_flags, flag_values, start
from dct_jax.train.loop import TrainResult, run
from dct_jax.train.metrics import MetricsWriter, read_metrics
from dct_jax.train.replicas import check_replicas
from dct_jax.train.reshard import reshard
from dct_jax.train.sections import make_sectioned_step
from dct_jax.train.step import (
    accounts,
    local_workers,
    make_eval,
    make_predictor,
    make_step,
    replicate,
    shard_batch,
    share_batch,
    sum_batches,
)

__all__ = [
    'Checkpoints', 'MetricsWriter', 'TrainResult', 'accounts', 'check_replicas', 'define_flags', 'flag_values',
    'local_workers', 'make_eval', 'make_predictor', 'make_sectioned_step', 'make_step', 'read_metrics',
    'replicate', 'reshard', 'run', 'shard_batch', 'share_batch', 'start', 'sum_batches',
    'experiment', 'launch', 'networks', 'pictures', 'report', 'results',  # modules
]
