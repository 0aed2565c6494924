"""What a layer of LSTM cells can do that a language model does not ask for: go backwards, and one step further."""

import jax
import numpy as np
import pytest
from reference import lstm as oracle

from dct_jax.models.lstm_layer import LstmLayer

pytestmark = pytest.mark.plain_code

LENGTHS = [6, 4, 1]


def drawn(reverse=False, width=5, inputs=3):
  """A layer, random parameters and random inputs of three sequences."""
  model, rng = LstmLayer(width, reverse), np.random.default_rng(0)
  x = rng.normal(size=(LENGTHS[0], len(LENGTHS), inputs)).astype(np.float32)
  shapes = jax.eval_shape(model.init, jax.random.key(0), x)
  return model, jax.tree.map(lambda a: rng.normal(0, 0.7, a.shape).astype(np.float32), shapes), x


def test_one_step_further():
  model, variables, x = drawn()
  carry = tuple(np.random.default_rng(1).normal(size=(2, 3, 5)).astype(np.float32))
  ours = jax.jit(lambda *args: model.apply(*args, method='advance'))(variables, x[0], carry)
  for row in range(3):
    theirs = oracle.step(variables['params'], x[0, row], carry[0][row], carry[1][row])
    for a, b in zip(ours, theirs, strict=True):
      np.testing.assert_allclose(a[row], b, rtol=1e-5, atol=1e-6)


def test_backwards_it_begins_with_the_last_word_and_not_with_padding():
  model, variables, x = drawn(reverse=True)
  mask = np.arange(LENGTHS[0])[:, None] < np.array(LENGTHS)
  run = lambda variables, x: model.apply(variables, x, mask)
  ours = jax.jit(run)(variables, x)
  for row, length in enumerate(LENGTHS):
    theirs = oracle.layer(variables['params'], list(x[:length, row][::-1]))
    np.testing.assert_allclose(ours[:length, row], theirs[::-1], rtol=1e-5, atol=1e-6)
  assert not np.any(ours[~mask])
  by_x = jax.jit(jax.grad(lambda x: run(variables, x).sum()))(x)
  np.testing.assert_array_equal(np.any(by_x != 0, -1), mask)  # finite and nothing for padding
