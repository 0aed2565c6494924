"""Translations word by word: the most likely word each time, or a beam of hypotheses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from dct_jax.models.transformer import BOS, EOS, PAD, Cache

MaxLen = int | Callable  # a number, or source length -> number, for an int as for an array
NEVER = -jnp.inf


class Hypotheses(NamedTuple):
  """Translations, the best first where there are several of a sentence."""

  ids: jax.Array  # int32[batch, (beam,) room]: words, `EOS`, then `PAD`
  scores: jax.Array  # float32[batch, (beam)]: log probability / length ** penalty; -inf where there is none


class Live(NamedTuple):
  """Hypotheses that are not finished."""

  ids: jax.Array  # int32[batch, beam, room]
  sums: jax.Array  # float32[batch, beam], of log probabilities
  cache: Any  # of batch * beam rows


def greedy(model: nn.Module, max_len: MaxLen, length_penalty: float = 1.0) -> Callable:
  """Takes the most likely word each time: a beam of one.

  Args:
    model: as of `beam_search`.
    max_len: as of `beam_search`.
    length_penalty: likewise; it changes scores alone.

  Returns:
    (variables, source) -> `Hypotheses` without the dimension of a beam.

  Examples:
    >>> import jax, jax.numpy as jnp
    >>> from dct_jax.models.transformer import EOS, Transformer
    >>> model = Transformer(9, 9, width=8, hidden=8, heads=2, layers=1)
    >>> source = jnp.array([[5, 6, EOS]])
    >>> variables = jax.jit(model.init)(jax.random.key(0), source, source)
    >>> greedy(model, max_len=4)(variables, source).ids.shape                # 4 words and EOS
    (1, 5)
  """
  search = beam_search(model, max_len, beam=1, length_penalty=length_penalty)
  return jax.jit(lambda variables, source: jax.tree.map(lambda x: x[:, 0], search(variables, source)))


def beam_search(model: nn.Module, max_len: MaxLen, beam: int = 5, length_penalty: float = 1.0) -> Callable:
  """Follows the hypotheses of the highest probability so far.

  In each step the 2 `beam` best continuations of all hypotheses are taken. Those with `EOS` among the first
  `beam` are finished; the best others live on. A sentence is done when `beam` hypotheses have finished, or when
  none that lives can become better than the best that has, were all its further words of probability 1
  up to the largest length: fewer than `beam` may come back then. `PAD` and `BOS` are never written.

  fairseq's search is the same, up to three things: it does not look at what can still become better, of more
  than `beam` finished hypotheses it keeps the first ones where this keeps the best, and it never begins with
  `EOS` where this may find that the best translation is none.

  Args:
    model: whose parameters are to be used: one with `start` and `advance`, as `Transformer` and `Gnmt` have them.
    max_len: of a translation without its `EOS`: a number, or a function of the length of the source (with its
      `EOS`, without padding) that never falls, as lambda n: 2 * n + 10. There `EOS` has to follow.
    beam: hypotheses.
    length_penalty: a finished hypothesis scores log probability / length ** penalty; its `EOS` counts. 0
      prefers short translations, more than 1 long ones.

  Returns:
    (variables, source) -> `Hypotheses`, compiled for each shape of `source`, int32[batch, length].

  Raises:
    ValueError: if `beam` or a number `max_len` is less than 1, or the penalty is negative.

  References:
    Ott et al., fairseq: A Fast, Extensible Toolkit for Sequence Modeling, 2019.
  """
  if beam < 1:
    raise ValueError(f'a beam has at least one hypothesis, got {beam=}')
  if length_penalty < 0:
    raise ValueError(f'length_penalty must not be negative, got {length_penalty=}')
  if not callable(max_len) and max_len < 1:
    raise ValueError(f'max_len must be at least 1, got {max_len=}')
  limit = max_len if callable(max_len) else lambda length: 0 * length + max_len

  @jax.jit
  def search(variables, source):
    room = int(limit(source.shape[1])) + 1
    limits = jnp.minimum(jnp.asarray(limit(jnp.sum(source != PAD, 1)), jnp.int32), room - 1)
    attainable = lambda live: live.sums[:, 0] / (limits + 1.0) ** length_penalty
    done = lambda live, best: jnp.isfinite(best.scores[:, -1]) | (best.scores[:, 0] >= attainable(live))

    def goes_on(state):
      step, live, best = state
      return (step < room) & ~jnp.all(done(live, best))

    def advance(state):
      step, live, best = state
      last = jnp.where(step > 0, live.ids[:, :, step - 1], BOS)
      logits, cache = model.apply(variables, live.cache, last.reshape(-1), method='advance')
      sums, parents, words = candidates(logits, live.sums, step >= limits, beam)
      ids = jnp.take_along_axis(live.ids, parents[..., None], 1).at[:, :, step].set(words)
      finishing = (words == EOS) & (jnp.arange(2 * beam) < beam) & ~done(live, best)[:, None]
      scores = jnp.where(finishing, sums / (step + 1.0) ** length_penalty, NEVER)
      best = _better(best, Hypotheses(ids, scores))
      sums, chosen = lax.top_k(jnp.where(words == EOS, NEVER, sums), beam)
      parents = jnp.take_along_axis(parents, chosen, 1)
      ids = jnp.take_along_axis(ids, chosen[..., None], 1)
      return step + 1, Live(ids, sums, reorder(cast(Cache, cache), parents)), best

    ids = jnp.full((source.shape[0], beam, room), PAD, jnp.int32)
    nothing = jnp.full(ids.shape[:2], NEVER)
    cache = model.apply(variables, source, room, beam, method='start')
    live = Live(ids, nothing.at[:, 0].set(0), cache)  # all would be equal: one begins
    return lax.while_loop(goes_on, advance, (jnp.int32(0), live, Hypotheses(ids, nothing)))[2]

  return search


def candidates(logits: jax.Array, sums: jax.Array, ends: jax.Array,
               beam: int) -> tuple[jax.Array, jax.Array, jax.Array]:
  """The 2 `beam` best continuations of each sentence: sums of log probabilities, parents and words.

  Args:
    logits: float32[batch * beam, vocabulary].
    sums: float32[batch, beam], of log probabilities so far.
    ends: bool[batch], whether only `EOS` may follow.
    beam: hypotheses.
  """
  word = jnp.arange(logits.shape[-1])
  total = jax.nn.logsumexp(logits, -1)
  allowed = (word != PAD) & (word != BOS) & ((word == EOS) | ~jnp.repeat(ends, beam)[:, None])
  # First among the words of each hypothesis: there the order is that of logits, and the sum is needed for few.
  best, words = lax.top_k(jnp.where(allowed, logits, NEVER), min(2 * beam, logits.shape[-1]))
  all_sums = (best - total[:, None]).reshape(*sums.shape, -1) + sums[..., None]
  sums, at = lax.top_k(all_sums.reshape(len(sums), -1), 2 * beam)
  words = jnp.take_along_axis(words.reshape(len(sums), -1), at, 1)
  return sums, at // best.shape[-1], words


def reorder(cache: Cache, parents: jax.Array) -> Cache:
  """The cache of hypotheses that continue others: `parents` of their sentence's, int32[batch, beam]."""
  rows = (jnp.arange(len(parents))[:, None] * parents.shape[1] + parents).reshape(-1)
  return cache._replace(past=jax.tree.map(lambda x: x[rows], cache.past))


def _better(old, new):
  """The best finished hypotheses of both; of equals, the older."""
  number = old.scores.shape[1]
  scores, at = lax.top_k(jnp.concatenate([old.scores, new.scores], 1), number)
  ids = jnp.concatenate([old.ids, new.ids], 1)
  return Hypotheses(jnp.take_along_axis(ids, at[..., None], 1), scores)
