"""Somebody else's compressors, transformation and state take part like ours, by public names alone."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import dct_jax
from dct_jax import contract, state, train

pytestmark = pytest.mark.plain_code

PARAMS = {'w': jnp.zeros((6, 5)), 'b': jnp.zeros(3)}
SIZE, BLOCK = 33, 8


def gradients(workers, steps, seed=0):
  rng = np.random.default_rng(seed)
  draw = lambda shape: rng.standard_normal((workers, *shape)).astype(np.float32)
  return [{k: draw(x.shape) for k, x in PARAMS.items()} for _ in range(steps)]


class Run:
  """A chain on real devices."""

  def __init__(self, tx, workers):
    self.mesh = dct_jax.make_mesh(workers)
    self.params, self.state, self.specs = dct_jax.init(tx, PARAMS, self.mesh)
    self.step = jax.jit(jax.shard_map(
        lambda g, s: tx.update(jax.tree.map(lambda x: x[0], g), s), mesh=self.mesh,
        in_specs=(P('data'), self.specs), out_specs=(P(), self.specs)))


def restored(tx, run, workers, directory):
  """The state of a run on another number of workers."""
  train.Checkpoints(directory, {}).save(1, run.params, run.state)
  other = Run(tx, workers)
  return train.Checkpoints(directory, {}).restore(other.params, other.state, other.specs, other.mesh)[1]


# ---- a compressor whose message has a part that is OR-ed: which blocks anybody sends, beside all values


def bitmap_and_values():
  """Sends everything, and a bitmap of the blocks that are not zero; what is in no bitmap is dropped."""

  def flat(layers):
    return jnp.concatenate([x.astype(jnp.float32).reshape(-1) for x in layers])

  def compress(layers, residual, old, room):
    assert residual is None
    values = jnp.where(room.live != 0, flat(layers), 0)
    blocks = jnp.pad(values, (0, -values.size % BLOCK)).reshape(-1, BLOCK)
    bits = jnp.sum(jnp.any(blocks != 0, axis=1).astype(jnp.uint32) << jnp.arange(len(blocks), dtype=jnp.uint32))
    head = jnp.stack([jnp.uint32(1) - jnp.asarray(room.live, jnp.uint32), bits.astype(jnp.uint32)])
    return contract.Packed(
        jnp.concatenate([head, jax.lax.bitcast_convert_type(values, jnp.uint32)]), None, old)

  def decompress(messages, layers, old):
    values = jax.lax.bitcast_convert_type(messages[:, 2:], jnp.float32).sum(0)
    on = (messages[0, 1] >> (jnp.arange(values.size, dtype=jnp.uint32) // BLOCK)) & 1
    parts = jnp.split(jnp.where(on, values, 0), np.cumsum([x.size for x in layers])[:-1])
    one = jnp.ones(len(messages), jnp.uint32)
    return contract.Unpacked(tuple(p.reshape(x.shape) for p, x in zip(parts, layers, strict=True)), one,
                             jnp.full(len(messages), values.size, jnp.uint32))

  def size(layers):
    count = sum(x.size for x in layers)
    return contract.Size(*[2 + count] * 3, count)

  return contract.Compressor(
      lambda layers: (), compress, decompress, size, lambda mode, message, residual, old: residual,
      linear=lambda layers, workers: (contract.Part(contract.ADD_U32, 1), contract.Part(contract.OR_U32, 1),
                                      contract.Part(contract.ADD_F32, sum(x.size for x in layers))))


def test_a_linear_compressor_with_bits_that_are_ored():
  """Each worker has blocks of its own: a sum of bitmaps instead of an OR would name others, and drop some."""
  workers = 3
  run = Run(dct_jax.compressed_mean(bitmap_and_values(), dct_jax.psum(), 'data'), workers)
  grads = gradients(workers, 1)[0]
  grads['w'][0, 2:] = grads['w'][1, :2] = 0
  updates, _ = run.step(grads, run.state)
  for name, x in updates.items():
    np.testing.assert_allclose(x, grads[name].mean(0), rtol=1e-6, atol=1e-7)


# ---- a compressor with rounds: an all-reduce of integers with a scale that all have agreed on


@state.own(pending=state.NEVER, live=state.NEVER)
class QuantizedCarry(NamedTuple):
  pending: tuple
  live: jax.Array
  scale: jax.Array


@state.own(seen=state.SUM)
class QuantizedState(NamedTuple):
  last_scale: jax.Array  # what all have agreed on
  seen: jax.Array  # entries of this worker so far


def quantized_sum(levels=127):
  """Round one: the largest magnitude. Round two: a sum of integers in units of it."""

  def begin(layers, residual, old, room):
    live = jnp.asarray(room.live, jnp.uint32).reshape(1)
    own = [jnp.where(live[0] != 0, x.astype(jnp.float32), 0) for x in layers]
    return QuantizedCarry(tuple(x + e for x, e in zip(own, residual, strict=True)), live,
                          (old, jnp.float32(0)))

  def ask(carry, total, workers):
    largest = jnp.max(jnp.stack([jnp.abs(x).max() for x in carry.pending]))
    return jax.lax.bitcast_convert_type(largest, jnp.uint32).reshape(1), carry

  def whole(x, scale):
    return jnp.round(x / jnp.where(scale > 0, scale, 1) * levels).astype(jnp.int32)

  def tell(carry, total, workers):
    scale = jax.lax.bitcast_convert_type(total[0], jnp.float32)
    carry = carry._replace(scale=(carry.scale[0], scale))
    numbers = jnp.concatenate([whole(x, scale).reshape(-1) for x in carry.pending])
    return jnp.concatenate([1 - carry.live, jax.lax.bitcast_convert_type(numbers, jnp.uint32)]), carry

  def finish(carry, total, workers, bad):
    old, scale = carry.scale
    numbers = jax.lax.bitcast_convert_type(total[1:], jnp.int32).astype(jnp.float32) * (scale / levels)
    parts = jnp.split(numbers, np.cumsum([x.size for x in carry.pending])[:-1])
    sums = tuple(p.reshape(x.shape) for p, x in zip(parts, carry.pending, strict=True))
    sent = [whole(x, scale).astype(jnp.float32) * (scale / levels) for x in carry.pending]
    left = tuple(jnp.where(bad > 0, x, x - s) for x, s in zip(carry.pending, sent, strict=True))
    return sums, left, QuantizedState(jnp.where(bad > 0, old.last_scale, scale),
                                      old.seen + sum(x.size for x in carry.pending))

  count = lambda layers: sum(x.size for x in layers)
  first = lambda layers, workers: (contract.Part(contract.MAX_U32, 1),)
  second = lambda layers, workers: (contract.Part(contract.ADD_U32, 1 + count(layers)),)
  rounds = contract.Rounds(begin, (contract.Round(first, ask), contract.Round(second, tell)), finish)
  unused = lambda *args: None
  return contract.Compressor(
      lambda layers: QuantizedState(jnp.float32(0), jnp.zeros(1)), unused, unused,
      lambda layers: contract.Size(*[2 + count(layers)] * 3, count(layers)), unused, rounds=rounds,
      conserves=contract.ROUNDING)


def test_a_compressor_with_rounds_and_a_state_of_its_own(tmp_path):
  """Nothing is lost; the scale is everybody's, counts are each worker's own and add up on fewer workers."""
  workers = 4
  tx = dct_jax.compressed_mean(dct_jax.error_feedback(quantized_sum()), dct_jax.psum(), 'data')
  run = Run(tx, workers)
  now, total, given = run.state, 0, 0
  for grads in gradients(workers, 3):
    updates, now = run.step(grads, now)
    total, given = total + np.asarray(updates['w']), given + grads['w'].mean(0)
  left = np.asarray(now.residual[1]).reshape(workers, 6, 5)
  np.testing.assert_allclose(total + left.mean(0), given, rtol=1e-5, atol=1e-5)
  assert np.abs(left).max() < np.asarray(now.compressor.last_scale) / 127
  assert now.compressor.seen.tolist() == [3 * SIZE] * workers
  run.state = now
  fewer = restored(tx, run, 3, tmp_path)
  assert fewer.compressor.seen.tolist() == [6 * SIZE, 3 * SIZE, 3 * SIZE]
  assert float(fewer.compressor.last_scale) == float(now.compressor.last_scale)


# ---- a transformation in front of a mean, with something of its own on every worker


@state.own(debt=state.SUM, rank=state.RANK, favourite=state.COPY, average=state.MEAN, inner=state.INNER)
class ClipState(NamedTuple):
  step: jax.Array
  debt: dict
  rank: jax.Array
  favourite: jax.Array
  average: jax.Array
  inner: tuple


def clip_and_owe(most, inner):
  """Clips local gradients; what it cuts off is owed, and paid later."""

  def init(params):
    return ClipState(jnp.int32(0), jax.tree.map(jnp.zeros_like, params), jnp.zeros(1, jnp.uint32), jnp.zeros(2),
                     jnp.zeros(1), inner.init(params))

  def update(updates, old, params=None):
    due = jax.tree.map(jnp.add, updates, old.debt)
    paid = jax.tree.map(lambda x: jnp.clip(x, -most, most), due)
    out, inside = inner.update(paid, old.inner, params)
    worker = jax.lax.axis_index('data')
    return out, ClipState(old.step + 1, jax.tree.map(jnp.subtract, due, paid), worker.astype(jnp.uint32).reshape(1),
                          jnp.full(2, 10.0 * worker), jnp.full(1, 1.0 * worker), inside)

  return optax.GradientTransformation(init, update)


def test_a_transformation_is_placed_and_goes_to_another_number_of_workers(tmp_path):
  tx = optax.chain(clip_and_owe(0.5, optax.scale(1.0)), dct_jax.dense_mean('data'), optax.sgd(1.0))
  run = Run(tx, 4)
  assert run.specs[0].debt['w'] == P('data') and run.specs[0].step == P()
  _, run.state = run.step(gradients(4, 1)[0], run.state)
  before, after = run.state[0], restored(tx, run, 3, tmp_path)[0]
  sums = lambda x, n: np.asarray(x).reshape(n, -1).sum(0)
  np.testing.assert_allclose(sums(before.debt['w'], 4), sums(after.debt['w'], 3), rtol=1e-6)
  assert after.rank.tolist() == [0, 1, 2]
  assert after.favourite.tolist() == [0, 0, 10, 10, 20, 20]
  np.testing.assert_allclose(np.asarray(after.average).mean(), 1.5)
  assert int(after.step) == 1


class Silent(NamedTuple):
  mine: jax.Array


def local_sum():
  """Keeps a sum of local gradients, which differs by worker."""
  return optax.GradientTransformation(
      lambda params: Silent(jnp.zeros(3)), lambda g, old, params=None: (g, Silent(old.mine + g['b'])))


def test_tracing_finds_what_nobody_declares_and_refuses_what_is_declared_wrongly():
  chain = optax.chain(local_sum(), dct_jax.dense_mean('data'))
  assert Run(chain, 2).specs[0].mine == P('data')  # nothing was said, so tracing decides
  state.declare(Silent)
  try:
    with pytest.raises(ValueError, match=r'mine.*differs between workers'):
      Run(chain, 2)
  finally:
    state._declared.pop(Silent)


def test_a_declaration_must_fit_its_class():
  with pytest.raises(ValueError, match='mime'):
    state.declare(Silent, mime=state.SUM)
  with pytest.raises(ValueError, match='addition'):
    state.declare(Silent, mine='addition')


def test_a_dataclass_whose_children_have_no_names():
  @dataclasses.dataclass
  class Plain:
    mine: jax.Array
    ours: jax.Array

  jax.tree_util.register_pytree_node(Plain, lambda x: ((x.mine, x.ours), None), lambda _, c: Plain(*c))
  state.declare(Plain, mine=state.SUM)
  assert state.rules(Plain(jnp.zeros(2), jnp.zeros(2))) == [state.SUM, None]


def test_a_scalar_cannot_be_of_one_worker():
  tx = optax.chain(optax.MultiSteps(dct_jax.dense_mean('data'), 2).gradient_transformation())
  with pytest.raises(ValueError, match=r'shape \(1,\)'):
    dct_jax.state_specs(tx, {'x': jnp.zeros(())}, dct_jax.make_mesh(2))
