"""One worker of a pipeline: microbatches go through its stage forward and, as gradients, back.

Every worker runs programs of its own stage alone; between them it sends and receives bytes. So stages may be of
any shape and size, nothing is padded, and only what crosses a cut travels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dct_jax.boundaries import Cut
from dct_jax.runtime.schedule import FORWARD, schedule, split_batch
from dct_jax.runtime.stages import Stage
from dct_jax.transport import Links
from dct_jax.transport.links import MOST
from dct_jax.wire.activations import most_bytes, pack


class Result(NamedTuple):
  """What a worker knows after a step."""

  grads: Any  # of its stage's parameters, a mean over its examples
  own_grads: Any  # of `own`
  scalars: dict  # of the last stage: the loss and others, means over microbatches
  traffic: dict  # bytes: forward_bytes and dense_bytes to the next stage, backward_bytes to the one before


class Programs:
  """The compiled pieces of one stage; workers of the same stage in one process share them."""

  def __init__(self, stage: Stage, before: tuple[Cut, ...], microbatches: int):
    self.stage, self.before, self.microbatches = stage.check(), before, microbatches
    self.forward = jax.jit(self._forward)
    self.backward = jax.jit(self._backward, donate_argnums=(2,))
    self.both = jax.jit(self._both, donate_argnums=(4,))
    self.predict = jax.jit(self._predict)

  def _arrived(self, parcels):
    return tuple(Cut.arrive(p) for p in parcels)

  def _leave(self, outputs):
    return tuple(cut.leave(x) for cut, x in zip(self.stage.cuts, outputs, strict=True))

  def _come_back(self, parcels, gradients):
    return tuple(c.come_back(g, p.mask) for c, g, p in zip(self.before, gradients, parcels, strict=True))

  def _forward(self, params, own, parcels, batch):
    """What leaves this stage, and how to come back."""
    outputs, back = jax.vjp(
        lambda *x: self.stage.apply(*x, batch), params, own, self._arrived(parcels))
    return self._leave(outputs), back

  def _backward(self, back, returned, total, parcels):
    grads, own, inputs = back(self._arrived(returned))
    return _add(total, grads), own, self._come_back(parcels, inputs)

  def _both(self, params, own, parcels, batch, total):
    """Forward and backward of the last stage, which has nobody to wait for in between."""
    loss, back, aux = jax.vjp(
        lambda *x: self.stage.apply(*x, batch), params, own, self._arrived(parcels), has_aux=True)
    grads, own, inputs = back(jnp.ones_like(loss) / self.microbatches)
    scalars = {'loss': loss, **aux}
    return _add(total, grads), own, self._come_back(parcels, inputs), scalars

  def _predict(self, params, own, parcels, batch):
    out = (self.stage.predict or self.stage.apply)(params, own, self._arrived(parcels), batch)
    return self._leave(out) if self.stage.cuts else out


class Worker:
  """One stage's part of a step, for one share of the batch.

  Args:
    number: of the stage.
    programs: of the stage.
    links: to the other stages of the same share.
  """

  def __init__(self, number: int, programs: Programs, links: Links):
    self.number, self.programs, self.links = number, programs, links
    self.last = not programs.stage.cuts

  def begin(self, params: Any, own: Any, batch: Any) -> None:
    """Takes up a step; `own` and `batch` are arrays of this worker's examples."""
    parts = self.programs.microbatches
    self._params, self._own, self._batches = params, split_batch(own, parts), split_batch(batch, parts)
    self._todo = schedule(self.number, self.links.size, parts)
    self._total: Any = None  # of the gradients so far
    self._arrived: dict[int, tuple] = {}  # by microbatch: parcels from the stage before
    self._left: dict[int, tuple] = {}  # parcels to the next stage, and the way back
    self._own_grads: list[Any] = [None] * parts
    self._scalars: list[dict] = []
    self._traffic = {'forward_bytes': 0, 'backward_bytes': 0, 'dense_bytes': 0}

  def advance(self) -> bool:
    """Does the next thing, if what it needs is there; tells whether."""
    what, m = self._todo[0]
    peer = self.number - 1 if what == FORWARD else self.number + 1
    needs = self.number > 0 if what == FORWARD else not self.last
    if needs and not self.links.waiting(peer):
      return False
    del self._todo[0]
    (self._do_forward if what == FORWARD else self._do_backward)(m)
    return True

  @property
  def done(self) -> bool:
    return not self._todo

  def _do_forward(self, m):
    self._arrived[m] = self.receive_activations()
    args = self._params, self._own[m], self._arrived[m], self._batches[m]
    if self.last:
      self._total, self._own_grads[m], back, scalars = self.programs.both(*args, self._total)
      self._scalars.append(scalars)
      self._send_gradients(m, back)
    else:
      parcels, way_back = self.programs.forward(*args)
      self._left[m] = parcels, way_back
      self._traffic['forward_bytes'] += self.send_activations(parcels)
      self._traffic['dense_bytes'] += sum(4 * p.values.size for p in parcels)

  def _do_backward(self, m):
    if self.last:
      return  # done together with forward
    parcels, way_back = self._left.pop(m)
    most = sum(map(most_bytes, parcels))
    returned = self._receive(self.number + 1, self.programs.stage.cuts, [p.mask for p in parcels], most)
    self._total, self._own_grads[m], back = self.programs.backward(
        way_back, returned, self._total, self._arrived[m])
    self._send_gradients(m, back)

  def _send_gradients(self, m, parcels):
    del self._arrived[m]
    if self.number:
      self._traffic['backward_bytes'] += self._send(self.number - 1, parcels, back=True)

  def send_activations(self, parcels) -> int:
    return self._send(self.number + 1, parcels, back=False)

  def receive_activations(self) -> tuple:
    if not self.number:
      return ()
    return self._receive(self.number - 1, self.programs.before, [None] * len(self.programs.before))

  def _receive(self, peer, cuts, masks, most=MOST):
    data = self.links.receive(peer, most)
    try:
      return _read(cuts, data, masks)
    except ValueError as error:
      raise ConnectionError(f'{self.links.name(peer)} sent what cannot be read: {error}') from error

  def _send(self, peer, parcels, back):
    message = b''.join(pack(p, with_mask=not back) for p in parcels)
    self.links.send(peer, message)
    return len(message)

  def result(self) -> Result:
    """After all is done."""
    own = jax.tree.map(lambda *x: jnp.concatenate(x), *self._own_grads)
    means = jax.tree.map(lambda *x: sum(x) / len(x), *self._scalars) if self.last else {}
    return Result(self._total, own, means, self._traffic)


def run(workers: Sequence[Worker]) -> None:
  """Lets the workers of this process do what `begin` gave them, in turns."""
  while busy := [w for w in workers if not w.done]:
    if not sum(w.advance() for w in busy):
      raise AssertionError('unreachable: some stage has what it needs')


def _add(total, grads):
  return grads if total is None else jax.tree.map(jnp.add, total, grads)


def _read(cuts, data, masks):
  parcels, at = [], 0
  for cut, mask in zip(cuts, masks, strict=True):
    parcel, length = cut.read(data[at:] if at else data, None if mask is None else np.asarray(mask))
    parcels.append(parcel)
    at += length
  if at != len(data):
    raise ValueError(f'a message holds more than what crosses the cut, got {len(data)} bytes instead of {at}')
  return tuple(parcels)
