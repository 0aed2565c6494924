"""A layer of LSTM cells against the oracle, forwards and backwards, whole and in pieces."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import lstm as oracle

from dct_jax.models.lstm_layer import LstmLayer

pytestmark = pytest.mark.plain_code

LENGTHS = [6, 4, 1]


def drawn(reverse=False, width=5, inputs=3):
  """A layer, random parameters and random inputs of three sequences."""
  model, rng = LstmLayer(width, reverse), np.random.default_rng(0)
  x = rng.normal(size=(len(LENGTHS), LENGTHS[0], inputs)).astype(np.float32)
  shapes = jax.eval_shape(model.init, jax.random.key(0), x)
  return model, jax.tree.map(lambda a: rng.normal(0, 0.7, a.shape).astype(np.float32), shapes), x


def test_every_step_as_the_oracle_has_it():
  model, variables, x = drawn()
  carry = tuple(np.random.default_rng(1).normal(size=(2, 3, 5)).astype(np.float32))
  ours, (h, c) = jax.jit(model.apply)(variables, x, carry)
  for row in range(3):
    theirs, cells = oracle.layer(variables['params'], list(x[row]), (carry[0][row], carry[1][row]))
    np.testing.assert_allclose(ours[row], theirs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(h[row], theirs[-1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(c[row], cells, rtol=1e-5, atol=1e-6)


def test_backwards_it_begins_with_the_last_word_and_not_with_padding():
  model, variables, x = drawn(reverse=True)
  mask = np.arange(LENGTHS[0]) < np.array(LENGTHS)[:, None]
  ours, _ = jax.jit(model.apply)(variables, x, mask=mask)
  for row, length in enumerate(LENGTHS):
    theirs, _ = oracle.layer(variables['params'], list(x[row, :length][::-1]))
    np.testing.assert_allclose(ours[row, :length], theirs[::-1], rtol=1e-5, atol=1e-6)


def test_gradients_by_differences():
  model, variables, x = drawn()
  loss = jax.jit(lambda variables, x: jnp.sum(jnp.sin(model.apply(variables, x)[0])))
  by_params, by_x = jax.jit(jax.grad(loss, (0, 1)))(variables, x)
  assert all(np.all(np.asarray(g) != 0) for g in jax.tree.leaves((by_params, by_x)))
  rng = np.random.default_rng(2)
  way = jax.tree.map(lambda a: rng.normal(size=a.shape).astype(np.float32), (variables, x))
  moved = lambda size: loss(*jax.tree.map(lambda a, b: a + size * b, (variables, x), way))
  want = (moved(1e-2) - moved(-1e-2)) / 2e-2
  got = sum(jnp.vdot(g, d) for g, d in zip(jax.tree.leaves((by_params, by_x)), jax.tree.leaves(way), strict=True))
  np.testing.assert_allclose(got, want, rtol=2e-2)


def test_cells_remember_at_first():
  variables = jax.jit(LstmLayer(4).init)(jax.random.key(0), jnp.zeros((1, 1, 3)))['params']
  assert variables['input']['bias'].tolist() == [0] * 4 + [1] * 4 + [0] * 8
  for gate in jnp.split(variables['recurrent'], 4, 1):
    np.testing.assert_allclose(gate @ gate.T, np.eye(4), atol=1e-5)
