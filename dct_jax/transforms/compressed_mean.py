"""The optax transformation: error feedback + compressor + collective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from dct_jax import axes, kernels
from dct_jax.collectives.all_gather import all_gather
from dct_jax.compressors import drain, empty_residual
from dct_jax.contract import (
  CLEAR,
  KEEP,
  TAKE_BACK,
  Collective,
  Compressor,
  Packed,
  Receipt,
  Room,
  Stats,
  as_bytes,
  whole_room,
)
from dct_jax.kernels import choices
from dct_jax.kernels.choices import Purpose
from dct_jax.state import COPY, RANK, SUM, find, own
from dct_jax.transforms import checks

POLICIES = ('skip', 'raise', 'pass')


@own(worker=RANK, residual=SUM, compressor=COPY)
class CompressedMeanState(NamedTuple):
  """State of `compressed_mean`."""

  step: jax.Array
  worker: jax.Array  # uint32[1]: which worker this is; by it a local state is known from a shared one
  residual: tuple[jax.Array, ...]  # differs by worker
  compressor: Any
  collective: Any
  stats: Stats


def compressed_mean(
    compressor: Compressor,
    collective: Collective | None = None,
    axis_name: axes.AxisName | None = None,
    *,
    mask: Any | Callable[[Any], Any] | None = None,
    nonfinite: str = 'skip',
    seed: int = 0,
) -> CompressedMean:
  """Replaces each worker's own gradient by the mean of what all workers' messages say.

  Chain it before the optimizer; give it local gradients that nobody has averaged yet
  (`dct_jax.local_value_and_grad`). All workers return the same updates.

  Args:
    compressor: made by a factory of `dct_jax.compressors`, usually in `error_feedback`.
    collective: how messages are exchanged; `all_gather()` unless given.
    axis_name: mapped axis of the workers; None compresses on one worker, without any exchange.
    mask: a tree of booleans like the parameters, or a function that makes it from them; what it
      leaves out is averaged exactly, by a plain psum.
    nonfinite: what to do in a step in which a worker's gradient has a NaN or an infinity.
      `'skip'`: all workers' updates are zero; the bad gradient is dropped, the others stay in their
      residuals (but for what a mask leaves out: it has none, and is dropped). `'raise'`: the same, and it is
      counted in `Stats.refused`, too; no program calls back to its host, so that it is the loop that raises a
      FloatingPointError (`train.run` does, a loop of your own calls `dct_jax.raise_if_bad`). `'pass'`: the updates
      are NaN everywhere, as they would be without compression. In no case does the residual take it in; it is
      counted in `Stats.nonfinite`. A step with a message that fails its checks is skipped by any policy, and
      counted in `Stats.corrupt`, for which the loop raises a RuntimeError.
    seed: of the random numbers that drain residuals. They differ between groups of layers by where these are in the
      tree (`optax.multi_transform`), between layers, workers and steps.

  Returns:
    An `optax.GradientTransformation`.

  Raises:
    ValueError: for arguments that cannot work; from `update`, for gradients that are not floating
      point, that do not fit the state, or that were already summed over `axis_name`.

  Examples:
    >>> import dct_jax, jax.numpy as jnp, optax
    >>> tx = optax.chain(
    ...     dct_jax.compressed_mean(dct_jax.error_feedback(dct_jax.top_k(0.5, dense_below=0))),
    ...     optax.sgd(1.0))
    >>> params = {'w': jnp.zeros(4)}
    >>> state = tx.init(params)
    >>> updates, state = tx.update({'w': jnp.array([1.0, -4.0, 2.0, 3.0])}, state, params)
    >>> updates['w'].tolist()
    [-0.0, 4.0, -0.0, -3.0]
    >>> state[0].residual[0].tolist()
    [1.0, 0.0, 2.0, 0.0]
  """
  collective = all_gather() if collective is None else collective
  collective.check(compressor)
  if nonfinite not in POLICIES:
    raise ValueError(f'nonfinite must be one of {POLICIES}, got {nonfinite=}')

  def of_group(group):
    """The compressor, for random choices that it makes without a room."""
    if compressor.of_group is None:
      return compressor
    return compressor.of_group(int(group))._replace(feedback=compressor.feedback)

  def init(params):
    layers, _ = checks.split_layers(params, mask)
    checks.check_layers(layers, 'parameters')
    residual = empty_residual(layers) if compressor.feedback else ()
    return CompressedMeanState(
        step=jnp.zeros((), jnp.int32), worker=jnp.zeros(1, jnp.uint32), residual=residual,
        compressor=of_group(checks.group_of(params, mask)).init(layers),
        collective=collective.init(compressor.size(layers)), stats=no_stats())

  def room_for(state, updates):
    layers, _ = checks.split_layers(updates, mask)
    room = collective.room(state.collective, compressor.size(layers), axes.axis_size(axis_name))
    return room._replace(group=checks.group_of(updates, mask))

  def prepare(layers, residual, state, room, axis_name):
    """The message, or the last one if there are rounds; and the state to read its answer with."""
    mine = of_group(room.group)
    if collective.prepare is None:
      packed = mine.compress(layers, residual, state, room)
    else:
      packed = collective.prepare(mine, layers, residual, state, room, axis_name)
    return packed, state if compressor.rounds is None else packed.state

  def empty(layers, state):
    """A message that says nothing (no words are room for nothing), and the state to read its answer with."""
    packed, carried = prepare(layers, layers, state, whole_room(compressor, layers)._replace(words=0), None)
    return packed.message, carried

  def pack(updates, state):
    """Compresses; the state that comes back has the residual and the compressor's state after it."""
    layers, exact = checks.split_layers(updates, mask)
    checks.check_layers((*layers, *exact), 'gradients')
    layers, exact = checks.check_local((layers, exact), state.worker, axis_name)
    if compressor.feedback:
      checks.check_residual(layers, state.residual)
    worker = axes.worker(axis_name)
    live = kernels.all_finite((*layers, *exact)).reshape(())
    room = room_for(state, updates)._replace(live=live, worker=worker)

    residual, drained = state.residual, jnp.zeros((), jnp.float32)
    if compressor.feedback and compressor.feedback.drain_period:
      residual, drained = _drain(residual, compressor.feedback.drain_period, axis_name,
                                 choices.key_of(Purpose.DRAIN, seed, room.group, state.step, worker))
    packed, carried = prepare(
        layers, residual if compressor.feedback else None, state.compressor, room, axis_name)
    stats = state.stats._replace(drained=state.stats.drained + drained)
    # With rounds a state takes the answer in, and is not new before that.
    after = packed.state if compressor.rounds is None else state.compressor
    new = state._replace(step=state.step + 1, worker=worker.reshape(1), residual=packed.residual or (),
                         compressor=after, stats=stats)
    return Outgoing(packed.message, carried, room, layers, exact), new

  def arguments(outgoing, state):
    packed = Packed(outgoing.message, state.residual if compressor.feedback else None, None)
    mine = of_group(outgoing.room.group)
    return mine, outgoing.layers, packed, outgoing.compressor, state.collective, outgoing.room, axis_name

  def send(outgoing, state):
    """Starts the exchange if the collective can do that in the background."""
    return None if collective.start is None else collective.start(*arguments(outgoing, state))

  def receive(handle, outgoing, state):
    """Ends the exchange: the means of the layers and of what the mask left out, and the state after it."""
    workers = axes.axis_size(axis_name)
    if handle is None or collective.wait is None:
      reduced = collective.reduce(*arguments(outgoing, state))
    else:
      reduced = collective.wait(handle, *arguments(outgoing, state))
    bad = (reduced.nonfinite + reduced.corrupt) > 0
    if reduced.absorbed is not None:
      residual, absorbed = reduced.absorbed
      state = state._replace(residual=residual or (), compressor=state.compressor if absorbed is None else absorbed)
    elif compressor.feedback:
      mode = jnp.where(bad, TAKE_BACK, jnp.where(reduced.dense, CLEAR, KEEP))
      settle = of_group(outgoing.room.group).settle
      state = state._replace(residual=settle(mode, outgoing.message, state.residual, outgoing.compressor))

    means = [unless(bad, x / workers, nonfinite) for x in reduced.layers]
    rest = [unless(bad, x, nonfinite) for x in _exact_mean(outgoing.exact, outgoing.room.live, axis_name)]
    receipt = _with_exact(reduced.receipt, outgoing.layers, outgoing.exact, workers)
    stats = counted(state.stats, reduced.nonfinite, reduced.corrupt, nonfinite)._replace(receipt=receipt)
    return means, rest, state._replace(collective=reduced.state, stats=stats)

  def update(updates, state, params=None):
    del params
    outgoing, state = pack(updates, state)
    means, rest, state = receive(None, outgoing, state)
    return checks.merge_layers(updates, mask, means, rest), state

  merge = lambda updates, means, rest: checks.merge_layers(updates, mask, means, rest)
  steps = Steps(room_for, empty, pack, send, receive, merge)
  return CompressedMean(init, update, steps, compressor)


class Outgoing(NamedTuple):
  """A message between packing and delivery."""

  message: jax.Array
  compressor: Any  # the compressor's state that it was packed with; with rounds, what they carry on
  room: Room
  layers: tuple[jax.Array, ...]
  exact: tuple[jax.Array, ...]  # what the mask left out


class Steps(NamedTuple):
  """What an update consists of, for transformations that let time pass in between (`overlap.py`)."""

  room: Callable  # (state, updates) -> Room
  empty: Callable  # (layers of zeros, the compressor's state) -> (message, the state to read its answer with)
  pack: Callable  # (updates, state) -> (Outgoing, state)
  send: Callable  # (Outgoing, state) -> handle or None
  receive: Callable  # (handle or None, Outgoing, state) -> (means, exact means, state)
  merge: Callable  # (updates, means, exact means) -> updates


class CompressedMean(optax.GradientTransformation):
  """An `optax.GradientTransformation` that can also be taken apart."""

  steps: Steps
  compressor: Compressor

  def __new__(cls, init, update, steps, compressor):
    self = super().__new__(cls, init, update)
    self.steps, self.compressor = steps, compressor
    return self


def no_receipt() -> Receipt:
  """Of a step that was not taken; a buffer for each number, since states are donated."""
  zero = lambda: jnp.zeros((), jnp.uint32)
  return Receipt(zero(), zero(), zero(), zero(), jnp.zeros((), jnp.float32))


def no_stats() -> Stats:
  """Before the first step."""
  zero = lambda: jnp.zeros((), jnp.uint32)
  return Stats(no_receipt(), zero(), zero(), jnp.zeros((), jnp.float32), zero())


def _drain(residual, period, axis_name, key):
  residual, drained = drain(residual, period, key)
  drained = drained.astype(jnp.float32)
  return residual, drained if axis_name is None else lax.pmean(drained, axis_name)


def _exact_mean(layers, live, axis_name):
  """What the mask leaves out: a plain mean, in float32."""
  exact = tuple(jnp.where(live != 0, x, 0).astype(jnp.float32) for x in layers)
  if axis_name is None or not exact:
    return exact
  return [x / axes.axis_size(axis_name) for x in axes.sum_together(exact, axis_name)]


def _with_exact(receipt: Receipt, layers, exact, workers):
  """Adds what the mask left out to the accounts: it travels too."""
  extra, size = sum(x.size for x in exact), sum(x.size for x in layers)
  return receipt._replace(
      encoded_bytes=receipt.encoded_bytes + as_bytes(4 * extra),
      moved_bytes=receipt.moved_bytes + as_bytes(4 * extra),
      sent_bytes=receipt.sent_bytes + as_bytes(8 * extra * (workers - 1) // workers),
      density=(receipt.density * size + extra) / (size + extra))


def unless(bad, mean, policy):
  return jnp.where(bad, jnp.nan if policy == 'pass' else 0.0, mean)


def counted(stats, nonfinite, corrupt, policy):
  """The counts after a step.

  All workers read the same headers and count alike, so that their loops stop together. A message that was damaged on
  its way to one receiver only is the exception: that one stops, the others time out.
  """
  return stats._replace(nonfinite=stats.nonfinite + nonfinite, corrupt=stats.corrupt + corrupt,
                        refused=stats.refused + (nonfinite if policy == 'raise' else 0))


def raise_if_bad(state: Any) -> None:
  """Raises for what the compressed means of an optimizer have counted and nobody should train on with.

  A program on an accelerator cannot raise. A loop of your own calls this now and then, and before it saves: the
  steps in question were skipped, so that nothing is spoilt until then. `train.run` looks after every step.

  Args:
    state: of an optimizer, as it lies on the mesh, outside of traced functions.

  Raises:
    RuntimeError: if messages were corrupt.
    FloatingPointError: if a gradient was not finite where `nonfinite='raise'`.
  """
  raise_for(*bad_counts(state))


def bad_counts(state: Any) -> tuple[int, int]:
  """Corrupt messages and refused gradients that the compressed means of an optimizer have counted."""
  said = lambda x: max((int(np.max(s.data)) for s in x.addressable_shards), default=0)
  found = find(state, lambda n: isinstance(n, Stats))
  return sum(said(s.corrupt) for s in found), sum(said(s.refused) for s in found)


def raise_for(corrupt: int, refused: int, when: str = '') -> None:
  """The errors of `raise_if_bad`, for counts."""
  if corrupt:
    raise RuntimeError(f'{corrupt} messages failed their checks{when}: memory or network errors, or workers that run '
                       'different versions or configurations')
  if refused:
    raise FloatingPointError(f"{refused} workers have a gradient with NaN or infinity{when} (nonfinite='raise')")
