"""Replicas of groups on a mesh: the oracles' numbers, what travels when, who agrees on what, and what is refused."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P
from reference import averaging as oracle

import dct_jax
from dct_jax import train

pytestmark = pytest.mark.plain_code

STEPS, EVERY = 20, 3
START = {'w': np.linspace(-1, 1, 6).reshape(2, 3).astype(np.float32), 'b': np.float32(0.5)}
SIZE = 7
METHODS = {
    'easgd': (lambda **kw: dct_jax.easgd(0.2, EVERY, **kw), lambda x: oracle.Easgd(x, 0.2)),
    'mean': (lambda **kw: dct_jax.model_averaging(0.7, EVERY, **kw), lambda x: oracle.ModelAveraging(x, 0.7)),
    'bmuf': (lambda **kw: dct_jax.bmuf(0.6, 0.8, 0.9, EVERY, **kw), lambda x: oracle.Bmuf(x, 0.6, 0.8, 0.9, False)),
    'nesterov': (lambda **kw: dct_jax.bmuf(0.6, 0.8, 0.9, EVERY, nesterov=True, **kw),
                 lambda x: oracle.Bmuf(x, 0.6, 0.8, 0.9, True)),
}


def moves(groups, steps=STEPS):
  """Updates of every step, [groups, ...]."""
  rng = np.random.default_rng(groups)
  draw = lambda x: rng.standard_normal((groups, *np.shape(x))).astype(np.float32)
  return [{k: draw(x) for k, x in START.items()} for _ in range(steps)]


class Groups:
  """Groups of one worker each, on devices of their own or simulated on one."""

  def __init__(self, tx, groups, simulated=False, jit=True):
    self.tx, self.traces = tx, 0
    if simulated:
      mesh = AbstractMesh((groups,), ('group',), axis_types=(AxisType.Auto,))
      self.specs = dct_jax.group_specs(tx, START, mesh, axis_name=None)
      axes = dct_jax.vmap_axes(self.specs)
      self.params = jax.tree.map(lambda x: jnp.stack([x] * groups), START)
      self.state = jax.tree.map(lambda x, a: x if a is None else jnp.stack([x] * groups), tx.init(START), axes,
                                is_leaf=lambda x: x is None)
      step = jax.vmap(lambda p, s, u: self.one(p, s, u)[:2], in_axes=(0, axes, 0), out_axes=(0, axes),
                      axis_name='group')
    else:
      self.mesh = dct_jax.make_mesh(1, groups=groups)
      self.params, self.state, self.specs = dct_jax.init_groups(tx, START, self.mesh, axis_name=None)
      one = lambda p, s, u: self.one(p, s, jax.tree.map(lambda x: x[0], u))
      mapped = dct_jax.map_groups(one, self.mesh, self.specs, axis_name=None)
      step = lambda p, s, u: mapped(p, s, u)[:2]
    self.step = jax.jit(step) if jit else step

  def one(self, params, state, updates):
    self.traces += 1
    updates, state = self.tx.update(updates, state, params)
    return optax.apply_updates(params, updates), state, jnp.zeros(())

  def run(self, all_moves):
    """[groups, ...] replicas after every step."""
    seen = []
    for updates in all_moves:
      self.params, self.state = jax.block_until_ready(self.step(self.params, self.state, updates))
      seen.append(jax.tree.map(np.asarray, self.params))
    return seen


@pytest.mark.parametrize('groups', [2, 3, 5])
@pytest.mark.parametrize('name', ['easgd', 'mean', 'nesterov'])
def test_it_is_the_oracle_on_devices_and_simulated_and_in_one_compilation(name, groups):
  make, reference = METHODS[name]
  given = moves(groups)
  devices, simulated = Groups(make(), groups), Groups(make(), groups, simulated=True)
  before = devices.traces
  got, alike = devices.run(given), simulated.run(given)
  assert devices.traces == before + 1 and devices.step._cache_size() == 1
  for k in START:
    want_of = reference(START[k])
    want = oracle.run(want_of, START[k], [u[k] for u in given], EVERY)
    for step in range(STEPS):
      np.testing.assert_allclose(got[step][k], want[step], rtol=1e-5, atol=1e-5)
      np.testing.assert_allclose(alike[step][k], got[step][k], rtol=1e-6, atol=1e-6)
    if want_of.center is not None:
      np.testing.assert_allclose(devices.state.center.center[k], want_of.center, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('name', ['easgd', 'nesterov'])
def test_jit_is_eager(name):
  given = moves(2, EVERY + 1)
  fast, slow = (Groups(METHODS[name][0](), 2, simulated=True, jit=jit).run(given) for jit in (True, False))
  for a, b in zip(jax.tree.leaves(fast), jax.tree.leaves(slow), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize('groups', [2, 5])
def test_an_elastic_synchronization_conserves_the_sum_of_replicas_and_center(groups):
  run, given = Groups(METHODS['easgd'][0](), groups), moves(groups, EVERY)
  run.run(given[:-1])
  before = {k: np.float64(x).sum(0) + START[k] for k, x in jax.device_get(run.params).items()}
  run.run(given[-1:])
  for k, x in run.params.items():
    want = before[k] + np.float64(given[-1][k]).sum(0)
    np.testing.assert_allclose(np.float64(x).sum(0) + run.state.center.center[k], want, rtol=1e-5, atol=1e-5)
    assert np.abs(run.state.center.center[k] - START[k]).max() > 0.1


@pytest.mark.parametrize('name', ['easgd', 'nesterov'])
def test_all_groups_have_the_same_center(name):
  run = Groups(METHODS[name][0](), 5)
  run.run(moves(5, 2 * EVERY))
  for x in jax.tree.leaves(run.state):
    assert x.sharding.spec == P() and len(x.addressable_shards) == 5
    assert len({np.asarray(s.data).tobytes() for s in x.addressable_shards}) == 1


def test_the_mean_makes_all_replicas_alike():
  run = Groups(dct_jax.model_averaging(every=2), 3)
  apart, together = run.run(moves(3, 2))
  assert np.ptp(apart['w'], axis=0).min() > 0.01 and np.ptp(together['w'], axis=0).max() < 1e-6


# What travels.


def collectives(text):
  """Elements of every all-reduce of a compiled program, and whether the main computation has it."""
  main = text[text.index('ENTRY'):]
  return [(int(n), line in main) for line in text.splitlines()
          for n in re.findall(r'= f32\[(\d+)\]\S* all-reduce\(', line)]


def test_nothing_travels_between_synchronizations():
  """There is one collective, of all parameters, and it is in a branch; updates pass bit for bit, and bytes say so."""
  run, given = Groups(METHODS['easgd'][0](), 4), moves(4, EVERY)
  text = run.step.lower(run.params, run.state, given[0]).compile().as_text()
  assert collectives(text) == [(SIZE + 1, False)] and 'all-gather' not in text
  bytes_of = []
  for updates in given:
    old = jax.device_get(run.params)
    run.run([updates])
    bytes_of.append(run.state.stats.receipt)
    exact = all(np.array_equal(run.params[k], old[k] + updates[k]) for k in START)
    assert exact == (len(bytes_of) < EVERY) and int(run.state.since) == len(bytes_of) % EVERY
  assert not any(np.any(x) for x in jax.tree.leaves(bytes_of[:-1]))
  last = bytes_of[-1]
  assert int(last.encoded_bytes) == 4 * SIZE and int(last.moved_bytes) == 4 * (SIZE + 1)
  assert int(last.sent_bytes) == 2 * 4 * (SIZE + 1) * 3 // 4 and float(last.density) == 1


def test_negative_zeros_pass_between_synchronizations():
  tx = dct_jax.easgd(0.5, 2, None)
  updates, _ = tx.update(jnp.array([-0.0, 1.0]), tx.init(jnp.ones(2)), jnp.ones(2))
  assert np.signbit(updates).tolist() == [True, False]


def test_a_group_alone_sends_nothing():
  tx = dct_jax.easgd(0.5, axis_name=None)
  state = tx.init(jnp.zeros(2))
  updates, state = jax.jit(tx.update)(jnp.array([4.0, -2.0]), state, jnp.zeros(2))
  assert updates.tolist() == [2.0, -1.0] and state.center.center.tolist() == [2.0, -1.0]
  assert int(state.stats.receipt.moved_bytes) == 0


def test_a_state_may_be_donated_with_the_parameters():
  tx, params = dct_jax.bmuf(0.5, axis_name=None), {'w': jnp.ones(3)}
  jax.jit(tx.update, donate_argnums=(1, 2))(jax.tree.map(jnp.ones_like, params), tx.init(params), params)


def test_narrow_parameters_stay_narrow():
  tx = dct_jax.easgd(0.5, axis_name=None)
  params = jnp.array([1.0, 2.0], jnp.bfloat16)
  updates, state = tx.update(jnp.full(2, 0.5, jnp.bfloat16), tx.init(params), params)
  assert updates.dtype == jnp.bfloat16 and state.center.center.dtype == jnp.float32


# Replicas that are not finite.


@pytest.mark.parametrize('name', ['easgd', 'mean', 'bmuf'])
def test_a_replica_that_is_not_finite_takes_no_part(name):
  make, reference = METHODS[name]
  given = moves(3, EVERY)
  given[0]['w'][1, 0, 0] = np.nan
  given[1]['w'][1, 0, 1] = np.inf
  run = Groups(make(), 3)
  got = run.run(given)[-1]
  for k in START:
    want = oracle.run(reference(START[k]), START[k], [u[k][[0, 2]] for u in given], EVERY)[-1]
    np.testing.assert_allclose(got[k][[0, 2]], want, rtol=1e-5, atol=1e-5)
    alone = START[k] + sum(u[k][1] for u in given)
    np.testing.assert_allclose(got[k][1], alone, rtol=1e-5, atol=1e-5)
  assert int(run.state.stats.nonfinite) == 1


def test_no_center_moves_when_no_replica_is_finite():
  run, given = Groups(METHODS['bmuf'][0](), 2), moves(2, EVERY)
  given[0]['w'][:] = np.nan
  run.run(given)
  np.testing.assert_array_equal(run.state.center.center['w'], START['w'])
  assert not np.any(run.state.center.velocity['w']) and int(run.state.stats.nonfinite) == 2


# Refusals.


@pytest.mark.parametrize(('make', 'message'), [
    (lambda: dct_jax.easgd(0), 'alpha=0'), (lambda: dct_jax.easgd(1.5), 'alpha=1.5'),
    (lambda: dct_jax.model_averaging(-1), 'alpha=-1'), (lambda: dct_jax.bmuf(1.0), 'momentum=1.0'),
    (lambda: dct_jax.easgd(0.5, every=0), 'every=0'), (lambda: dct_jax.bmuf(0.5, every=1.5), 'every=1.5'),
    (lambda: dct_jax.model_averaging(every=float('nan')), 'every=nan'),
    (lambda: dct_jax.easgd(0.5).init({'n': jnp.zeros(2, jnp.int32)}), 'int32')])
def test_bad_arguments_are_refused(make, message):
  with pytest.raises(ValueError, match=message):
    make()


def test_an_update_needs_parameters_and_a_mapped_axis():
  tx = dct_jax.easgd(0.5, axis_name='group')
  zero = jnp.zeros(2)
  with pytest.raises(ValueError, match='params=None'):
    tx.update(zero, tx.init(zero))
  with pytest.raises(ValueError, match="axis_name='group'"):
    tx.update(zero, tx.init(zero), zero)


def test_springs_that_are_too_strong_together_are_refused():
  Groups(dct_jax.easgd(1 / 3), 3, simulated=True).run(moves(3, 1))
  with pytest.raises(ValueError, match='alpha=0.34 and groups=3'):
    Groups(dct_jax.easgd(0.34), 3, simulated=True)


def test_more_than_one_replica_in_a_group_is_refused():
  mesh = dct_jax.make_mesh(2, groups=2)
  with pytest.raises(ValueError, match=r"differ over \['data'\]"):
    dct_jax.init_groups(optax.chain(optax.sgd(0.1), dct_jax.easgd(0.5)), {'w': jnp.zeros(2)}, mesh)


# Checkpoints.


def restored(run, tx, groups, directory):
  train.Checkpoints(directory, {}).save(1, run.params, run.state)
  other = Groups(tx, groups)
  other.params, other.state, _ = train.Checkpoints(directory, {}).restore(
      other.params, other.state, other.specs, other.mesh, 'group')
  return other


def test_a_checkpoint_goes_on_bit_for_bit(tmp_path):
  make, _ = METHODS['nesterov']
  given = moves(3, 2 * EVERY)
  run = Groups(make(), 3)
  run.run(given[:EVERY + 1])
  other = restored(run, make(), 3, tmp_path)
  assert int(other.state.since) == 1
  for a, b in zip(jax.tree.leaves(run.run(given[EVERY + 1:])), jax.tree.leaves(other.run(given[EVERY + 1:])),
                  strict=True):
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(('old', 'new'), [(3, 2)])
def test_another_number_of_groups_has_the_center_and_means_of_replicas(old, new, tmp_path):
  make = lambda: optax.chain(optax.trace(0.9), METHODS['bmuf'][0]())
  run = Groups(make(), old)
  run.run(moves(old, EVERY + 1))
  other = restored(run, make(), new, tmp_path)
  for a, b in zip(jax.tree.leaves(run.state[1]), jax.tree.leaves(other.state[1]), strict=True):
    np.testing.assert_array_equal(a, b)  # the center, its velocity and the steps since
  for had, got in [(run.params['w'], other.params['w']), (run.state[0].trace['b'], other.state[0].trace['b'])]:
    had = np.asarray(had)
    for j in range(new):
      want = had[j::new].mean(0) if len(had[j::new]) else had[j % old]
      np.testing.assert_allclose(got[j], want, rtol=1e-6)
  other.run(moves(new, EVERY))
