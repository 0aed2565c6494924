"""Parameters with copies in several stages: all get the sum of all gradients, bit for bit the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dct_jax
from dct_jax.runtime.shared import Shared, means_apart
from dct_jax.transport.links import local_links

BOTH, TWO = ('params', 'both'), ('params', 'two')
PATHS = {0: [BOTH], 1: [TWO, BOTH], 3: [BOTH, TWO]}


def make_grads(stage):
  rng = np.random.default_rng(stage)
  draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)
  return {'params': {'own': draw(3), 'both': {'w': draw(5, 2), 'b': draw(2)}, 'two': draw(4) * 1e3}}


def test_copies_get_the_same_sums_and_the_rest_is_left_alone():
  shared, links = Shared(PATHS), local_links(4)
  grads = [make_grads(s) for s in range(4)]
  sent = [shared.tell(s, g, links[s]) for s, g in enumerate(grads)]
  both, two = 4 * 12, 4 * 4
  assert sent == [2 * both, 2 * both + two, 0, 2 * both + two]
  found = [shared.hear(s, g, links[s]) for s, g in enumerate(grads)]
  assert found[2] is grads[2]
  for s in (0, 1, 3):
    np.testing.assert_array_equal(found[s]['params']['own'], grads[s]['params']['own'])
    for name in ('w', 'b'):
      parts = [grads[t]['params']['both'][name] for t in (0, 1, 3)]
      np.testing.assert_array_equal(found[s]['params']['both'][name], (parts[0] + parts[1]) + parts[2])
  np.testing.assert_array_equal(found[0]['params']['two'], grads[0]['params']['two'])  # not one of its copies
  total = grads[1]['params']['two'] + grads[3]['params']['two']
  for s in (1, 3):
    np.testing.assert_array_equal(found[s]['params']['two'], total)
  assert not any(link.waiting(peer) for link in links for peer in range(4))


def test_without_copies_nothing_is_sent():
  (link,) = local_links(1)
  grads = make_grads(0)
  shared = Shared({})
  assert shared.tell(0, grads, link) == 0
  assert jax.tree.all(jax.tree.map(lambda a, b: a is b, shared.hear(0, grads, link), grads))


@pytest.mark.parametrize('make', [
    lambda: dct_jax.compressed_mean(dct_jax.qsgd(bits=4, dense_below=0), axis_name='data'),
    lambda: dct_jax.dct_dp(0.9, 2, 'data', dense_below=0),
    lambda: dct_jax.compressed_mean(
        dct_jax.error_feedback(dct_jax.three_lc(1.5, dense_below=0)), axis_name='data')],
    ids=['qsgd', 'dct', '3lc'])
def test_copies_stay_equal_though_stages_send_other_layers_beside_them(make):
  """Stages with the same layer among others of different size; of four steps, workers' gradients differ."""
  rng = np.random.default_rng(0)
  draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)
  common = [draw(2, 400) for _ in range(4)]
  copies = []
  for size in (50, 3000):
    tx = means_apart(make, [('params', 'both')])
    params = {'params': {'a': jnp.zeros(size), 'both': jnp.zeros(400)}}
    update, state = dct_jax.simulate(tx, params, workers=2)
    total = jax.tree.map(np.zeros_like, params)
    for both in common:
      updates, state = update({'params': {'a': 10 * draw(2, size), 'both': both}}, state, params)
      total = jax.tree.map(np.add, total, updates)
    assert np.any(total['params']['a'])
    copies.append(total['params']['both'])
  assert np.any(copies[0])
  np.testing.assert_array_equal(copies[0], copies[1])
