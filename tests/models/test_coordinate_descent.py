"""Coordinate descent against NumPy, step by step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import linear as reference

from dct_jax.arrays import Stream
from dct_jax.data.linear import columns
from dct_jax.data.linear.synthetic import SyntheticLinear, generate
from dct_jax.models import coordinate_descent, penalty

pytestmark = pytest.mark.plain_code

SIZE, ROWS, PICKS = 61, 40, 7
DATA = generate(SyntheticLinear(num_features=SIZE, teacher_features=20, row_entries=6), ROWS)
DENSE = reference.dense_rows(*DATA[:3], SIZE)


def gather(streams, dense):
  """What the exchange does: disjoint streams as one, or as a dense array."""
  live = lambda name: np.concatenate([np.asarray(getattr(s, name))[:int(s.count)] for s in streams])
  indices, values = live('indices'), live('values')
  if dense:
    return jnp.zeros(SIZE).at[indices].set(values)
  rest = PICKS * len(streams) - len(indices)  # what is behind the last entry means nothing
  return Stream(jnp.asarray(np.append(indices, np.zeros(rest, np.uint32))),
                jnp.asarray(np.append(values, np.full(rest, 9, np.float32))), jnp.uint32(len(indices)))


@pytest.mark.parametrize(('loss', 'kind', 'strength', 'workers', 'dense'), [
    ('logistic', 'none', 0.0, 3, False), ('logistic', 'l2', 0.02, 1, False), ('logistic', 'l2', 0.02, 3, True),
    ('squared', 'l1', 0.01, 3, False), ('squared', 'none', 0.0, 1, True)])
def test_steps(loss, kind, strength, workers, dense):
  table = columns.cut(DATA, workers, PICKS, seed=0, passes=4)
  rule = penalty.make_penalty(kind, strength)
  factor = coordinate_descent.damping(PICKS * workers, table.features, table.row_entries)
  weights, wanted = jnp.zeros(SIZE), np.zeros(SIZE)
  state = coordinate_descent.ScdState(jnp.zeros(ROWS), jnp.asarray(DATA.labels))
  local = jax.jit(coordinate_descent.coordinate_steps, static_argnums=(0, 1))
  apply = jax.jit(coordinate_descent.apply_steps)
  objectives = [reference.objective(loss, wanted, DENSE, DATA.labels, kind, strength)]
  for step in range(4 * table.steps):
    picks = coordinate_descent.Picks(**columns.batch(table, step))
    mine = [coordinate_descent.Picks(*(x[w] for x in picks)) for w in range(workers)]
    streams = [local(loss, rule, weights, state, p, factor) for p in mine]
    weights, state = apply(weights, state, picks, gather(streams, dense))
    chosen = np.concatenate(columns.pick(table, step))
    wanted = reference.scd_step(loss, wanted, DENSE, DATA.labels, chosen, factor, kind, strength)
    np.testing.assert_allclose(weights, wanted, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(state.margins, DENSE @ wanted, rtol=1e-3, atol=1e-4)
    objectives.append(reference.objective(loss, wanted, DENSE, DATA.labels, kind, strength))
  assert np.all(np.diff(objectives) < 1e-6)  # the damping is safe here, though it promises a mean only
  assert objectives[-1] < 0.8 * objectives[0]


@pytest.mark.parametrize(('loss', 'kind', 'strength'), [('squared', 'l1', 0.02), ('logistic', 'l2', 0.02)])
def test_finds_what_sklearn_finds(loss, kind, strength):
  models = pytest.importorskip('sklearn.linear_model')
  if loss == 'squared':
    oracle = models.Lasso(alpha=strength, fit_intercept=False, tol=1e-8)
  else:
    oracle = models.LogisticRegression(C=1 / (strength * ROWS), fit_intercept=False, tol=1e-8)
  wanted = oracle.fit(DENSE, DATA.labels).coef_.reshape(-1)
  table = columns.cut(DATA, 1, 3, seed=0, passes=80)
  factor = coordinate_descent.damping(3, table.features, table.row_entries)
  state = coordinate_descent.ScdState(jnp.zeros(ROWS), jnp.asarray(DATA.labels))

  @jax.jit
  def step(weights, state, picks):
    mine = jax.tree.map(lambda x: x[0], picks)
    rule = penalty.Penalty(kind, strength)
    found = coordinate_descent.coordinate_steps(loss, rule, weights, state, mine, factor)
    return coordinate_descent.apply_steps(weights, state, picks, found)

  weights = jnp.zeros(SIZE)
  for s in range(80 * table.steps):
    weights, state = step(weights, state, coordinate_descent.Picks(**columns.batch(table, s)))
  np.testing.assert_allclose(weights, wanted, atol=2e-3)
  if kind == 'l1':
    assert 0 < np.count_nonzero(weights) < table.features / 2
    # Margins add up in float32: one weight that is nearly at its threshold may be a small number instead of zero.
    apart = (np.asarray(weights) != 0) != (wanted != 0)
    assert apart.sum() <= 1 and np.abs(np.asarray(weights))[apart].sum() < 1e-3


def test_damping():
  assert coordinate_descent.damping(1, 100, 50) == 1
  assert coordinate_descent.damping(100, 100, 50) == 1 / 50  # all at once: rows share 50 of them
  assert coordinate_descent.damping(800, 10**6, 100) > 0.9
  assert coordinate_descent.damping(100, 1, 1) == 1


def test_hinge_is_refused():
  empty = coordinate_descent.Picks(*(jnp.zeros(1, t) for t in (jnp.uint32, jnp.int32, jnp.int32, jnp.float32)))
  state = coordinate_descent.ScdState(jnp.zeros(2), jnp.ones(2))
  with pytest.raises(ValueError, match='smooth'):
    coordinate_descent.coordinate_steps('hinge', penalty.Penalty(), jnp.zeros(3), state, empty)
