"""What runs a model that is cut: stages on several workers, their schedule, shared parameters, checkpoints."""

from dct_jax.runtime.pipeline import Pipeline, Tables
from dct_jax.runtime.shared import means_apart
from dct_jax.runtime.stage_checkpoints import StageCheckpoints
from dct_jax.runtime.stages import Stage, chain

__all__ = ['Pipeline', 'Stage', 'StageCheckpoints', 'Tables', 'chain', 'means_apart']
