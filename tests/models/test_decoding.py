"""Decoding with a cache against the model without one; searches against an oracle that knows no arrays."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import slow
from reference import beam as oracle

from dct_jax.boundaries.sparse import SparseBoundary
from dct_jax.models.decoding import beam_search, greedy
from dct_jax.models.transformer import BOS, EOS, PAD, Transformer

pytestmark = pytest.mark.plain_code

SOURCE = jnp.array([[7, 8, 9, 4, EOS], [5, 6, EOS, PAD, PAD], [4, EOS, PAD, PAD, PAD]])
WORDS = [3, 4, 5, 6]
LONGEST = 8
BOUNDARIES = {'enc1': SparseBoundary(0.8), 'dec1': SparseBoundary(0.9), 'dec2': SparseBoundary(0.7, 'int8')}


def tiny(seed=0, spread=0.6, **changes):
  """A model with random parameters that ends sentences now and then."""
  model = Transformer(10, 3 + len(WORDS), **{'width': 8, 'hidden': 20, 'heads': 2, 'layers': 2} | changes)
  shapes = jax.eval_shape(model.init, jax.random.key(0), SOURCE, SOURCE)['params']
  rng = np.random.default_rng(seed)
  draw = lambda x: jnp.asarray(rng.normal(0, spread, x.shape), jnp.float32)
  return model, {'params': jax.tree.map(draw, shapes)}


@functools.cache
def bounded():
  """A model with boundaries, compiled once for all searches."""
  model, _ = tiny(boundaries=BOUNDARIES)
  return model, jax.jit(model.apply)


def log_probs_of(apply, variables, source):
  """A function of one prefix, by the model without a cache."""

  @functools.cache
  def log_probs(prefix):
    words = [BOS, *prefix] + [PAD] * (LONGEST - len(prefix))
    logits = np.asarray(apply(variables, source[None], np.array([words]))[0, len(prefix)], np.float64)
    return logits - np.log(np.sum(np.exp(logits)))

  return log_probs


def sentences(result, row):
  """[(score, words with EOS), ...] of one sentence."""
  out = []
  for ids, score in zip(np.asarray(result.ids[row]), np.asarray(result.scores[row]), strict=True):
    if np.isfinite(score):
      end = int(np.argmax(ids == EOS))
      assert ids[end] == EOS and not np.any(ids[end + 1:])
      out.append((float(score), tuple(ids[:end + 1].tolist())))
  return out


def agree(ours, theirs):
  assert [words for _, words in ours] == [words for _, words in theirs]
  np.testing.assert_allclose([s for s, _ in ours], [s for s, _ in theirs], rtol=2e-5)


@pytest.mark.parametrize('changes', [{}, {'norm': 'pre', 'layers': (1, 2)}, {'share_embeddings': False},
                                     {'boundaries': BOUNDARIES}], ids=str)
@pytest.mark.parametrize('rows', [3, *slow(1)])
def test_the_cache_changes_nothing(changes, rows):
  model, variables = tiny(**changes)
  target = jnp.asarray(np.random.default_rng(1).integers(3, 7, (rows * 3, 6)), jnp.int32).at[:, 0].set(BOS)
  want = jax.jit(model.apply)(variables, jnp.repeat(SOURCE, rows, 0), target)
  start = jax.jit(lambda *args: model.apply(*args, 8, rows, method='start'))  # with room for more
  cache = start(variables, SOURCE)
  advance = jax.jit(lambda *args: model.apply(variables, *args, method='advance'))
  for i in range(6):
    logits, cache = advance(cache, target[:, i])
    np.testing.assert_allclose(logits, want[:, i], rtol=1e-5, atol=1e-5)
  assert int(cache.step) == 6


@pytest.mark.parametrize('beam, penalty', [(2, 1.8), (5, 1.0), *slow((2, 0.0), (2, 1.0), (5, 0.0), (5, 1.8))])
def test_beam_search_against_the_oracle(beam, penalty):
  model, apply = bounded()
  search = beam_search(model, lambda n: n + 2, beam, penalty)
  lengths = set()
  for seed in range(4):
    variables = tiny(seed)[1]
    ours = search(variables, SOURCE)
    assert ours.ids.shape == (3, beam, 8) and ours.scores.shape == (3, beam)
    for row, length in enumerate([5, 3, 2]):
      log_probs = log_probs_of(apply, variables, SOURCE[row])
      theirs = oracle.beam_search(log_probs, WORDS, EOS, length + 2, penalty, beam)
      agree(sentences(ours, row), theirs)
      lengths |= {len(words) for _, words in theirs}
  assert len(lengths) >= 3  # the cases differ


def test_a_wide_beam_finds_the_best_of_all():
  model, variables = tiny(3, layers=1)
  ours = beam_search(model, 3, beam=100, length_penalty=0.7)(variables, SOURCE[:2])
  apply = jax.jit(model.apply)
  for row in range(2):
    log_probs = log_probs_of(apply, variables, SOURCE[row])
    best = oracle.exhaustive(log_probs, WORDS, EOS, 3, 0.7, number=1)
    agree(sentences(ours, row)[:1], best)


def test_greedy_takes_the_most_likely_word():
  model, _ = tiny()
  search, narrow, apply = greedy(model, 6), beam_search(model, 6, beam=1), jax.jit(model.apply)
  for seed in range(4):
    variables = tiny(seed)[1]
    ours = search(variables, SOURCE)
    check_greedy(ours, narrow(variables, SOURCE), apply, variables)


def check_greedy(ours, narrow, apply, variables):
  np.testing.assert_array_equal(ours.ids, narrow.ids[:, 0])
  np.testing.assert_array_equal(ours.scores, narrow.scores[:, 0])
  for row in range(3):
    log_probs, words, total = log_probs_of(apply, variables, SOURCE[row]), (), 0.0
    while EOS not in words:
      options = [EOS, *WORDS] if len(words) < 6 else [EOS]
      best = max(options, key=lambda w: log_probs(words)[w])
      words, total = (*words, best), total + log_probs(words)[best]
    assert ours.ids[row, :len(words)].tolist() == list(words) and not np.any(ours.ids[row, len(words):])
    assert float(ours.scores[row]) == pytest.approx(total / len(words), rel=1e-5)


def test_padding_and_companions_change_nothing():
  model, variables = tiny(1)
  search = beam_search(model, lambda n: 2 * n, beam=3)
  together = search(variables, jnp.pad(SOURCE, ((0, 0), (0, 4))))
  for row, length in [(1, 3), (2, 2)]:
    alone = search(variables, SOURCE[row:row + 1, :length])
    agree(sentences(alone, 0), sentences(together, row))


def test_stops_when_nothing_can_become_better():
  """EOS is all but certain at once: with room for a thousand words, the search takes few steps."""
  model, variables = tiny(0, share_embeddings=False)
  kernel = jnp.zeros((8, 7))
  variables['params']['output'] = {'kernel': kernel}
  steps = []

  class Counted:
    def apply(self, *args, **more):
      out = model.apply(*args, **more)
      if more['method'] == 'advance':
        logits, cache = out
        jax.debug.callback(lambda step: steps.append(int(step)), cache.step)
        return logits.at[:, EOS].set(20.0), cache
      return out

  result = beam_search(Counted(), 1000, beam=3, length_penalty=1.0)(variables, SOURCE)
  jax.block_until_ready(result)
  jax.effects_barrier()
  assert max(steps) <= 3
  np.testing.assert_array_equal(result.ids[:, 0, 0], EOS)


@pytest.mark.parametrize(('bad', 'message'), [
    ({'beam': 0}, 'got beam=0'), ({'length_penalty': -1.0}, 'got length_penalty=-1'),
    ({'max_len': 0}, 'got max_len=0')])
def test_bad_arguments(bad, message):
  with pytest.raises(ValueError, match=message):
    beam_search(tiny()[0], **{'max_len': 5} | bad)
