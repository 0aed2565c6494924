"""What experiments share that train in one piece or in stages."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import dct_jax
from dct_jax import train

TRAFFIC = ('forward_bytes', 'backward_bytes', 'dense_bytes')


class Setup(NamedTuple):
  """A training, in one piece or in stages."""

  step: Callable  # (params, state, batch of this process) -> (params, state, metrics)
  predict: Callable  # (params, state, batch that all processes have) -> a number or more for each example
  state: tuple  # parameters, state and its specs
  meshes: Any
  checkpoints: Callable  # (directory, configuration) -> what saves
  share: tuple[int, int]  # which part of a batch this process wants, of how many
  whole: Callable = lambda params, state: params  # parameters with the tables that are in the state instead


def in_one_piece(step, predict, placed, mesh, keep=2, **more):
  """A `Setup` of a model that every worker has whole.

  Args:
    step: (params, state, batch on the mesh) -> (params, state, metrics).
    predict: (params, state, batch on the mesh) -> a number or more for each example.
    placed: parameters, state and its specs.
    mesh: of the workers.
    keep: checkpoints that are kept.
    **more: further fields of a `Setup`.
  """
  return Setup(lambda p, s, batch: step(p, s, train.shard_batch(batch, mesh)),
               lambda p, s, batch: predict(p, s, train.share_batch(batch, mesh)), placed, mesh,
               partial(train.Checkpoints, keep=keep), (jax.process_index(), jax.process_count()), **more)


def connect(mesh):
  """Connections along the data axis, where every worker is a process; without them XLA's collectives do it."""
  return dct_jax.connect(mesh, 'data') if mesh.size == jax.process_count() > 1 else None


def stage_share(pipeline):
  """Which part of a batch this process of a pipeline wants, of how many; one process alone has all stages."""
  return (pipeline.shares[0], pipeline.workers) if jax.process_count() > 1 else (0, 1)


def traffic(state):
  """What the boundaries of a model have left under 'traffic', all of them together, by name."""
  cuts = state.get('traffic', {}).values()
  total = lambda name: sum((cut[name] for cut in cuts), jnp.float32(0))
  return {f'activation_{name}': total(name) for name in TRAFFIC}


def traffic_by_cut(state):
  """The same of each boundary: 'enc5/forward_bytes', ..."""
  return {f'{module.removeprefix("boundaries_")}/{name}': cut[name]
          for module, cut in state.get('traffic', {}).items() for name in TRAFFIC}
