"""FCs whose products are of whole numbers on the way forward."""

import functools

import jax
import jax.numpy as jnp
import nets
import numpy as np
import optax
import pytest
from reference import edges

from dct_jax import partition
from dct_jax.partition import Nodes, files, precision

SGD = optax.sgd(0.1)
DENSE = (((1,), (0,)), ((), ()))


def draw(seed, *shape):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_products_are_what_the_oracle_says():
  x, w = draw(0, 5, 12), draw(1, 12, 3)
  x[2], w[:, 1] = 0, 0
  got = precision.product(x, w, DENSE)
  np.testing.assert_allclose(got, edges.int8_product(x, w), rtol=1e-6)
  assert 0 < np.abs(got - x @ w).max() < 0.1
  turned = precision.product(w, x, (((0,), (1,)), ((), ())))  # (w^T x^T)
  np.testing.assert_allclose(turned, got.T, rtol=1e-6)
  many = jax.vmap(lambda x: precision.product(x, w, DENSE))(np.stack([x, 2 * x]))
  np.testing.assert_allclose(many, np.stack([got, 2 * got]), rtol=1e-6)
  deep = precision.product(x.reshape(5, 1, 12), w, (((2,), (0,)), ((), ())))
  np.testing.assert_allclose(deep[:, 0], got, rtol=1e-6)


def test_gradients_are_those_of_floats():
  x, w, g = draw(0, 5, 12), draw(1, 12, 3), draw(2, 5, 3)
  _, back = jax.vjp(functools.partial(precision.product, numbers=DENSE), x, w)
  np.testing.assert_allclose(back(g)[0], g @ w.T, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(back(g)[1], x.T @ g, rtol=1e-5, atol=1e-6)


def test_what_is_not_finite_stays_so():
  x = draw(0, 3, 4)
  x[1, 2] = np.nan
  assert np.isnan(precision.product(x, draw(1, 4, 2), DENSE)[1]).all()


def tower(params, x, matmul):
  for name in ('a', 'b'):
    x = jax.nn.relu(matmul(x, params[name]['w']) + params[name]['b'])
  return jnp.sum(x @ x.T)  # not a layer


def test_all_layers_are_rewritten_and_nothing_else():
  params = {name: {'w': jnp.asarray(draw(i, 6, 6)), 'b': jnp.asarray(draw(i + 9, 6))} for i, name in enumerate('ab')}
  x = jnp.asarray(draw(7, 4, 6))
  loss = lambda params, x: tower(params, x, jnp.matmul)
  by_hand = lambda params, x: tower(params, x, lambda x, w: precision.product(x, w, DENSE))
  got, want = (jax.jit(jax.value_and_grad(f))(params, x) for f in (partition.fcs_in(loss, 'int8'), by_hand))
  jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), got, want)
  assert abs(got[0] - loss(params, x)) > 1e-3
  assert partition.fcs_in(loss, 'float32') is loss


@pytest.mark.parametrize('splits', [None, {'Dense_0': ('both', 2)}])
def test_a_plan_has_int8_layers(splits, tmp_path):
  """Split layers, too: parts have scales of their own."""
  net = nets.mlp(1, 10)
  make = functools.partial(partition.plan, net.loss, SGD, net.params, *net.batch(0), nodes=Nodes(group=2),
                           splits=splits)
  exact, plan = make(), make(fc='int8')
  params = plan.split(net.params)
  new, _, loss = plan.simulate(params, SGD.init(params), *net.batch(0))
  there, _, value = exact.simulate(params, SGD.init(params), *net.batch(0))
  assert loss != value and float(loss) == pytest.approx(float(value), rel=0.05)
  jax.tree.map(functools.partial(np.testing.assert_allclose, atol=0.02), new, there)
  whole = [op for op in plan.graph.operators if op.kind == 'int8_product']
  assert len(whole) == (2 if splits is None else 4) and {op.phase for op in whole} == {'forward'}
  assert {op.name for op in whole} == {op.name for op in exact.graph.operators
                                       if op.kind == 'dot_general' and op.phase == 'forward'}
  assert [plan.estimate.machine.seconds(plan.graph, op) for op in whole] == [
      exact.estimate.machine.seconds(exact.graph, op) for op in exact.graph.operators
      if op.kind == 'dot_general' and op.phase == 'forward']
  assert len(plan.blocks.blocks) == len(exact.blocks.blocks) and plan.load.traffic == exact.load.traffic
  files.save(plan, tmp_path / 'plan.json')
  again = files.restore(tmp_path / 'plan.json', net.loss, SGD, net.params, *net.batch(0))
  assert again.at == plan.at and again.fc == 'int8' and again.graph.fingerprint == plan.graph.fingerprint
  with pytest.raises(ValueError, match='another program'):  # the file knows in which numbers layers multiply
    files.load(tmp_path / 'plan.json', exact.graph)


def test_other_numbers_are_refused():
  with pytest.raises(ValueError, match="FCs compute forward in one of .*, got fc='int4'"):
    partition.fcs_in(lambda p: p, 'int4')
