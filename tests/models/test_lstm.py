"""The LSTM against one that is written out word by word, and its gradients against differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dct_jax.models.lstm import Lstm
from dct_jax.models.lstm_layer import recurrence

pytestmark = pytest.mark.plain_code


def by_hand(params, x):
  """States of the last layer, float64[batch, time, width]: gates i, f, g, o one after the other."""
  sigmoid = lambda z: 1 / (1 + np.exp(-z))
  for name in sorted(params):
    w, u, b = (np.asarray(params[name][k], np.float64) for k in ('inputs', 'recurrent', 'bias'))
    width = len(u)
    out = np.zeros((*x.shape[:2], width))
    for row in range(x.shape[0]):
      hidden, cell = np.zeros(width), np.zeros(width)
      for t in range(x.shape[1]):
        z = x[row, t] @ w + hidden @ u + b
        i, f, g, o = (z[k * width:(k + 1) * width] for k in range(4))
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
        hidden = sigmoid(o) * np.tanh(cell)
        out[row, t] = hidden
    x = out
  return x


@pytest.mark.parametrize('layers', [1, 2])
def test_states_are_those_by_hand(layers):
  model = Lstm(width=6, layers=layers)
  x = np.random.default_rng(0).standard_normal((3, 5, 6)).astype(np.float32)
  params = model.init(jax.random.key(1), x)
  assert sorted(params['params']) == [f'layer{i + 1}' for i in range(layers)]
  np.testing.assert_allclose(jax.jit(model.apply)(params, x), by_hand(params['params'], x), atol=1e-6)
  np.testing.assert_array_equal(params['params']['layer1']['bias'].reshape(4, 6)[:, 0], [0, 1, 0, 0])


def test_gradients_are_those_of_differences():
  rng = np.random.default_rng(2)
  arrays = {'inputs': rng.standard_normal((4, 2, 12)), 'kernel': rng.standard_normal((3, 12))}
  weights = rng.standard_normal((4, 2, 3))

  def loss(at):
    """By hand, in float64: the recurrence is the layer whose inputs are multiplied with 1."""
    layer = {'inputs': np.eye(12), 'recurrent': at['kernel'], 'bias': np.zeros(12)}
    return np.sum(weights * by_hand({'layer1': layer}, at['inputs'].swapaxes(0, 1)).swapaxes(0, 1))

  found = jax.jit(jax.grad(lambda at: jnp.sum(weights.astype(np.float32) * recurrence(at['inputs'], at['kernel']))))(
      {k: jnp.asarray(v, jnp.float32) for k, v in arrays.items()})
  for name, x in arrays.items():
    expected = np.zeros_like(x)
    for place in np.ndindex(*x.shape):
      moved = [{k: v.copy() for k, v in arrays.items()} for _ in range(2)]
      moved[0][name][place] += 1e-5
      moved[1][name][place] -= 1e-5
      expected[place] = (loss(moved[0]) - loss(moved[1])) / 2e-5
    np.testing.assert_allclose(found[name], expected, atol=1e-5)


def test_dropout_is_for_training_and_depends_on_its_key():
  model = Lstm(width=8, layers=2, dropout=0.5)
  x = jnp.ones((2, 4, 8))
  params = model.init(jax.random.key(0), x)
  run = lambda key: model.apply(params, x, train=True, rngs={'dropout': jax.random.key(key)})
  np.testing.assert_array_equal(model.apply(params, x), Lstm(width=8, layers=2).apply(params, x))
  np.testing.assert_array_equal(run(1), run(1))
  assert (run(1) != run(2)).any() and 0.3 < np.mean(run(1) == 0) < 0.7

  one = Lstm(width=8, layers=1, dropout=0.5)  # what enters is dropped, too: no two kept states are alike
  states = np.asarray(one.apply(params, x[:, :1], train=True, rngs={'dropout': jax.random.key(1)}))[:, 0]
  whole = np.asarray(one.apply(params, x[:, :1]))[:, 0]
  assert not np.isclose(states[states != 0], 2 * whole[states != 0]).any()


def test_a_state_does_not_see_what_comes_later():
  model = Lstm(width=4)
  x = np.random.default_rng(3).standard_normal((1, 6, 4)).astype(np.float32)
  params = model.init(jax.random.key(0), x)
  changed = x.copy()
  changed[:, 3:] = 9
  a, b = (model.apply(params, each) for each in (x, changed))
  np.testing.assert_array_equal(a[:, :3], b[:, :3])
  assert (a[:, 3:] != b[:, 3:]).all()


def test_bad_models_are_refused():
  with pytest.raises(ValueError, match='there must be layers'):
    Lstm(width=4, layers=0).init(jax.random.key(0), jnp.zeros((1, 2, 4)))
  with pytest.raises(ValueError, match='dropout is a share below 1'):
    Lstm(width=4, dropout=1.0).init(jax.random.key(0), jnp.zeros((1, 2, 4)))
  with pytest.raises(ValueError, match=r'rows of words are float\[batch, time, width\]'):
    Lstm(width=4).init(jax.random.key(0), jnp.zeros((2, 5)))
