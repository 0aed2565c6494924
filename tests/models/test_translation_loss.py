"""Losses of translations, against sums written out."""

import chex
import jax.numpy as jnp
import numpy as np
import pytest

from dct_jax.models import translation_loss

pytestmark = pytest.mark.plain_code


def by_hand(logits, word, smoothing):
  p = np.exp(logits - logits.max())
  p /= p.sum()
  label = np.full(len(p), smoothing / (len(p) - 1))
  label[word] = 1 - smoothing
  return -np.sum(label * np.log(p))


class SmoothedLabels(chex.TestCase):
  @chex.all_variants
  def test_are_those_by_hand(self):
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((3, 4, 7)).astype(np.float32) * 3
    words = rng.integers(0, 7, (3, 4))
    each = lambda s: [[by_hand(logits[i, j], words[i, j], s) for j in range(4)] for i in range(3)]
    for smoothing in (0.0, 0.1, 0.7):
      losses = self.variant(lambda x, y, s=smoothing: translation_loss.word_losses(x, y, s))
      smooth, plain = losses(jnp.asarray(logits), jnp.asarray(words))
      np.testing.assert_allclose(smooth, each(smoothing), rtol=1e-5)
      np.testing.assert_allclose(plain, each(0.0), rtol=1e-5)


def test_words_without_logits_are_refused():
  with pytest.raises(ValueError, match='one word that comes next'):
    translation_loss.word_losses(jnp.zeros((3, 4, 7)), jnp.zeros((3, 1), jnp.int32))


def test_workers_means_are_the_mean_over_all_tokens():
  rng = np.random.default_rng(1)
  logits = jnp.asarray(rng.standard_normal((4, 5, 6)), jnp.float32)
  words = jnp.asarray(rng.integers(0, 6, (4, 5)))
  real = np.arange(5) < np.array([[5], [2], [1], [3]])
  batch = {'target_out': words, 'weight': jnp.asarray(real * np.float32(4 / real.sum()))}
  parts = [{k: v[i:i + 2] for k, v in batch.items()} for i in (0, 2)]
  found = [translation_loss.smoothed_loss(logits[i:i + 2], p, 0.1) for i, p in zip((0, 2), parts, strict=True)]
  smooth, plain = translation_loss.word_losses(logits, words, 0.1)
  assert float(sum(x[0] for x in found) / 2) == pytest.approx(float(smooth[real].mean()), rel=1e-5)
  assert float(sum(x[1]['nll'] for x in found) / 2) == pytest.approx(float(plain[real].mean()), rel=1e-5)
  sums = translation_loss.sentence_losses(logits, batch, 0.1)
  np.testing.assert_allclose(sums.sum(0), [smooth[real].sum(), plain[real].sum()], rtol=1e-5)
