"""The mathematics of synchronization as a server uses it: oracles, snapshots that are old, what is refused."""

import jax.numpy as jnp
import numpy as np
import pytest
from reference import averaging as oracle

from dct_jax.transforms import averaging

pytestmark = pytest.mark.plain_code

START = np.linspace(-1, 1, 5).astype(np.float32)
METHODS = {
    'easgd': (averaging.elastic(0.2), lambda: oracle.Easgd(START, 0.2)),
    'mean': (averaging.mean(0.7), lambda: oracle.ModelAveraging(START, 0.7)),
    'bmuf': (averaging.block_momentum(0.6, 0.8, 0.9), lambda: oracle.Bmuf(START, 0.6, 0.8, 0.9, False)),
    'nesterov': (averaging.block_momentum(0.6, 0.8, 0.9, True), lambda: oracle.Bmuf(START, 0.6, 0.8, 0.9, True)),
}


def replicas(groups, seed=0):
  return [np.random.default_rng([seed, g]).standard_normal(5).astype(np.float32) for g in range(groups)]


@pytest.mark.parametrize('name', METHODS)
@pytest.mark.parametrize('groups', [1, 3, 5])
def test_a_server_is_the_oracle(name, groups):
  method, make = METHODS[name]
  want, server, now = make(), method.init(START), replicas(groups)
  for step in range(4):
    now = [x + y for x, y in zip(now, replicas(groups, step + 1), strict=True)]
    expected = want.synchronize(now)
    server, corrections = method.exchange(server, now)
    now = [np.asarray(method.apply(x, c)) for x, c in zip(now, corrections, strict=True)]
    np.testing.assert_allclose(now, expected, rtol=1e-5, atol=1e-5)
    if want.center is not None:
      np.testing.assert_allclose(server.center, want.center, rtol=1e-5, atol=1e-5)


def test_groups_may_come_to_an_elastic_center_one_after_the_other():
  """Each sees a center that the one before has moved, and any strength is allowed."""
  method = averaging.elastic(1.0)
  server, moved, now = method.init(jnp.zeros(5)), [], replicas(3)
  for x in now:
    server, (correction,) = method.exchange(server, [x])
    moved.append(method.apply(x, correction))
  np.testing.assert_allclose(moved, [np.zeros(5), *now[:2]], atol=1e-6)
  np.testing.assert_allclose(server.center, now[2], atol=1e-6)
  assert [m.waits for m, _ in METHODS.values()] == [False, True, True, True]


@pytest.mark.parametrize('name', METHODS)
def test_what_was_learned_while_a_correction_was_on_its_way_stays(name):
  """A correction of a snapshot is applied to the replica as it is: elastic ones move it by what they took."""
  method, _ = METHODS[name]
  (snapshot,), learned = replicas(1), np.full(5, 0.5, np.float32)
  _, (correction,) = method.exchange(method.init(START), [snapshot])
  at_once, later = method.apply(snapshot, correction), method.apply(snapshot + learned, correction)
  kept = {'easgd': 1.0, 'mean': 0.3, 'bmuf': 0.1, 'nesterov': 0.1}[name]
  np.testing.assert_allclose(later - at_once, kept * learned, rtol=1e-4, atol=1e-6)


def test_a_narrow_replica_has_a_wide_center():
  method = averaging.elastic(0.5)
  narrow = jnp.array([1.0, 2.0], jnp.bfloat16)
  server, (correction,) = method.exchange(method.init(jnp.zeros(2, jnp.bfloat16)), [narrow])
  assert server.center.dtype == jnp.float32 and method.apply(narrow, correction).dtype == jnp.bfloat16


@pytest.mark.parametrize(('make', 'message'), [
    (lambda: averaging.elastic(0), 'alpha=0'),
    (lambda: averaging.elastic(1.1), 'alpha=1.1'),
    (lambda: averaging.elastic(float('nan')), 'alpha=nan'),
    (lambda: averaging.mean(-0.5), 'alpha=-0.5'),
    (lambda: averaging.block_momentum(0.5, alpha=2), 'alpha=2'),
    (lambda: averaging.block_momentum(1.0), 'momentum=1.0'),
    (lambda: averaging.block_momentum(-0.1), 'momentum=-0.1'),
    (lambda: averaging.block_momentum(0.5, step_size=0), 'step_size=0'),
    (lambda: averaging.block_momentum(0.5, step_size=float('inf')), 'step_size=inf'),
    (lambda: METHODS['easgd'][0].exchange(averaging.Center(START), replicas(6)), r'alpha=0.2 and groups=6')])
def test_bad_input_is_refused(make, message):
  with pytest.raises(ValueError, match=message):
    make()
