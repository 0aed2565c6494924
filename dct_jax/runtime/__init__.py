"""What runs a model that is cut: stages on several workers; groups of trainers and servers, in virtual time.

`Pipeline` has stages with their schedule, shared parameters and checkpoints. `virtual` trains plans of
`dct_jax.partition` on a `Fleet`, with the asynchrony that its nodes would really have. `Pulls` is a server whose
workers pull compressed changes of its model, each at a speed of its own. `cluster` runs plans on real nodes.
"""

from dct_jax.runtime import staleness, virtual
from dct_jax.runtime.clock import Failure, Hardware
from dct_jax.runtime.fleet import Fleet
from dct_jax.runtime.pipeline import Pipeline, Tables
from dct_jax.runtime.pulls import Pulls
from dct_jax.runtime.shared import means_apart
from dct_jax.runtime.stage_checkpoints import StageCheckpoints
from dct_jax.runtime.stages import Stage, chain

__all__ = [
    'Failure', 'Fleet', 'Hardware', 'Pipeline', 'Pulls', 'Stage', 'StageCheckpoints', 'Tables', 'chain', 'means_apart',
    'cluster', 'staleness', 'virtual',  # modules
]
