"""Layers in slices, one a worker: how they are cut, and how what is of slices goes to another number of workers."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dct_jax.state import COPY, NEVER, Dealt, Rule, visit


def slice_size(size: int, workers: int) -> int:
  return -(-size // workers)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Whole:
  """What slices are of: sizes of layers; static."""

  layers: tuple[int, ...]
  optimizer: tuple[int | None, ...]  # of the layer that each leaf of the optimizer's state has a slice of, if it has

  def of_layers(self) -> list[Rule]:
    """A slice of each layer on each worker."""
    return [_slice_of(size) for size in self.layers]

  def of_optimizer(self) -> list[Rule]:
    """The optimizer's state for these slices; what has no size of a layer is alike on all workers."""
    return [COPY if size is None else _slice_of(size) for size in self.optimizer]

  def of_pushes(self) -> list[Rule]:
    """Whole layers on each worker, in slices: sums over workers stay."""
    return [_all_slices_of(size) for size in self.layers]


def whole(layers: Any, structure: Any, optimizer: optax.GradientTransformation) -> Whole:
  """Sizes of layers, and of what an optimizer has for each entry."""
  sizes = tuple(x.size for x in layers)

  def shapes(more):
    trees = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct((size + more,), jnp.float32) for size in sizes])
    return jax.tree.leaves(jax.eval_shape(optimizer.init, trees))

  return Whole(sizes, tuple(a.shape[0] if a.shape != b.shape else None
                            for a, b in zip(shapes(0), shapes(1), strict=True)))


def of_messages(state: Any) -> list[Rule]:
  """Rules of a compressor's state that each worker has for each owner: whatever another pair has will do."""
  return [NEVER if leaf.rule == NEVER else _PAIRS for leaf in visit(state)]


def _slice_of(size) -> Dealt:
  def move(array, old, new, conserve):
    return _cut(array[:size], new).reshape(-1)

  return Dealt(lambda shape, workers: (workers * slice_size(size, workers),), move)


def _all_slices_of(size) -> Dealt:
  def move(array, old, new, conserve):
    layers = array.reshape(old, -1)[:, :size]
    sums = [layers[worker::new].sum(axis=0, dtype=np.float64) for worker in range(new)]  # zeros where there is none
    scale = new / old if conserve == 'mean' else 1.0
    return np.concatenate([_cut((scale * one).astype(array.dtype), new) for one in sums])

  return Dealt(lambda shape, workers: (workers * workers, slice_size(size, workers)), move)


def _cut(layer, workers):
  """As the slices are cut: the end is filled with copies of the last entry."""
  each = slice_size(layer.size, workers)
  return np.pad(layer, (0, each * workers - layer.size), mode='edge').reshape(workers, each)


def _of_pairs(array, old, new, conserve):
  pairs = array.reshape(old, old, *array.shape[1:])
  again = np.arange(new) % old
  return pairs[again][:, again].reshape(new * new, *array.shape[1:])


_PAIRS = Dealt(lambda shape, workers: (workers * workers, *shape[1:]), _of_pairs)
