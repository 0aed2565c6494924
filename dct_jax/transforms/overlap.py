"""Exchanges that run while the program computes: SparCML's non-blocking operations.

Both transformations are for collectives with a transport (`sparse_all_reduce(..., transport)`), whose exchanges
run on a thread of their own. With other collectives the results are the same and nothing overlaps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dct_jax.compressors import empty_residual
from dct_jax.state import INNER, NEVER, own
from dct_jax.transforms.compressed_mean import CompressedMean, CompressedMeanState, Outgoing


def bucketed_mean(make: Callable[[], CompressedMean], buckets: int = 4) -> optax.GradientTransformation:
  """Several compressed means, each of some layers, whose exchanges overlap the rest of the backward pass.

  As soon as the gradients of a bucket are there they are packed and on their way; the last layers come first.
  The update waits for all of them. More buckets overlap better, and each costs its rounds.

  Args:
    make: makes a compressed mean (`dct_dp`, `compressed_mean`) with a collective of its own; called once for
      each bucket, in the same order on all processes.
    buckets: how many; layers are dealt out in order, about equally many entries to each.

  Returns:
    An `optax.GradientTransformation`; its state is a tuple of those of the buckets.
  """
  if buckets < 1:
    raise ValueError(f'buckets must be at least 1, got {buckets=}')
  means = [make() for _ in range(buckets)]

  def init(params):
    parts = _deal(params, buckets)
    return tuple(m.init(part) if part else () for m, part in zip(means, parts, strict=True))

  def update(updates, state, params=None):
    del params
    parts = _deal(updates, buckets)
    flights: list[Any] = [None] * buckets
    for i in reversed(range(buckets)):  # the backward pass ends with the first layers
      if parts[i]:
        outgoing, packed = means[i].steps.pack(parts[i], state[i])
        flights[i] = (means[i].steps.send(outgoing, packed), outgoing, packed)
    flights = _after_all(flights)
    out, states = [], []
    for i, flight in enumerate(flights):
      if flight is None:
        states.append(state[i])
        continue
      *delivered, after = means[i].steps.receive(*flight)
      out += jax.tree.leaves(means[i].steps.merge(parts[i], *delivered))
      states.append(after)
    return jax.tree.unflatten(jax.tree.structure(updates), out), tuple(states)

  return optax.GradientTransformation(init, update)


def _deal(tree, buckets):
  """The leaves of a tree in order, in lists of about equally many entries, each by the name of its first leaf."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  total, seen = sum(math.prod(x.shape) for _, x in leaves), 0
  parts: list[dict[str, list[jax.Array]]] = [{} for _ in range(buckets)]
  for path, x in leaves:
    middle = seen + math.prod(x.shape) / 2
    part = parts[min(int(buckets * middle / max(total, 1)), buckets - 1)]
    part.setdefault(next(iter(part), jax.tree_util.keystr(path)), []).append(x)
    seen += math.prod(x.shape)
  return parts


def _after_all(flights):
  """The same, but no handle is there before all are: nobody waits while something is still to be sent."""
  handles = [f[0] for f in flights if f is not None and f[0] is not None]
  return [f if f is None or f[0] is None else (_after(f[0], handles), *f[1:]) for f in flights]


def _after(handle, arrays):
  """The same handle, but not there before all arrays are.

  XLA:CPU drops optimization barriers before it schedules; what it cannot drop is a number that depends on data.
  Handles are zero, but only we know; whatever is not zero stands for the same.
  """
  for x in arrays:
    first = x.reshape(-1)[:1]
    number = first if x.dtype == jnp.uint32 else (first != first).astype(jnp.uint32)
    handle = handle | number
  return handle


@own(mean=INNER, message=NEVER, compressor=NEVER, live=NEVER)
class StaleMeanState(NamedTuple):
  """State of `stale_mean`."""

  mean: CompressedMeanState  # after the message was packed, before its exchange ended
  message: jax.Array  # uint32[capacity], by worker: what is on its way
  compressor: Any  # the compressor's state that it was packed with
  live: jax.Array  # uint32[1], by worker
  handle: jax.Array  # uint32[1]


def stale_mean(mean: CompressedMean) -> optax.GradientTransformation:
  """Sends the gradients of a step while the next step computes its own; updates are one step late.

  Not in the paper. A step ends by starting the exchange of its message; the next step waits for it after its
  own backward pass, and applies it. Error feedback is as without it: the message that is on its way is in the
  state, and a checkpoint keeps it. The first update is zero.

  Args:
    mean: a compressed mean with error feedback, without a mask.

  Returns:
    An `optax.GradientTransformation`. Its state cannot be restored onto another number of workers.
  """
  if not isinstance(mean, CompressedMean) or mean.compressor.feedback is None:
    raise ValueError('stale_mean is for a compressed mean with error feedback (dct_dp, or compressed_mean of '
                     f'error_feedback(...)), got {mean=}')
  no_handle = lambda: jnp.zeros(1, jnp.uint32)

  def init(params):
    layers = empty_residual(tuple(jax.tree.leaves(params)))
    state = mean.init(params)
    message, carried = mean.steps.empty(layers, state.compressor)
    return StaleMeanState(state, message, jax.tree.map(jnp.copy, carried), jnp.ones(1, jnp.uint32), no_handle())

  def update(updates, state, params=None):
    del params
    like = empty_residual(tuple(jax.tree.leaves(updates)))
    room = mean.steps.room(state.mean, updates)._replace(live=state.live.reshape(()))
    before = Outgoing(state.message[:room.capacity], state.compressor, room, like, ())
    # The gradients are there before anybody waits: until then the exchange runs in the background.
    handle = _after(state.handle, jax.tree.leaves(updates))
    means, rest, after = mean.steps.receive(handle, before, state.mean)
    # The first message was empty, which says nothing about how long the next ones will be.
    first = state.mean.step == 0
    after = after._replace(collective=jax.tree.map(
        lambda old, new: jnp.where(first, old, new), state.mean.collective, after.collective))
    outgoing, packed = mean.steps.pack(updates, after)
    if outgoing.exact:
      raise ValueError('stale_mean cannot delay what a mask leaves out; use a mean without mask')
    handle = mean.steps.send(outgoing, packed)
    message = jnp.pad(outgoing.message, (0, state.message.size - outgoing.message.size))
    return mean.steps.merge(updates, means, rest), StaleMeanState(
        packed, message, outgoing.compressor, outgoing.room.live.reshape(1), no_handle() if handle is None else handle)

  return optax.GradientTransformation(init, update)
