"""Groups of workers on one mesh: DCT inside a group, a synchronization between them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import dct_jax
from dct_jax import train

pytestmark = pytest.mark.plain_code

START = {'w': jnp.zeros((40, 5)), 'b': jnp.zeros(3)}
WORKERS = 2


def chain(sync, momentum=0.9):
  few = dct_jax.all_gather(rungs=3)  # capacities, each of which is compiled
  return optax.chain(dct_jax.dct_dp(0.9, 3, 'data', dense_below=8, collective=few), optax.sgd(0.1, momentum), sync)


def gradients(groups, steps, seed=0):
  """[groups * workers, ...] local gradients; those of later groups have fewer entries that are not zero."""
  rng = np.random.default_rng(seed)

  def draw(shape):
    dense = rng.standard_normal((groups, WORKERS, *shape)).astype(np.float32)
    keep = rng.random(dense.shape) < (0.05 ** np.arange(groups)).reshape(-1, *[1] * (dense.ndim - 1))
    return (dense * keep).reshape(groups * WORKERS, *shape)

  return [{k: draw(x.shape) for k, x in START.items()} for _ in range(steps)]


class Run:
  """Groups that are given their gradients."""

  def __init__(self, tx, groups):
    self.mesh = dct_jax.make_mesh(WORKERS, groups=groups)
    self.params, self.state, self.specs = dct_jax.init_groups(tx, START, self.mesh)

    def one(params, state, grads):
      updates, state = tx.update(jax.tree.map(lambda x: x[0], grads), state, params)
      return optax.apply_updates(params, updates), state, ()

    self.step = jax.jit(dct_jax.map_groups(one, self.mesh, self.specs), donate_argnums=(0, 1))

  def go(self, all_grads):
    for grads in all_grads:
      self.params, self.state, _ = jax.block_until_ready(self.step(self.params, self.state, grads))
    return self


def test_between_synchronizations_a_group_is_alone():
  """Every group does what it does without the others, capacities of its messages and all."""
  groups, grads = 3, gradients(3, 8)
  run = Run(chain(dct_jax.easgd(0.3, every=100)), groups).go(grads)
  alone, moved = chain(optax.identity()), np.asarray(run.state[0].stats.receipt.moved_bytes)
  for g in range(groups):
    update, state = dct_jax.simulate(alone, START, WORKERS)
    params = START
    for each in grads:
      mine = jax.tree.map(lambda x: x[g * WORKERS:(g + 1) * WORKERS], each)
      updates, state = update(mine, state, params)
      params = optax.apply_updates(params, updates)
    for k in START:
      np.testing.assert_allclose(run.params[k][g], params[k], rtol=1e-5, atol=1e-6)
    for held, want in zip(run.state[0].residual, state[0].residual, strict=True):
      np.testing.assert_allclose(np.asarray(held)[g].reshape(want.shape), want, rtol=1e-5, atol=1e-6)
    assert moved[g] == state[0].stats.receipt.moved_bytes
  assert len(set(moved.tolist())) > 1  # they are on different rungs of the ladder
  assert run.step._cache_size() == 1


def test_groups_are_pulled_together():
  grads = gradients(2, 4)
  apart = Run(chain(dct_jax.model_averaging(every=100)), 2).go(grads)
  together = Run(chain(dct_jax.model_averaging(every=4)), 2).go(grads)
  for k in START:
    assert np.ptp(apart.params[k], axis=0).max() > 0.01
    want = np.broadcast_to(np.mean(apart.params[k], axis=0), together.params[k].shape)
    np.testing.assert_allclose(together.params[k], want, rtol=1e-5, atol=1e-6)
  told = jax.device_get(train.step.accounts(jax.tree.map(lambda x, s: x[0] if any(s) else x, together.state,
                                                         together.specs)))
  assert int(told['sent_bytes']) > 4 * 203 and float(told['density/1']) == 1


def test_specs_say_what_is_whose():
  specs = Run(chain(dct_jax.bmuf(0.5)), 2).specs
  assert all(s == P('group', 'data') for s in specs[0].residual) and specs[0].worker == P('group', 'data')
  assert specs[1][0].trace['w'] == P('group') and specs[0].collective.wanted == P('group')
  assert all(s == P() for s in jax.tree.leaves(specs[2])) and specs[0].step == P()


@pytest.mark.parametrize(('old', 'new'), [(2, 1), (2, 3)])
def test_a_checkpoint_goes_to_another_number_of_groups(old, new, tmp_path):
  """Groups that join have the mean of what their workers still owe, worker by worker; new ones have copies."""
  make = lambda: chain(dct_jax.easgd(0.3, every=3))
  run = Run(make(), old).go(gradients(old, 4))
  train.Checkpoints(tmp_path, {}).save(4, run.params, run.state)
  other = Run(make(), new)
  other.params, other.state, step = train.Checkpoints(tmp_path, {}).restore(
      other.params, other.state, other.specs, other.mesh, 'group')
  assert step == 4 and np.abs(run.state[0].residual[1]).max() > 0
  pairs = [(run.state[0].residual[1], other.state[0].residual[1]), (run.params['w'], other.params['w']),
           (run.state[1][0].trace['w'], other.state[1][0].trace['w'])]
  for had, got in pairs:
    had = np.asarray(had)
    for j in range(new):
      want = had[j::new].mean(0) if len(had[j::new]) else had[j % old]
      np.testing.assert_allclose(got[j], want, rtol=1e-6, atol=1e-7)
  assert np.asarray(other.state[0].worker).tolist() == [list(range(WORKERS))] * new
  np.testing.assert_array_equal(other.state[2].center.center['w'], run.state[2].center.center['w'])
  other.go(gradients(new, 2))


def test_a_conditional_around_a_mean_is_refused():
  tx = dct_jax.accumulate(optax.chain(dct_jax.dense_mean('data'), optax.sgd(0.1)), 2)
  with pytest.raises(ValueError, match='conditional around a mean'):
    dct_jax.init_groups(optax.chain(tx, dct_jax.easgd(0.5)), START, dct_jax.make_mesh(2, groups=2))


def test_meshes_with_groups():
  assert dict(dct_jax.make_mesh(2, groups=3).shape) == {'group': 3, 'data': 2}
  assert dict(dct_jax.make_mesh(groups=2).shape) == {'group': 2, 'data': 4}
  assert dict(dct_jax.make_mesh(2, stages=2, groups=1).shape) == {'group': 1, 'data': 2, 'stage': 2}
  with pytest.raises(ValueError, match='groups=3 x workers=3'):
    dct_jax.make_mesh(3, groups=3)
  with pytest.raises(ValueError, match='groups=0'):
    dct_jax.make_mesh(3, groups=0)


@pytest.mark.parametrize('names', [{'group_axis': 'pod'}, {'axis_name': 'worker'}])
def test_an_axis_that_the_mesh_does_not_have_is_refused(names):
  with pytest.raises(ValueError, match=r"axes \('group', 'data'\), got '(pod|worker)'"):
    dct_jax.init_groups(chain(dct_jax.easgd(0.3)), START, dct_jax.make_mesh(2, groups=2), **names)
