"""The LSTM translator against an oracle that goes word by word; its rows, its cache, and that it learns."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from marks import slow
from reference import lstm as oracle

from dct_jax.models.decoding import beam_search
from dct_jax.models.dropout import Dropout
from dct_jax.models.gnmt import Gnmt
from dct_jax.models.transformer import BOS, EOS, PAD
from dct_jax.models.translation_loss import smoothed_loss

pytestmark = pytest.mark.plain_code

SOURCE = jnp.array([[7, 8, 9, 4, EOS], [5, 6, EOS, PAD, PAD], [4, EOS, PAD, PAD, PAD]])
TARGET = jnp.array([[BOS, 5, 6, 4], [BOS, 3, PAD, PAD], [BOS, 6, 6, PAD]])


def drawn(layers=3, spread=0.5, seed=0):
  model = Gnmt(10, 7, width=6, layers=layers)
  shapes = jax.eval_shape(model.init, jax.random.key(0), SOURCE, TARGET)['params']
  rng = np.random.default_rng(seed)
  return model, {'params': jax.tree.map(lambda x: rng.normal(0, spread, x.shape).astype(np.float32), shapes)}


@pytest.mark.parametrize('layers', [2, 4, *slow(3, 5)])
def test_logits_as_the_oracle_has_them(layers):
  model, variables = drawn(layers)
  ours = jax.jit(model.apply)(variables, SOURCE, TARGET)
  assert ours.shape == (3, 4, 7)
  for row in range(3):
    source, target = (np.asarray(x[row])[np.asarray(x[row]) != PAD] for x in (SOURCE, TARGET))
    theirs = oracle.translate(variables['params'], source, target, layers)
    np.testing.assert_allclose(ours[row, :len(target)], theirs, rtol=1e-4, atol=1e-5)


def test_rows_from_elsewhere_give_the_same_and_everything_has_a_gradient():
  model, variables = drawn()
  own = {k: v for k, v in variables['params'].items() if not k.endswith('embedding')}
  table = lambda name: variables['params'][f'{name}_embedding']['embedding']
  rows = {'source': table('source')[SOURCE], 'target': table('target')[TARGET]}
  given = jax.jit(lambda p, rows: model.apply({'params': p}, SOURCE, TARGET, rows=rows))
  np.testing.assert_array_equal(given(own, rows), jax.jit(model.apply)(variables, SOURCE, TARGET))
  weights = (TARGET != PAD)[..., None] * np.random.default_rng(1).normal(size=(3, 4, 7))
  loss = lambda p, rows: jnp.sum(given(p, rows) * weights)
  by_params, by_rows = jax.jit(jax.grad(loss, (0, 1)))(own, rows)
  assert [path for path, g in jax.tree_util.tree_leaves_with_path(by_params) if not np.any(g)] == []
  for name, words in (('source', SOURCE), ('target', TARGET)):
    np.testing.assert_array_equal(np.any(by_rows[name] != 0, -1), words != PAD)  # every word, and no padding


@pytest.mark.parametrize('rows', [2, *slow(1)])
def test_word_by_word_is_the_same(rows):
  model, variables = drawn()
  target = jnp.asarray(np.random.default_rng(1).integers(3, 7, (rows * 3, 5)), jnp.int32).at[:, 0].set(BOS)
  want = jax.jit(model.apply)(variables, jnp.repeat(SOURCE, rows, 0), target)
  cache = jax.jit(lambda *args: model.apply(*args, 8, rows, method='start'))(variables, SOURCE)
  advance = jax.jit(lambda *args: model.apply(variables, *args, method='advance'))
  for i in range(5):
    logits, cache = advance(cache, target[:, i])
    np.testing.assert_allclose(logits, want[:, i], rtol=1e-5, atol=1e-5)
  assert int(cache.step) == 5


def batch_of(source, target):
  """A batch whose targets are sentences with EOS."""
  out = jnp.array(target)
  into = jnp.concatenate([jnp.full((len(out), 1), BOS), out[:, :-1]], 1)
  real = out != PAD
  return {'source': jnp.array(source), 'target_in': jnp.where(real, into, PAD), 'target_out': out,
          'weight': real * (len(out) / jnp.sum(real))}


def test_learns_a_few_sentences_and_writes_them():
  """Words in reverse, which wants attention; a beam scores its hypotheses by their own carries."""
  source = [[4, 5, 6, EOS], [6, 4, EOS, PAD], [5, 4, 4, EOS], [5, 6, EOS, PAD]]
  target = [[6, 5, 4, EOS], [4, 6, EOS, PAD], [4, 4, 5, EOS], [6, 5, EOS, PAD]]
  batch, model = batch_of(source, target), Gnmt(7, 7, width=16, layers=3, dropout=0)
  variables = jax.jit(model.init)(jax.random.key(0), batch['source'], batch['target_in'])
  tx = optax.adam(1e-2)

  @jax.jit
  def step(variables, state):
    loss_fn = lambda v: smoothed_loss(model.apply(v, batch['source'], batch['target_in'], True), batch, 0.0)[0]
    loss, grads = jax.value_and_grad(loss_fn)(variables)
    updates, state = tx.update(grads, state)
    return optax.apply_updates(variables, updates), state, loss

  state = tx.init(variables)
  for _ in range(150):
    variables, state, loss = step(variables, state)
  assert loss < 0.1
  np.testing.assert_array_equal(beam_search(model, 6, beam=1)(variables, batch['source']).ids[:, 0, :4], target)
  found = beam_search(model, 6, beam=3)(variables, batch['source'])
  for ids, scores in zip(np.moveaxis(found.ids, 1, 0), np.moveaxis(found.scores, 1, 0), strict=True):
    begin = np.full((len(ids), 1), BOS)
    logits = model.apply(variables, batch['source'], jnp.asarray(np.concatenate([begin, ids[:, :-1]], 1)))
    each = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), ids[:, :, None], 2)[:, :, 0]
    written = np.cumsum(ids == EOS, axis=1) - (ids == EOS) == 0
    want = (each * written).sum(1) / written.sum(1)
    np.testing.assert_allclose(scores[np.isfinite(scores)], want[np.isfinite(scores)], rtol=1e-3, atol=1e-4)


def test_drops_what_layers_read_in_training_alone():
  model, variables = drawn(layers=2)
  apply = jax.jit(lambda key: model.apply(variables, SOURCE, TARGET, True, rngs={'dropout': key}))
  one, other = apply(jax.random.key(0)), apply(jax.random.key(1))
  assert np.all(np.any(one != other, (1, 2)))
  np.testing.assert_array_equal(one, apply(jax.random.key(0)))


def test_everything_that_is_read_is_dropped_from_and_kernels_begin_large():
  model, where = Gnmt(10, 7, width=64, layers=2), []

  def note(call, args, kwargs, context):
    if isinstance(context.module, Dropout):
      where.append((context.module.name, args[1]))
    return call(*args, **kwargs)

  variables = jax.jit(model.init)(jax.random.key(0), SOURCE, TARGET)
  with nn.intercept_methods(note):
    model.apply(variables, SOURCE, TARGET, True, rngs={'dropout': jax.random.key(0)})
  places = [f'{place}_dropout' for place in ('enc1', 'enc2', 'dec1', 'dec2', 'output')]
  assert sorted(where) == sorted((place, True) for place in places)
  for layer in ('enc1', 'enc1_reverse', 'enc2', 'dec1', 'dec2'):
    for kernel in ('inputs', 'recurrent'):  # twice as wide as usual
      x = variables['params'][layer][kernel]
      assert np.std(x) * np.sqrt(len(x)) == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize(('bad', 'message'), [
    ({'layers': 1}, 'got self.layers=1'), ({'layers': 17}, 'got self.layers=17'), ({'width': 0}, 'got self.width=0'),
    ({'dropout': 1.0}, 'got self.dropout=1.0')])
def test_bad_arguments(bad, message):
  with pytest.raises(ValueError, match=message):
    Gnmt(10, 10, **bad)
