"""Any placement of any program gives what the program gives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dct_jax.partition import graph, on, programs, simulate
from dct_jax.partition.placement import Placement

pytestmark = pytest.mark.plain_code
N = 3
NODES = ('trainer', 'group0', 'group1')
TABLE = np.linspace(-1, 1, N * N, dtype=np.float32).reshape(N, N)


@jax.custom_vjp
def twisted(x, y):
  return jnp.sin(x) * y


twisted.defvjp(lambda x, y: (twisted(x, y), (x, y)), lambda kept, ct: (ct * jnp.cos(kept[0]) * kept[1], ct * 0.5))


def loop(x, y):
  return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.tanh(c[1] + jax.lax.stop_gradient(y))),
                            (0, jax.lax.stop_gradient(x)))[1]


# Each takes two matrices, integers and a key, and gives a matrix.
STEPS = [
    lambda x, y, ids, key: x + y,
    lambda x, y, ids, key: jnp.tanh(x) * y,
    lambda x, y, ids, key: x @ y / N,
    lambda x, y, ids, key: x - jnp.sum(y, 0, keepdims=True) / N,
    lambda x, y, ids, key: jnp.concatenate([x[1:], y[:1]]),
    lambda x, y, ids, key: jnp.where(x > y, x, 0.5 * y.T),
    lambda x, y, ids, key: x[ids % N] + y,
    lambda x, y, ids, key: x + jnp.argsort(y, axis=1)[:, ::-1].astype(jnp.float32),
    lambda x, y, ids, key: x * jax.random.bernoulli(jax.random.fold_in(key, ids[0]), 0.5, x.shape) + y,
    lambda x, y, ids, key: jax.jit(lambda a, b: (a, jax.nn.silu(a) + TABLE * b))(x, y)[1],
    lambda x, y, ids, key: jax.nn.relu(x) + jax.nn.logsumexp(y, 1, keepdims=True),
    lambda x, y, ids, key: twisted(x, y),
    lambda x, y, ids, key: jax.checkpoint(lambda a, b: jnp.sin(jnp.sin(a)) * b)(x, y),
    lambda x, y, ids, key: jax.lax.scan(lambda c, r: (jnp.tanh(c + r), c * r), x[0], y)[1],
    lambda x, y, ids, key: jax.lax.cond(ids[0] > 1, lambda a, b: jax.jit(lambda c: c * TABLE)(a) + b,
                                        lambda a, b: jnp.sin(a) - b, x, y),
    lambda x, y, ids, key: loop(x, y) + x,
    lambda x, y, ids, key: on(x * y, 'group0'),
    lambda x, y, ids, key: jax.vmap(lambda r: r - jnp.max(r))(x) + y,
]


def loss_of(steps):
  """A loss of some steps, each of which reads what parameters, the batch and steps before it have."""
  def loss(params, x, ids, key):
    made = [params['a'], params['b']['w'], params['a'], x]
    for number, first, second in steps:
      made.append(STEPS[number](made[first % len(made)], made[second % len(made)], ids, key))
    told = {'input': x, 'twice': (made[-1], made[-1]), 'one': 1.0, 'ids': (ids, ids + 1), 'key': key}
    return jnp.mean(made[-1] ** 2) + 0.1 * jnp.mean(made[len(made) // 2]), told

  return loss


@functools.cache
def arguments(optimizer):
  draw = np.random.default_rng(0).normal(size=(4, N, N)).astype(np.float32)
  params = {'a': jnp.asarray(draw[0]), 'b': {'w': jnp.asarray(draw[1]), 'unused': jnp.asarray(draw[2])}}
  return params, optimizer.init(params), jnp.asarray(draw[3]), jnp.array([2, 0, 1]), jax.random.key(5)


def placed(flat, choose):
  """Every operator and slot on any node, or wherever it is read; a batch may be anywhere as well."""
  where = [*NODES, None]
  return Placement(NODES, tuple(where[choose(4)] for _ in flat.operators), tuple(where[choose(4)] for _ in flat.slots))


def as_numbers(x):
  return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


OPTIMIZERS = [optax.sgd(0.1), optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(optax.linear_schedule(0.1, 0, 9),
                                                                                    momentum=0.9))]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(steps=st.lists(st.tuples(st.integers(0, len(STEPS) - 1), st.integers(0, 20), st.integers(0, 20)), min_size=1,
                      max_size=6), seed=st.integers(0, 2**32 - 1), second=st.booleans(), apart=st.booleans())
def test_any_placement_of_any_program(steps, seed, second, apart):
  loss, optimizer = loss_of(steps), OPTIMIZERS[second]
  given_ = arguments(optimizer)

  def step(params, state, *batch):
    (value, told), grads = jax.value_and_grad(loss, has_aux=True)(params, *batch)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value, told

  flat = graph.train_net(loss, optimizer, given_[0], *given_[2:], has_aux=True)
  draw = np.random.default_rng(seed)
  made = programs.transform(flat, placed(flat, draw.integers), apart=apart)
  want = jax.jit(step)(*given_)
  first, again = (simulate.simulate(flat, made, *given_) for _ in range(2))
  assert jax.tree.structure(want) == jax.tree.structure(first)
  for a, b, c in zip(*map(jax.tree.leaves, (want, first, again)), strict=True):
    assert a.dtype == b.dtype and a.shape == b.shape
    np.testing.assert_allclose(as_numbers(a), as_numbers(b), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(as_numbers(b), as_numbers(c))
