"""Parameters that several stages of a model have copies of, such as embeddings that it uses at both ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax

from dct_jax.transport.links import Links

Path = tuple[str, ...]  # keys of a parameter, from the outermost in


class Shared:
  """Adds gradients of copies up, so that each copy is updated alike, and all stay equal bit for bit.

  Args:
    paths: stage -> which of its parameters have copies in other stages. A path may stand for several arrays.
  """

  def __init__(self, paths: Mapping[int, Sequence[Path]]):
    self._paths = {stage: sorted(own) for stage, own in paths.items()}  # the order of messages

  def tell(self, stage: int, grads: Any, links: Links) -> int:
    """Sends a stage's gradients to those with copies; how many bytes these are."""
    sent = 0
    for path in self._paths.get(stage, ()):
      message = b''.join(np.asarray(x).tobytes() for x in jax.tree.leaves(_at(grads, path)))
      for peer in self._owners(path):
        if peer != stage:
          links.send(peer, message)
          sent += len(message)
    return sent

  def hear(self, stage: int, grads: Any, links: Links) -> Any:
    """A stage's gradients with the sums of all copies', when all have told theirs."""
    for path in self._paths.get(stage, ()):
      own = jax.tree.map(np.asarray, _at(grads, path))
      # In the order of stages everywhere: copies would differ in rounding otherwise.
      every = [own if peer == stage else _hear(links, peer, own) for peer in self._owners(path)]
      grads = _put(grads, path, jax.tree.map(lambda *x: sum(x[1:], start=x[0]), *every))
    return grads

  def _owners(self, path):
    return [stage for stage in sorted(self._paths) if path in self._paths[stage]]


def means_apart(make_mean: Callable[[], optax.GradientTransformation],
                paths: Sequence[Path]) -> optax.GradientTransformation:
  """A mean over workers for parameters that other stages have copies of, and another for all others.

  What a compressor does with a layer depends on all that is in the message: the room, offsets, random numbers.
  In a message of their own, shared parameters are treated alike by all stages, and their copies stay equal.

  Args:
    make_mean: makes a compressed mean; called once, or twice if there are paths.
    paths: this stage's shared parameters.
  """
  if not paths:
    return make_mean()

  def kind(path, _):
    keys = tuple(k.key for k in path)
    return 'shared' if any(keys[:len(p)] == p for p in paths) else 'own'

  label = lambda tree: jax.tree_util.tree_map_with_path(kind, tree)
  return optax.multi_transform({'shared': make_mean(), 'own': make_mean()}, label)


def _hear(links, peer, like):
  """What a stage has told, in the shapes of our own."""
  length = sum(x.nbytes for x in jax.tree.leaves(like))
  message = links.receive(peer, length)
  if len(message) != length:
    raise ConnectionError(f'{links.name(peer)} sent {len(message)} bytes of shared gradients instead of {length}')
  return _read(message, like)


def _read(message, like):
  leaves, at = [], 0
  for x in jax.tree.leaves(like):
    leaves.append(np.frombuffer(message, x.dtype, x.size, at).reshape(x.shape))
    at += x.nbytes
  return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _at(tree, path):
  for key in path:
    tree = tree[key]
  return tree


def _put(tree, path, value):
  key, *rest = path
  return {**tree, key: _put(tree[key], rest, value) if rest else value}
