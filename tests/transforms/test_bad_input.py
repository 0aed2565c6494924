"""What is refused, and how; gradients that are not finite."""

import jax.numpy as jnp
import laws
import numpy as np
import pytest
from marks import slow
from reference import select

import dct_jax


@pytest.mark.parametrize(('factory', 'words'), [
    (lambda: dct_jax.dct_dp(True), 'sparsity=True'),
    (lambda: dct_jax.dct_dp(1.5), 'sparsity=1.5'),
    (lambda: dct_jax.dct_dp(-0.1), 'sparsity=-0.1'),
    (lambda: dct_jax.dct_dp(float('nan')), 'sparsity=nan'),
    (lambda: dct_jax.dct_dp(lambda step: 2.0), 'sparsity=2.0'),
    (lambda: dct_jax.dct_dp(0.9, 0), 'lifespan=0'),
    (lambda: dct_jax.dct_dp(0.9, 2.5), 'lifespan=2.5'),
    (lambda: dct_jax.dct_dp(0.9, selection='guess'), "selection='guess'"),
    (lambda: dct_jax.dct_dp(0.9, value_codec='int3'), "value_codec='int3'"),
    (lambda: dct_jax.dct_dp(0.9, index_codec='zip'), "index_codec='zip'"),
    (lambda: dct_jax.dct_dp(0.9, drain_period=0), 'drain_period=0'),
    (lambda: dct_jax.dct_dp(0.9, tracking=-1), 'tracking=-1'),
    (lambda: dct_jax.dct_dp(0.9, nonfinite='hope'), "nonfinite='hope'"),
    (lambda: dct_jax.dct_dp(0.9, dense_below=-1), 'dense_below=-1'),
    (lambda: dct_jax.top_k(0), 'keep=0'),
    (lambda: dct_jax.bucket_top_k(9, 8), 'k=9'),
    (lambda: dct_jax.block_top_k(0.1, 0), 'block=0'),
    (lambda: dct_jax.cast('int8'), "'int8'"),
    (lambda: dct_jax.all_gather(0), 'rungs=0'),
    (lambda: dct_jax.make_mesh(1000), 'workers=1000'),
    (lambda: dct_jax.compressed_mean(dct_jax.top_k(0.1), dct_jax.psum()), 'all_gather'),
    (lambda: dct_jax.compressed_mean(dct_jax.identity(), dct_jax.all_gather()), 'psum'),
])
def test_bad_arguments_name_themselves(factory, words):
  with pytest.raises(ValueError) as error:
    factory()
  assert words in str(error.value)


def test_unknown_axis():
  tx = dct_jax.dct_dp(0.9, axis_name='nowhere')
  with pytest.raises(ValueError, match="axis_name='nowhere'"):
    tx.update((jnp.ones(4),), tx.init((jnp.ones(4),)))
  with pytest.raises(ValueError, match="axis_name='nowhere'"):
    dct_jax.init(tx, (jnp.ones(4),), dct_jax.make_mesh(2), axis_name='nowhere')


@pytest.mark.parametrize('dtype', ['int32', 'complex64', 'bool'])
def test_gradients_that_are_not_real(dtype):
  tx = dct_jax.dct_dp(0.9)
  with pytest.raises(ValueError, match=f'dtype={dtype}'):
    tx.init((jnp.ones(4, dtype),))
  with pytest.raises(ValueError, match=f'dtype={dtype}'):
    tx.update((jnp.ones(4, dtype),), tx.init((jnp.ones(4),)))


def test_a_tree_that_changes_shape():
  tx = dct_jax.dct_dp(0.9)
  state = tx.init((jnp.ones(4),))
  with pytest.raises(ValueError, match=r'\(5,\)'):
    tx.update((jnp.ones(5),), state)


def test_an_empty_tree():
  with pytest.raises(ValueError, match='no parameters'):
    dct_jax.dct_dp(0.9).init({})


def test_a_mask_of_another_tree():
  with pytest.raises(ValueError, match='mask'):
    dct_jax.dct_dp(0.9, mask={'x': True}).init({'y': jnp.ones(3)})


def bad_step(policy, bad=jnp.nan):
  """Two good steps and then one in which worker 1 of 3 has a bad entry."""
  tx = dct_jax.dct_dp(0.9, 2, 'data', dense_below=0, nonfinite=policy)
  step, state = laws.vmap_runner(tx, (jnp.zeros(500),), 3)
  (a,), (b,), (c,) = laws.gradients(3, 3, shapes=((500,),))
  _, state = step((a,), state)
  _, before = step((b,), state)
  updates, after = step((c.at[1, 7].set(bad),), before)
  return step, c, before, updates[0], after


@pytest.mark.parametrize('bad', [jnp.nan, *slow(jnp.inf, -jnp.inf)])
def test_skip(bad):
  step, grads, before, updates, after = bad_step('skip', bad)
  assert not np.asarray(updates).any()
  assert int(after.stats.nonfinite) == 1
  residual, old = np.asarray(after.residual[0]), np.asarray(before.residual[0])
  np.testing.assert_array_equal(residual[1], old[1])  # dropped whole
  for w in (0, 2):  # kept whole
    np.testing.assert_array_equal(residual[w], old[w] + np.asarray(grads)[w])
  # The threshold that was due in that step is taken in the next one, of that step's sums; others have theirs.
  updates, state = step((grads,), after)
  sums = residual + np.asarray(grads) * np.float32([[0], [1], [0]])
  want = [select.threshold(x, select.rank(500, 0.9)) for x in sums]
  np.testing.assert_array_equal(np.ravel(state.compressor.tau), want)
  assert (np.ravel(state.compressor.tau) != np.ravel(before.compressor.tau)).all()
  assert np.isfinite(np.asarray(updates[0])).all()
  assert np.asarray(updates[0]).any()
  assert (np.asarray(state.compressor.tau) > 0).all()
  assert int(state.stats.nonfinite) == 1
  dct_jax.raise_if_bad(state)


def test_pass():
  _, _, _, updates, after = bad_step('pass')
  assert np.isnan(np.asarray(updates)).all()
  assert np.isfinite(np.asarray(after.residual[0])).all()
  assert int(after.stats.nonfinite) == 1
  dct_jax.raise_if_bad(after)


def test_raise(native):
  """No program stops: the step is skipped and counted, and whoever looks raises."""
  *_, before, updates, after = bad_step('raise')
  dct_jax.raise_if_bad(before)
  assert not np.asarray(updates).any()
  assert (int(after.stats.nonfinite), int(after.stats.refused)) == (1, 1)
  with pytest.raises(FloatingPointError, match=r'1 workers have a gradient with NaN or infinity'):
    dct_jax.raise_if_bad(after)


def test_masked_out_gradients_count_too():
  tx = dct_jax.dct_dp(0.9, mask=(True, False), dense_below=0)
  state = tx.init((jnp.zeros(50), jnp.zeros(3)))
  updates, state = tx.update((jnp.ones(50), jnp.array([1.0, jnp.nan, 1.0])), state)
  assert not updates[0].any()
  assert not updates[1].any()
  assert int(state.stats.nonfinite) == 1


def test_dense_mean_has_the_same_policy():
  tx = dct_jax.dense_mean('data')
  step, state = laws.vmap_runner(tx, (jnp.zeros(10),), 2)
  updates, state = step((jnp.ones((2, 10)).at[0, 0].set(jnp.nan),), state)
  assert not updates[0].any()
  assert int(state.stats.nonfinite) == 1
