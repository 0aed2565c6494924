"""Losses of language models: sampled softmax for training, the softmax over all words to judge."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from dct_jax.models.translation_loss import word_losses


def sampled_softmax(hidden: jax.Array, target_rows: jax.Array, negative_rows: jax.Array, targets: jax.Array,
                    negatives: jax.Array, log_expected: jax.Array) -> jax.Array:
  """Cross-entropies of words against a few others, `float32[*batch]`.

  The target competes with the negatives alone. A logit is the product of the hidden state and a word's row, minus the
  logarithm of how often the sampler draws that word, of the target as of the others. A negative that is the target
  itself does not count. If every word is drawn with its own probability, whatever the others are, then the model of
  least loss is that of the softmax over all words; with all words as negatives it is that softmax.

  Args:
    hidden: `float32[*batch, width]`.
    target_rows: `float32[*batch, width]`, rows of the targets.
    negative_rows: float32[n, width], rows of the negatives, which all positions share.
    targets: `int[*batch]`.
    negatives: int[n], all different.
    log_expected: float32[vocabulary], logarithm of how often a word is among the negatives on average.

  References:
    Jean et al., On Using Very Large Target Vocabulary for Neural Machine Translation, 2015.
  """
  chex.assert_equal_shape([hidden, target_rows], exception_type=ValueError,
                          custom_message='every hidden state has the row of its target')
  chex.assert_shape(targets, hidden.shape[:-1], exception_type=ValueError,
                    custom_message='every hidden state has one target')
  chex.assert_shape(negative_rows, (*negatives.shape, hidden.shape[-1]), exception_type=ValueError,
                    custom_message='every negative has a row of the width of the hidden states')
  right = jnp.sum(hidden * target_rows, axis=-1) - log_expected[targets]
  others = hidden @ negative_rows.T - log_expected[negatives]
  others = jnp.where(targets[..., None] == negatives, -jnp.inf, others)
  return jnp.logaddexp(right, jax.nn.logsumexp(others, axis=-1)) - right


def full_softmax(hidden: jax.Array, table: jax.Array, targets: jax.Array) -> jax.Array:
  """Cross-entropies of words against all others, `float32[*batch]`.

  Args:
    hidden: `float32[*batch, width]`.
    table: float32[vocabulary, width], rows of all words: a table of its own, or the one that inputs are rows of.
    targets: `int[*batch]`.
  """
  return word_losses(hidden @ table.T, targets)[0]
