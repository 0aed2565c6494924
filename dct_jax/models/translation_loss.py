"""Losses of translations: of words, smoothed over the vocabulary, averaged over tokens."""

from __future__ import annotations

from collections.abc import Mapping

import chex
import jax
import jax.numpy as jnp


def word_losses(logits: jax.Array, words: jax.Array, smoothing: float = 0.0) -> tuple[jax.Array, jax.Array]:
  """Cross-entropies of words, with smoothed labels and without, float32[batch, length] each.

  A smoothed label is the word with probability 1 - smoothing, and any other one with an equal share of the
  rest.

  Args:
    logits: float32[batch, length, vocabulary].
    words: int32[batch, length], what comes next.
    smoothing: in [0, 1).

  Examples:
    >>> logits = jnp.log(jnp.array([[[0.5, 0.25, 0.25]]]))
    >>> smooth, plain = word_losses(logits, jnp.array([[0]]), 0.5)
    >>> round(float(plain[0, 0]) / float(jnp.log(2)), 5), round(float(smooth[0, 0]) / float(jnp.log(2)), 5)
    (1.0, 1.5)

  References:
    Szegedy et al., Rethinking the Inception Architecture for Computer Vision, 2016: section 7.
  """
  chex.assert_shape(words, logits.shape[:-1], exception_type=ValueError,
                    custom_message='every position has logits of all words, and one word that comes next')
  norm = jax.nn.logsumexp(logits, axis=-1)
  # Not one_hot: a table of the size of the logits would be written and read once more.
  plain = norm - jnp.take_along_axis(logits, words[..., None], axis=-1)[..., 0]
  if not smoothing:
    return plain, plain
  others = logits.shape[-1] - 1
  every = (others + 1) * norm - jnp.sum(logits, axis=-1)
  return (1 - smoothing) * plain + smoothing / others * (every - plain), plain


def smoothed_loss(logits: jax.Array, batch: Mapping[str, jax.Array],
                  smoothing: float) -> tuple[jax.Array, dict[str, jax.Array]]:
  """The mean over examples of what their tokens weigh, and the plain cross-entropy beside it.

  With the weights of `data.translation_batches` these are means over the tokens of all workers together,
  however many of them a worker has.

  Args:
    logits: float32[batch, length, vocabulary].
    batch: with `target_out` and `weight`.
    smoothing: of the labels.
  """
  smooth, plain = word_losses(logits, batch['target_out'], smoothing)
  mean = lambda x: jnp.mean(jnp.sum(batch['weight'] * x, axis=-1))
  return mean(smooth), {'nll': mean(plain)}


def sentence_losses(logits: jax.Array, batch: Mapping[str, jax.Array], smoothing: float) -> jax.Array:
  """Of each sentence, float32[batch, 2]: sums over its tokens of the smoothed and the plain cross-entropy."""
  both = jnp.stack(word_losses(logits, batch['target_out'], smoothing), axis=-1)
  return jnp.sum(jnp.where(batch['weight'][..., None] > 0, both, 0), axis=1)
