"""Models of the map: what a core takes for a batch of them."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from dct_jax import partition
from dct_jax.partition import ready
from shared.scale import asynchronous


class Model(NamedTuple):
  """A net on a core.

  Attributes:
    make: examples of a batch -> the net.
    batch: examples of a batch.
    splits: layers that the servers of a group share.
    size: parameters.
    fixed, each: seconds of a batch on one core: of its update, and of what grows with its examples.
  """

  make: Callable[[int], ready.Net]
  batch: int
  splits: dict
  size: int = 0
  fixed: float = 0.0
  each: float = 0.0


def dlrm(batch: int) -> ready.Net:
  """112 MB of dense parameters; rows of tables come with the batch."""
  return ready.dlrm(batch=batch, bottom=(1024, 1024, 64), top=(4096, 4096, 2048, 1), optimizer='adagrad')


def transformer(batch: int) -> ready.Net:
  """218 MB of parameters; sentences of 32 words."""
  return ready.transformer(batch=batch, width=512, hidden=2048, vocabulary=10_000)


# The splits are what `splits='auto'` finds in 6 seconds for DLRM on 6 + 6 nodes; for the Transformer it finds none.
MODELS = {'DLRM': Model(dlrm, 200, {'top2': ('horizontal', 3), 'top3': ('horizontal', 2)}),
          'Transformer': Model(transformer, 32, {})}


def measured(model: Model, machine: partition.Machine) -> Model:
  """The model with its size, and with its time on a core: a line through a batch and half of it."""
  one = asynchronous.Shape(1)
  seconds, less = (float(asynchronous.plan(model.make(batch), machine, one).load.seconds[0, 0])
                   for batch in (model.batch, model.batch // 2))
  size = sum(x.size for x in jax.tree.leaves(model.make(1).params))
  return model._replace(size=size, fixed=2 * less - seconds, each=2 * (seconds - less))
