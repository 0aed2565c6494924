"""Losses of language models, against sums written out."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dct_jax.data import words
from dct_jax.models.language_loss import full_softmax, sampled_softmax

pytestmark = pytest.mark.plain_code
VOCABULARY, WIDTH, NEGATIVES = 11, 4, 8


def example(seed=0):
  rng = np.random.default_rng(seed)
  return {'hidden': rng.standard_normal((2, 3, WIDTH)).astype(np.float32),
          'table': rng.standard_normal((VOCABULARY, WIDTH)).astype(np.float32),
          'targets': np.array([[0, 1, 10], [4, 4, 7]]), 'negatives': np.array([0, 4, 6, 2, 8, 9, 1, 3])}


def by_hand(hidden, table, target, negatives, expected):
  """Of one position: the target against every draw that is not the target."""
  right = np.exp(hidden @ table[target]) / expected[target]
  others = sum(np.exp(hidden @ table[n]) / expected[n] for n in negatives if n != target)
  return -np.log(right / (right + others))


def sampled(hidden, table, targets, negatives):
  expected = jnp.asarray(np.log(words.expected_counts(NEGATIVES, VOCABULARY)), jnp.float32)
  return sampled_softmax(hidden, table[targets], table[negatives], targets, negatives, expected)


class Losses(chex.TestCase):
  @chex.all_variants
  def test_sampled_softmax_is_the_one_by_hand(self):
    e = example()
    expected = words.expected_counts(NEGATIVES, VOCABULARY)
    wanted = [[by_hand(e['hidden'][i, j].astype(float), e['table'].astype(float), e['targets'][i, j], e['negatives'],
                       expected) for j in range(3)] for i in range(2)]
    np.testing.assert_allclose(self.variant(sampled)(**{k: jnp.asarray(v) for k, v in e.items()}), wanted, rtol=1e-5)

  @chex.all_variants
  def test_full_softmax_is_the_one_by_hand(self):
    e = example()
    logits = np.einsum('btw,vw->btv', e['hidden'], e['table']).astype(float)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    wanted = [[-np.log(p[i, j, e['targets'][i, j]]) for j in range(3)] for i in range(2)]
    found = self.variant(full_softmax)(*(jnp.asarray(e[k]) for k in ('hidden', 'table', 'targets')))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_negatives_that_are_all_the_target_leave_nothing_to_tell_apart():
  e = example()
  same = np.full(NEGATIVES, 4)
  found, grads = jax.value_and_grad(lambda h: jnp.sum(sampled(h, e['table'], np.full((2, 3), 4), same)))(e['hidden'])
  assert float(found) == 0 and not np.any(np.isnan(grads))


def test_all_words_as_negatives_are_the_full_softmax():
  e = example()
  every = np.arange(VOCABULARY)
  log_expected = jnp.log(jnp.asarray(words.expected_counts(VOCABULARY, VOCABULARY), jnp.float32))
  found = sampled_softmax(e['hidden'], e['table'][e['targets']], e['table'], e['targets'], every, log_expected)
  np.testing.assert_allclose(found, full_softmax(e['hidden'], e['table'], e['targets']), rtol=1e-5)


def test_the_true_distribution_has_the_least_loss():
  """Over many draws of targets and negatives, the gradient with respect to the logits is zero there."""
  rng, count, times = np.random.default_rng(1), 4, 20_000
  truth = rng.dirichlet(np.ones(VOCABULARY))
  targets = rng.choice(VOCABULARY, times, p=truth)
  negatives = np.array([words.log_uniform(rng, count, VOCABULARY) for _ in range(times)])
  log_expected = jnp.log(jnp.asarray(words.expected_counts(count, VOCABULARY), jnp.float32))

  def loss(logits, target, negatives):  # a hidden state of 1, and rows that are the logits
    rows = logits[:, None]
    return sampled_softmax(jnp.ones(1), rows[target], rows[negatives], target, negatives, log_expected)

  grads = jax.jit(jax.vmap(jax.grad(loss), (None, 0, 0)))(jnp.log(jnp.asarray(truth, jnp.float32)), targets, negatives)
  error = np.std(grads, axis=0) / times**0.5
  assert np.all(np.abs(np.mean(grads, axis=0)) < 5 * error + 0.005)  # expected counts are a little rounded


def test_shapes_that_do_not_fit_are_refused():
  e = example()
  with pytest.raises(ValueError, match='the row of its target'):
    sampled_softmax(e['hidden'], e['table'][:3], e['table'], e['targets'], np.arange(VOCABULARY), jnp.zeros(VOCABULARY))
  with pytest.raises(ValueError, match='every negative has a row'):
    sampled_softmax(e['hidden'], e['hidden'], e['table'], e['targets'], e['negatives'], jnp.zeros(VOCABULARY))
  with pytest.raises(ValueError, match='one target'):
    sampled_softmax(e['hidden'], e['hidden'], e['table'], e['targets'][0], np.arange(VOCABULARY), jnp.zeros(VOCABULARY))
  with pytest.raises(ValueError, match='one word that comes next'):
    full_softmax(e['hidden'], e['table'], e['targets'][:1])
