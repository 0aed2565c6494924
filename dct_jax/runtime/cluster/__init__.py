"""Hierarchical training on real processes: trainers, servers and readers that a plan's programs run on.

`on_ray.train` starts them with Ray, which supervises and restarts them; `threads.train` has all of them in this
process. Tensors travel over connections of our own.
"""

from dct_jax.runtime.cluster import threads
from dct_jax.runtime.cluster.driver import ClusterRun, Look, Watch
from dct_jax.runtime.cluster.job import Job
from dct_jax.runtime.cluster.saves import Published

__all__ = [
    'ClusterRun', 'Job', 'Look', 'Published', 'Watch',
    # Modules; on_ray and view need the extra 'hierarchical'.
    'calls', 'messages', 'on_ray', 'threads', 'timing', 'view',
]
