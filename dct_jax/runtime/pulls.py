"""Pulls of a model from a server, compressed and shared, by workers that go at speeds of their own.

3LC's servers compress the change of a tensor once, for all workers (section 3). That works as long as all workers have
the same local model. Loosely synchronized ones do not, and the paper asks for several copies, each shared by the
workers with one local model. Here such a copy is a *context*: the local model of some workers, tensor by tensor. What a
message leaves out is the difference between the server's tensor and the context's, which the next message begins with:
that is 3LC's error accumulation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dct_jax.contract import Compressor, whole_room
from dct_jax.wire.header import read_headers


@dataclasses.dataclass(eq=False)
class PullContext:
  """What some workers have of a tensor.

  Attributes:
    local: the tensor, as these workers have it, to the bit.
    version: of the server's tensor when they pulled last.
    workers: who they are.
    answer: message to the newest version and context of those who took it, if somebody has pulled it.
  """

  local: jax.Array
  version: int
  workers: set[Hashable]
  answer: tuple[np.ndarray, PullContext] | None = None


class Pulls:
  """The server's side: its model, and contexts of workers.

  Args:
    model: name of a tensor -> the tensor.
    compressor: of differences, as `dct_jax.three_lc()`; one without state.

  Attributes:
    model: as it is now.
    versions: name -> updates of that tensor so far.
    compressed, answered: messages that were made, and pulls that were answered with one.

  Examples:
    >>> import jax.numpy as jnp, dct_jax
    >>> server = Pulls({'w': jnp.zeros(4)}, dct_jax.three_lc(dense_below=0))
    >>> mine = [server.join(worker) for worker in 'ab']
    >>> server.update('w', jnp.array([1.0, 0.0, -1.0, 0.25]))
    >>> messages = [server.pull(worker, 'w') for worker in 'ab']
    >>> server.compressed, messages[0] is messages[1]      # made once, for both
    (1, True)
    >>> server.add(mine[0]['w'], messages[0]).tolist(), server.residual('a', 'w').tolist()
    ([1.0, 0.0, -1.0, 0.0], [0.0, 0.0, 0.0, 0.25])

  References:
    Lim, Andersen and Kaminsky, 3LC: Lightweight and Effective Traffic Compression for Distributed Machine
    Learning, SysML 2019, section 3.
  """

  def __init__(self, model: Mapping[str, Any], compressor: Compressor):
    self.model = {name: _finite(name, x) for name, x in model.items()}
    if compressor.summed or jax.tree.leaves(compressor.init(tuple(self.model.values()))):
      raise ValueError('a pull is read on its own: its compressor has no state, and its messages are not for psum')
    self.compressor = compressor
    self.versions = dict.fromkeys(self.model, 0)
    self.compressed = self.answered = 0
    self._at: dict[Hashable, dict[str, PullContext]] = {}
    self._compress, self._add = jax.jit(self._message), jax.jit(self._sum)

  def join(self, worker: Hashable) -> dict[str, jax.Array]:
    """The whole model, for a worker that has none. Those who join at one version are in one context."""
    if worker in self._at:
      raise ValueError(f'{worker!r} is here already')
    exact = {name: self._exact(name) for name in self.model}
    for context in exact.values():
      context.workers.add(worker)
    self._at[worker] = exact
    return {name: context.local for name, context in exact.items()}

  def _exact(self, name: str) -> PullContext:
    same = (c for c in self.contexts(name) if c.local is self.model[name])
    return next(same, None) or PullContext(self.model[name], self.versions[name], set())

  def leave(self, worker: Hashable) -> None:
    """Forgets a worker; a context that nobody is in any more goes with it."""
    for context in self._of(worker).values():
      context.workers.discard(worker)
    del self._at[worker]

  def update(self, name: str, tensor: Any) -> None:
    """Puts a new tensor in the place of an old one."""
    old, new = self.model[name], _finite(name, tensor)
    if new.shape != old.shape:
      raise ValueError(f'{name!r} has the shape {old.shape}, got {new.shape}')
    self.model[name], self.versions[name] = new, self.versions[name] + 1
    for context in self.contexts(name):
      context.answer = None  # nobody wants an old version, nor shall contexts without workers stay for it

  def pull(self, worker: Hashable, name: str) -> np.ndarray | None:
    """The message that brings a worker's tensor to the newest version, as near as it goes; None if it is there.

    Those who were in one context and pull the same version get the same message, and are in one context again.
    """
    before = self._of(worker)[name]
    if before.version == self.versions[name]:
      return None
    if before.answer is None:
      message, local = self._compress(self.model[name], before.local)
      used = int(read_headers(message).length)
      before.answer = np.asarray(message)[:used], PullContext(local, self.versions[name], set())
      self.compressed += 1
    answer, after = before.answer
    before.workers.discard(worker)
    after.workers.add(worker)
    self._at[worker][name] = after
    self.answered += 1
    return answer

  def add(self, tensor: jax.Array, message: np.ndarray) -> jax.Array:
    """The worker's side: its tensor after a message."""
    capacity = self.compressor.size((tensor,)).largest
    if not 0 < len(message) <= capacity:
      raise ValueError(f'a message for a tensor of shape {tensor.shape} has up to {capacity} words, got {len(message)}')
    new, intact = self._add(tensor, np.pad(message, (0, capacity - len(message))))
    if not intact:
      raise ValueError(f'a message for a tensor of shape {tensor.shape} failed its checks')
    return new

  def residual(self, worker: Hashable, name: str) -> jax.Array:
    """What a worker does not have yet of the server's tensor."""
    return self.model[name] - self._of(worker)[name].local

  def contexts(self, name: str) -> list[PullContext]:
    """Contexts of a tensor that somebody is in."""
    return list({id(c): c for c in (at[name] for at in self._at.values())}.values())

  def _of(self, worker: Hashable) -> dict[str, PullContext]:
    if worker not in self._at:
      raise ValueError(f'{worker!r} has not joined: there are {sorted(map(str, self._at))}')
    return self._at[worker]

  def _message(self, model, local):
    """A message, and what those have who take it."""
    layers = (model - local,)
    packed = self.compressor.compress(layers, None, self.compressor.init(layers), whole_room(self.compressor, layers))
    return packed.message, self._sum(local, packed.message)[0]

  def _sum(self, tensor, message):
    read = self.compressor.decompress(message[None], (tensor,), self.compressor.init((tensor,)))
    return tensor + read.layers[0], read.intact[0]


def _finite(name: str, x: Any) -> jax.Array:
  x = jnp.asarray(x)
  if x.dtype != jnp.float32 or not bool(jnp.isfinite(x).all()):
    raise ValueError(f'{name!r} must be finite float32, got {x.dtype}, {int(jnp.isfinite(x).sum())} of {x.size} finite')
  return x
