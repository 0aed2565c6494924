"""What travels on edges in few bits, and what is kept of what did not."""

import jax
import jax.numpy as jnp
import nets
import numpy as np
import optax
import pytest
from marks import slow
from reference import edges

from dct_jax import partition
from dct_jax.partition import Codecs, Machine, Nodes, codecs, feedback, files, programs

SGD = optax.sgd(0.1)


def draw(seed, *shape):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def there(x, codec):
  return np.asarray(codecs.decode(codecs.encode(jnp.asarray(x), codec), codec, jax.typeof(jnp.asarray(x))))


# int4.

@pytest.mark.parametrize('width', [1, 4, 5])
def test_int4_is_what_the_oracle_says(width):
  x = draw(width, 6, width)
  x[2] = 0
  packed, scale = codecs.encode(x, 'int4')
  assert packed.dtype == jnp.uint8 and packed.shape == (6, -(-width // 2)) and scale.shape == (6, 1)
  codes, arrives = edges.int4_rows(x)
  halves = np.stack([np.asarray(packed) & 15, np.asarray(packed) >> 4], -1).reshape(6, -1)
  np.testing.assert_array_equal(np.where(halves > 7, halves.astype(int) - 16, halves)[:, :width], codes)
  np.testing.assert_allclose(there(x, 'int4'), arrives, rtol=1e-6)
  assert codecs.encoded_bytes(jax.typeof(jnp.asarray(x)), 'int4') == 6 * (-(-width // 2) + 4)


def test_int4_keeps_what_is_not_finite():
  x = np.array([[1, np.inf, -2], [np.nan, 1, 2], [-np.inf, 0, 1e30]], np.float32)
  got = there(x, 'int4')
  np.testing.assert_array_equal(got[0], [0, np.inf, 0])
  assert np.isnan(got[1]).all()
  np.testing.assert_array_equal(got[2], [-np.inf, 0, 0])


# Sparse rows.

@pytest.mark.parametrize(('shape', 'sparsity'), [((5, 10), 0.9), ((3, 2, 7), 0.5), ((2, 100), 0.29), ((4, 300), 0.99),
                                                 ((2, 8), 1.0)])
def test_sparse_is_what_the_oracle_says(shape, sparsity):
  x = np.round(draw(1, *shape), 1)  # many are equal
  got = there(x, f'sparse:{sparsity}')
  np.testing.assert_array_equal(got, edges.sparse_rows(x, sparsity))
  assert codecs.kept(shape[-1], f'sparse:{sparsity}') == edges.kept(shape[-1], sparsity)
  size = codecs.encoded_bytes(jax.typeof(jnp.asarray(x)), f'sparse:{sparsity}')
  assert size == x.size // shape[-1] * edges.kept(shape[-1], sparsity) * (4 + (1 if shape[-1] <= 256 else 2))


def test_sparse_sends_what_is_not_finite():
  x = np.array([[1, np.nan, 5, np.inf, 0, 2, 3, 1, 0, 4]], np.float32)
  np.testing.assert_array_equal(there(x, 'sparse:0.8'), [[0, np.nan, 5, np.inf, 0, 0, 0, 0, 0, 0]])


@pytest.mark.parametrize(('shape', 'fits'), [((32, 1), False), ((32,), False), ((4, 3), True), ((), False)])
def test_what_would_not_be_shorter_goes_exact(shape, fits):
  assert codecs.fits(jax.ShapeDtypeStruct(shape, jnp.float32), 'sparse') == fits


@pytest.mark.parametrize(('make', 'message'), [
    (lambda: Codecs('int3'), "values travel as one of .*, got 'int3'"),
    (lambda: Codecs('int8:0.5'), "values travel as one of .*, got 'int8:0.5'"),
    (lambda: Codecs(backward='sparse:1.5'), r'sparse must be in \[0, 1\], got sparse=1.5'),
    (lambda: Codecs(backward='sparse:much'), "a sparsity is a number, .* got 'sparse:much'"),
    (lambda: Codecs(backward='int8', feedback=0), 'a whole number of batches from 1 on, or None, got 0'),
    (lambda: Codecs(backward='int8', feedback=2.5), 'got 2.5'),
    (lambda: Codecs('int8', feedback=10), 'leave nothing to feed back')])
def test_bad_codecs(make, message):
  with pytest.raises(ValueError, match=message):
    make()


# Feedback.

def buffer(shape, period=10**6, seed=0):
  return feedback.empty({7: jax.ShapeDtypeStruct(shape, jnp.float32)}, {7}, period, jax.random.key(seed))


@pytest.mark.parametrize(('shape', 'period'), [((6, 20), 3), ((2, 3, 10), 10**6), *slow(((1, 5), 1), ((40, 300), 50))])
def test_feedback_conserves_to_the_bit(shape, period):
  """sent + residual + drained = gradient + old residual; what is drained is seen where the past is gone."""
  kept, forgotten, codec = buffer(shape, period), 0, 'sparse:0.8'
  for step in range(6):
    old, gradient = np.asarray(kept.buffers[7].residual), draw(step, *shape)
    payload = kept.encode(7, jnp.asarray(gradient), codec)
    sent = np.asarray(codecs.decode(payload, codec, jax.ShapeDtypeStruct(shape, jnp.float32)))
    new = np.asarray(kept.buffers[7].residual)
    drained = np.where(sent + new == gradient + old, 0, old)
    np.testing.assert_array_equal(sent + new, (gradient + (old - drained)).astype(np.float32))
    assert not np.any((sent != 0) & (new != 0))
    wanted = edges.feedback(gradient, old, drained != 0, 0.8)
    np.testing.assert_array_equal(sent, wanted[0])
    np.testing.assert_array_equal(new, wanted[1])
    forgotten += np.count_nonzero(drained)
    assert int(kept.buffers[7].drained) == forgotten
  assert (forgotten > 0) == (period < 100)


def test_an_entry_is_forgotten_once_in_a_period():
  kept, count = buffer((50, 40), 8), 0
  for step in range(40):
    before = int(kept.buffers[7].drained)
    full = np.count_nonzero(kept.buffers[7].residual)
    kept.encode(7, jnp.asarray(draw(step, 50, 40)), 'sparse:0.9')
    count += (int(kept.buffers[7].drained) - before) / max(full, 1)
  assert count / 39 == pytest.approx(1 / 8, rel=0.05)


def test_rounding_is_fed_back_as_well():
  kept, gradient = buffer((4, 6)), draw(3, 4, 6)
  total = np.zeros((4, 6))
  for _ in range(50):
    total += np.asarray(codecs.decode(kept.encode(7, gradient, 'int4'), 'int4', jax.typeof(jnp.asarray(gradient))))
  np.testing.assert_allclose(total / 50, gradient, atol=0.01)
  assert np.abs(there(gradient, 'int4') - gradient).max() > 0.05


def test_nothing_that_is_not_finite_is_kept():
  kept = buffer((1, 10))
  kept.encode(7, jnp.ones((1, 10)), 'sparse:0.9')
  bad = np.array([[np.nan, 1, np.inf, np.nan, 0, 0, 0, 0, 0, 3e38]], np.float32)
  payload = kept.encode(7, jnp.asarray(bad), 'sparse:0.9')
  np.testing.assert_array_equal(payload[1], [[np.nan, np.inf]])
  assert np.isfinite(kept.buffers[7].residual).all() and int(kept.buffers[7].nonfinite) == 3
  kept.clear()
  assert not np.any(kept.buffers[7].residual) and int(kept.buffers[7].nonfinite) == 3


# In a plan.

NET = nets.mlp(1, 10)


def planned(machine=None, **options):
  return partition.plan(NET.loss, SGD, NET.params, *NET.batch(0), nodes=Nodes(group=2), method='random', seed=2,
                        machine=machine, codec=Codecs(**options))


def test_a_plan_keeps_what_gradients_lose():
  """The same batch again and again: with feedback the mean of what is sent is the gradient, without it is not."""
  plan = planned(backward='sparse:0.7', feedback=10**6)
  kept = plan.feedback()
  lossy = {t.value for *_, t in programs.all_transfers(plan.programs) if t.codec != 'exact'}
  assert lossy and set().union(*(f.buffers for f in kept.values())) == lossy
  assert sum(len(f.buffers) for f in kept.values()) == len(lossy)  # one node encodes a value, others pass it on

  def change(simulate, **options):
    new, _, _ = simulate(NET.params, SGD.init(NET.params), *NET.batch(0), **options)
    return np.concatenate([np.ravel(x - y) for x, y in zip(*map(jax.tree.leaves, (new, NET.params)), strict=True)])

  right, alone = change(nets.step(NET, SGD)), change(plan.simulate)
  np.testing.assert_array_equal(alone, change(plan.simulate, feedback=plan.feedback()))
  mean = np.mean([change(plan.simulate, feedback=kept) for _ in range(20)], 0)
  assert np.linalg.norm(mean - right) < 0.3 * np.linalg.norm(alone - right)
  assert all(int(b.drained) == 0 for f in kept.values() for b in f.buffers.values())


def test_what_feedback_costs():
  """Processor time of whoever sends, memory for buffers, and no bytes."""
  free = dict.fromkeys(codecs.CODECS, 0.0)
  plain, kept = (planned(Machine(byte=1e-3, encode=free, decode=free), backward='sparse:0.7', feedback=period)
                 for period in (None, 100))
  assert plain.at == kept.at and plain.load.traffic == kept.load.traffic
  for n, node in enumerate(kept.nodes.names):
    held = sum(b.residual.nbytes for b in kept.feedback()[node].buffers.values()) if node in kept.feedback() else 0
    assert kept.load.memory[n] - plain.load.memory[n] == pytest.approx(held)
    assert kept.load.seconds[n, 0] - plain.load.seconds[n, 0] == pytest.approx(4e-3 * held)
  assert plain.feedback() == {}


def test_feedback_is_in_the_file(tmp_path):
  plan = planned(forward='int4', backward='sparse:0.75', feedback=500)
  files.save(plan, tmp_path / 'plan.json')
  assert files.load(tmp_path / 'plan.json', plan.graph).estimate.codec == Codecs('int4', 'sparse:0.75', 500)
