"""A parameter server that lies on the workers themselves, with compressed pushes and pulls."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dct_jax import axes, kernels
from dct_jax.collectives.owners import Answers, Arrived, Owners
from dct_jax.compressors import empty_residual
from dct_jax.contract import KEEP, TAKE_BACK, Compressor, Packed, Receipt, Room, Size, Stats
from dct_jax.state import NEVER, find, own
from dct_jax.transforms import checks
from dct_jax.transforms.compressed_mean import POLICIES, counted, no_receipt, no_stats, unless
from dct_jax.transport import Transport


@own(worker=NEVER, push_residual=NEVER, push=NEVER, pull_residual=NEVER, pull=NEVER, optimizer=NEVER)
class PushPullState(NamedTuple):
  """State of `push_pull`. What is of owners has a slice on each worker."""

  step: jax.Array
  worker: jax.Array  # uint32[1]: which worker this is
  push_residual: tuple[jax.Array, ...]  # [owners, slice] for each layer; differs by worker
  push: Any  # the compressor's state, with a leading axis of owners
  pull_residual: tuple[jax.Array, ...]  # [slice] for each layer: what the workers' model still lacks
  pull: Any
  optimizer: Any
  owners: Any
  stats: Stats  # of both directions together
  push_receipt: Receipt
  pull_receipt: Receipt
  dense_bytes: jax.Array  # what a worker would send uncompressed: all values out, its slice back

  def metrics(self) -> dict[str, jax.Array]:
    """Bytes of one worker in the last step, by direction."""
    return {'push_bytes': self.push_receipt.encoded_bytes, 'pull_bytes': self.pull_receipt.encoded_bytes,
            'dense_bytes': self.dense_bytes}



def push_pull(
    push: Compressor,
    pull: Compressor,
    optimizer: optax.GradientTransformation,
    axis_name: axes.AxisName | None = None,
    *,
    workers: int = 1,
    nonfinite: str = 'skip',
    rungs: int = 12,
    agree: bool = False,
    transport: Transport | None = None,
) -> optax.GradientTransformation:
  """Gradients are pushed to owners of slices, which apply an optimizer and send model deltas back.

  Each worker owns an equal slice of every layer, with the optimizer's state for it. A step: every worker
  compresses its gradient, slice by slice, for the owners; an owner averages what it gets, applies the
  optimizer, and compresses the change of the model once, for all. With `error_feedback` either direction has
  residuals of its own, so that nothing is lost in it; all workers apply the same deltas, and their models stay
  bitwise equal.

  The owners' model, which the optimizer sees, is ahead of the workers' by what is still in the pull residuals:
  `server_params` has it. Without feedback of pulls, what a pull rounds away is lost to the owners' model as
  well, which is then the workers'; a server with an exact model would drift away from its workers instead.
  Parameters should be float32: what is too small to change a narrower one is taken as sent.

  Args:
    push: compressor of gradients, in `error_feedback` where it needs that (nothing is drained here). Its
      scales are of slices, and its `dense_below` counts a slice's entries.
    pull: compressor of model deltas.
    optimizer: any that works on each entry alone (SGD, momentum, Adam, weight decay, ...) and whose state does
      not begin as a copy of parameters. Norms over a layer or a model would be those of slices.
    axis_name: mapped axis of the workers; None for a single one.
    workers: how many there are; the state has their slices from the beginning.
    nonfinite: what to do when a gradient has a NaN or an infinity: 'skip', 'raise' or 'pass', as of
      `compressed_mean`. The optimizer's state never sees it. If an owner's optimizer makes one itself, it
      counts as well; with 'skip' only that slice stays as it was, with its state, and those pushes are lost.
    rungs: message lengths to compile for either direction.
    agree: the length of either direction's messages is agreed upon before they travel, in a collective of four
      bytes, so that nothing overflows; without it there is room for what the last step's wanted, and what does not fit
      waits, as large a share of every layer. A transport needs no such number.
    transport: from `dct_jax.connect`; messages then travel as long as they are.

  Returns:
    An `optax.GradientTransformation` that takes local gradients and gives the workers' updates: nothing is
    chained behind it.

  Examples:
    >>> import dct_jax, jax.numpy as jnp, optax
    >>> compressor = dct_jax.error_feedback(dct_jax.three_lc(dense_below=0))
    >>> tx = dct_jax.push_pull(compressor, compressor, optax.sgd(0.5), 'data', workers=2)
    >>> params = jnp.zeros(4)
    >>> update, state = dct_jax.simulate(tx, params, workers=2)
    >>> updates, state = update(jnp.array([[2.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 4.0]]), state, params)
    >>> updates.tolist()                            # the mean, times -0.5
    [-0.5, 0.0, 0.0, -1.0]

  References:
    Lim, Andersen and Kaminsky, 3LC, SysML 2019, section 3; Li et al., Scaling Distributed Machine Learning with
    the Parameter Server, OSDI 2014.
  """
  for name, compressor in (('push', push), ('pull', pull)):
    if compressor.summed:
      raise ValueError(f'{name} must not be a compressor for psum (identity, random_k(shared=True)); '
                       "cast('float32') sends everything as it is")
  if nonfinite not in POLICIES:
    raise ValueError(f'nonfinite must be one of {POLICIES}, got {nonfinite=}')
  if workers < 1 or (axis_name is None and workers != 1):
    raise ValueError(f'workers must be at least 1, and 1 without an axis, got {workers=} and {axis_name=}')
  plan = _Plan(push, pull, optimizer, Owners(axis_name, rungs, transport, agree), workers)

  def init(params):
    layers, _ = checks.split_layers(params, None)
    checks.check_layers(layers, 'parameters')
    return plan.init(layers, jax.tree.structure(params))

  def update(updates, state, params=None):
    layers, _ = checks.split_layers(updates, None)
    checks.check_layers(layers, 'gradients')
    (layers,) = checks.check_local((layers,), state.worker, axis_name)
    _check_workers(axis_name, workers)
    worker = axes.worker(axis_name)
    sizes, group = plan.sizes(layers), checks.group_of(updates)

    pushed, arrived = plan.push(layers, state, worker, sizes, group)
    served = plan.serve(arrived, state, updates, params, worker)
    answer, answers = plan.pull(served, arrived, state, worker, sizes, group)
    new = plan.settle(pushed, served, answer, answers, state, worker)

    count = answers.nonfinite + answers.unsound
    spoilt = answers.called_off | (nonfinite == 'pass') & (count > 0)  # an unsound slice is 0 already
    said = [unless(spoilt, from_slices(x, like.shape), nonfinite)
            for x, like in zip(answers.parts, layers, strict=True)]
    stats = counted(state.stats, count, answers.corrupt, nonfinite)._replace(
        receipt=_together(answers.push, answers.pull))
    return checks.merge_layers(updates, None, said, ()), new._replace(stats=stats)

  return optax.GradientTransformation(init, update)


class _Sizes(NamedTuple):
  """Static: the slices of the layers, and the words of messages of them."""

  one: tuple[jax.ShapeDtypeStruct, ...]
  push: Size
  pull: Size


class _Served(NamedTuple):
  """What the owner of a slice made of the pushes; it differs between workers."""

  delta: tuple[jax.Array, ...]  # the change of its slice of the model; zeros if a gradient was not finite
  optimizer: Any  # state after it
  bad: jax.Array  # bool: a gradient was not finite
  sound: jax.Array  # uint32: 0 if the optimizer has made NaN or infinity


class _Plan(NamedTuple):
  """The four parts of a step: gradients go to owners, owners serve them, answers come back, accounts settle."""

  compressor: Compressor  # of pushes
  answers: Compressor  # of pulls
  optimizer: optax.GradientTransformation
  owners: Owners
  workers: int

  def sizes(self, layers) -> _Sizes:
    one = tuple(jax.ShapeDtypeStruct((slice_size(x.size, self.workers),), jnp.float32) for x in layers)
    return _Sizes(one, self.compressor.size(one), self.answers.size(one))  # type: ignore[arg-type]

  def init(self, layers, structure) -> PushPullState:
    rows = tuple(to_slices(jnp.zeros(x.shape, jnp.float32), self.workers) for x in layers)
    one, sizes = tuple(x[0] for x in rows), self.sizes(layers)
    copies = lambda x: jnp.stack([x] * self.workers)
    return PushPullState(
        step=jnp.zeros((), jnp.int32), worker=jnp.zeros(1, jnp.uint32),
        push_residual=empty_residual(rows) if self.compressor.feedback else (),
        push=jax.tree.map(copies, self.compressor.init(one)),
        pull_residual=empty_residual(one) if self.answers.feedback else (), pull=self.answers.init(one),
        optimizer=self.optimizer.init(jax.tree.unflatten(structure, one)),
        owners=self.owners.init(sizes.push, sizes.pull), stats=no_stats(),
        push_receipt=no_receipt(), pull_receipt=no_receipt(),
        dense_bytes=jnp.float32(4 * (1 + 1 / self.workers) * sum(x.size for x in layers)))

  def push(self, layers, state, worker, sizes, group) -> tuple[Packed, Arrived]:
    """Compresses gradients slice by slice, and adds up what comes for this worker's own."""
    live = kernels.all_finite(layers).reshape(())
    rows = tuple(to_slices(x.astype(jnp.float32), self.workers) for x in layers)
    # Random choices must be independent: each message, out or back, has a number of its own.
    voices = worker * jnp.uint32(self.workers) + jnp.arange(self.workers, dtype=jnp.uint32)
    room = self.owners.room(state.owners.push, sizes.push, self.workers)._replace(live=live, worker=voices, group=group)
    packed = jax.vmap(self.compressor.compress, in_axes=(0, 0, 0, Room(None, None, None, 0, None)))(  # type: ignore
        rows, state.push_residual if self.compressor.feedback else None, state.push, room)
    any_state = jax.tree.map(lambda x: x[0], state.push)  # what is used of it is equal for all
    read = lambda messages: self.compressor.decompress(messages, sizes.one, any_state)
    return packed, self.owners.push(packed.message, read, state.owners, sizes.push)

  def serve(self, arrived, state, updates, params, worker) -> _Served:
    """Applies the optimizer to this worker's slice of the model."""
    bad = jnp.sum(arrived.heads.nonfinite * arrived.unpacked.intact) > 0
    delta, after = _server_step(
        self.optimizer, arrived.unpacked.layers, bad, state, updates, params, worker, self.workers)
    # An optimizer may make NaN of finite gradients, too.
    return _Served(delta, after, bad, kernels.all_finite(delta).reshape(()))

  def pull(self, served, arrived, state, worker, sizes, group) -> tuple[Packed, Answers]:
    """Compresses the change of this worker's slice once, for all, and reads everybody's."""
    room = self.owners.room(state.owners.pull, sizes.pull, self.workers)._replace(live=served.sound)
    room = room._replace(words=jnp.where(served.bad, 0, room.words),
                         worker=jnp.uint32(self.workers**2) + worker, group=group)
    packed = self.answers.compress(
        served.delta, state.pull_residual if self.answers.feedback else None, state.pull, room)
    read = lambda messages: self.answers.decompress(messages, sizes.one, state.pull)
    return packed, self.owners.pull(packed.message, read, arrived, state.owners, sizes.push, sizes.pull)

  def settle(self, pushed, served, answer, answers, state, worker) -> PushPullState:
    """The state after a step, or as it was where the step was called off."""
    called_off = answers.called_off
    # Numbers that count steps are of all owners, and go on together.
    undone = lambda x: called_off | (served.sound == 0) if jnp.ndim(x) else called_off
    optimizer_state = jax.tree.map(
        lambda old, new: jnp.where(undone(old), old, new), state.optimizer, served.optimizer)
    push_residual: tuple[jax.Array, ...] = ()
    if pushed.residual is not None:
      mode = jnp.where(called_off, TAKE_BACK, KEEP)
      push_residual = jax.vmap(self.compressor.settle, in_axes=(None, 0, 0, 0))(
          mode, pushed.message, pushed.residual, state.push)
    # An owner that knows of no trouble has packed its change of the model, which is not made.
    pull_residual = jax.tree.map(
        lambda old, new: jnp.where(called_off, old, new), state.pull_residual, answer.residual or ())
    return PushPullState(
        state.step + 1, worker.reshape(1), push_residual, pushed.state, pull_residual, answer.state,
        optimizer_state, answers.state, state.stats, answers.push, answers.pull, state.dense_bytes)


def server_params(params: Any, state: Any) -> Any:
  """The model that owners have: the workers' and what is still to be sent of it.

  Args:
    params: the workers' model.
    state: an optimizer state with a `PushPullState` in it, as it lies on the mesh, outside of `shard_map`.

  Raises:
    ValueError: if there is none, or several.
  """
  found = find(state, lambda x: isinstance(x, PushPullState))
  if len(found) != 1:
    raise ValueError(f'there must be one push_pull in the optimizer, got {len(found)}')
  if not found[0].pull_residual:
    return params
  leaves, structure = jax.tree.flatten(params)
  ahead = [x + from_slices(e, x.shape).astype(x.dtype)
           for x, e in zip(leaves, found[0].pull_residual, strict=True)]
  return jax.tree.unflatten(structure, ahead)


def slice_size(size: int, workers: int) -> int:
  return -(-size // workers)


def to_slices(x: jax.Array, workers: int) -> jax.Array:
  """An array as [workers, slice]. The end is filled with copies of the last entry, in all that is cut like
  this: they go through the same as that entry does, and no compressor sees a sign or size that is not there."""
  each = slice_size(x.size, workers)
  return jnp.pad(x.reshape(-1), (0, each * workers - x.size), mode='edge').reshape(workers, each)


def from_slices(slices: jax.Array, shape: tuple[int, ...]) -> jax.Array:
  """The inverse of `to_slices`, of any array that holds the slices one after the other."""
  return slices.reshape(-1)[:math.prod(shape)].reshape(shape)


def _server_step(optimizer, sums, bad, state, updates, params, worker, workers):
  """What the owner of a slice does: the change of the model, and the optimizer's state after it."""
  structure = jax.tree.structure(updates)
  mean = jax.tree.unflatten(structure, [x / workers for x in sums])
  model = None
  if params is not None:
    mine = [to_slices(jnp.asarray(x, jnp.float32), workers)[worker] for x in jax.tree.leaves(params)]
    if state.pull_residual:
      mine = [x + e for x, e in zip(mine, state.pull_residual, strict=True)]
    model = jax.tree.unflatten(structure, mine)
  delta, new = optimizer.update(mean, state.optimizer, model)
  return tuple(jnp.where(bad, 0, x).astype(jnp.float32) for x in jax.tree.leaves(delta)), new


def _check_workers(axis_name, workers):
  if axes.axis_size(axis_name) != workers:
    raise ValueError(f'push_pull was made for {workers=}, but {axis_name=} has {axes.axis_size(axis_name)}')


def _together(a: Receipt, b: Receipt) -> Receipt:
  """Both directions: bytes add up."""
  return jax.tree.map(jnp.add, a, b)._replace(density=(a.density + b.density) / 2)
