"""The Transformer against PyTorch's layers and a size worked out by hand; padding, causality, cuts."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import slow

from dct_jax.boundaries.sparse import SparseBoundary
from dct_jax.models.dropout import Dropout
from dct_jax.models.transformer import BOS, EOS, PAD, UNK, Transformer, sections, sinusoids, split_names
from dct_jax.models.transformer_layer import Layer

pytestmark = pytest.mark.plain_code

SOURCE = jnp.array([[7, 8, 9, 4, EOS], [5, 6, EOS, PAD, PAD]])
TARGET = jnp.array([[BOS, 9, 5, 6], [BOS, 7, PAD, PAD]])
BOUNDARIES = {'enc2': SparseBoundary(0.9), 'dec1': SparseBoundary(0.5, 'int8')}
CLOSE = {'rtol': 2e-5, 'atol': 2e-5}


def small(**changes):
  return Transformer(12, 14, **{'width': 16, 'hidden': 40, 'heads': 4, 'layers': 2} | changes)


def variables_of(model, seed=0):
  """Random parameters, biases and the scales of norms as well."""
  shapes = jax.eval_shape(model.init, jax.random.key(0), SOURCE, TARGET)['params']
  rng = np.random.default_rng(seed)
  draw = lambda x: jnp.asarray(rng.normal(0, 0.4, x.shape) + (len(x.shape) == 1), jnp.float32)
  return {'params': jax.tree.map(draw, shapes)}


# Against PyTorch.


def to_torch(torch, ours, theirs, cross):
  """Copies a layer's weights."""
  tensor = lambda x: torch.from_numpy(np.array(x))
  norms = ['attention_norm', *(['cross_norm'] if cross else []),
           'contract_norm' if 'contract_norm' in ours else 'expand_norm']
  linear = lambda node: {'weight': tensor(node['kernel']).T, 'bias': tensor(node['bias'])}
  state = {}
  for i, name in enumerate(norms, 1):
    state |= {f'norm{i}.weight': tensor(ours[name]['scale']), f'norm{i}.bias': tensor(ours[name]['bias'])}
  for name, node in [('linear1', ours['expand']), ('linear2', ours['contract']),
                     ('self_attn.out_proj', ours['attention']['out'])]:
    state |= {f'{name}.{k}': v for k, v in linear(node).items()}
  state |= {f'self_attn.in_proj_{k}': v for k, v in linear(ours['attention']['query_key_value']).items()}
  if cross:
    node = ours['cross_attention']
    parts = [linear(node['query']), linear(node['key_value'])]
    state |= {f'multihead_attn.in_proj_{k}': torch.cat([p[k] for p in parts]) for k in parts[0]}
    state |= {f'multihead_attn.out_proj.{k}': v for k, v in linear(node['out']).items()}
  theirs.load_state_dict(state)
  return theirs.train()  # nothing is dropped at rate 0; PyTorch's other way of computing is for inference only


@pytest.mark.parametrize('norm', ['post', 'pre'])
@pytest.mark.parametrize('cross', [False, True], ids=['encoder', 'decoder'])
def test_layers_as_in_pytorch(norm, cross):
  torch = pytest.importorskip('torch', reason='PyTorch, which this is compared with, is not installed')
  rng = np.random.default_rng(0)
  x, memory = (rng.normal(size=(3, n, 16)).astype(np.float32) for n in (5, 6))
  there = np.arange(6) < np.array([[6], [4], [1]])
  causal = np.tril(np.ones((5, 5), bool))
  layer = Layer(16, 40, 4, norm=norm, cross=cross)
  mask = causal if cross else there[:, None, None, :5]

  def run(layer, x, memory):
    pair = layer.keys_and_values(memory) if cross else None
    hidden, x, _ = layer.front(x, mask, pair, there[:, None, None])
    return layer.back(hidden, x)

  shapes = jax.eval_shape(partial(layer.init, method=run), jax.random.key(0), x, memory)
  params = jax.tree.map(lambda a: rng.normal(0, 0.3, a.shape).astype(np.float32), shapes)
  ours = layer.apply(params, x, memory, method=run)

  kind = torch.nn.TransformerDecoderLayer if cross else torch.nn.TransformerEncoderLayer
  theirs = to_torch(torch, params['params'], kind(
      16, 4, 40, dropout=0.0, activation='relu', batch_first=True, norm_first=norm == 'pre'), cross)
  hidden_keys = torch.from_numpy(~there)
  more = {'src_key_padding_mask': hidden_keys[:, :5]}
  if cross:
    more = {'memory': torch.from_numpy(memory), 'memory_key_padding_mask': hidden_keys,
            'tgt_mask': torch.from_numpy(~causal)}
  want = theirs(torch.from_numpy(x), **more).detach().numpy()
  np.testing.assert_allclose(ours, want, **CLOSE)


# Sizes and positions.


def test_published_size():
  """fairseq's transformer_iwslt_de_en with its vocabularies of 8848 and 6632 words."""
  model = Transformer(8848, 6632)
  shapes = jax.eval_shape(model.init, jax.random.key(0), SOURCE, TARGET)['params']
  attention = 4 * (512 * 512 + 512)
  network = 512 * 1024 + 1024 + 1024 * 512 + 512
  norm = 2 * 512
  encoder = 6 * (attention + network + 2 * norm)
  decoder = 6 * (2 * attention + network + 3 * norm)
  assert sum(x.size for x in jax.tree.leaves(shapes)) == (8848 + 6632) * 512 + encoder + decoder == 39_469_056


@pytest.mark.parametrize(('changes', 'more'), [
    ({'norm': 'pre'}, 2 * 2 * 16), ({'share_embeddings': False}, 14 * 16), ({'layers': (2, 2)}, 0)])
def test_other_forms_are_larger_by(changes, more):
  size = lambda model: sum(x.size for x in jax.tree.leaves(
      jax.eval_shape(model.init, jax.random.key(0), SOURCE, TARGET)))
  assert size(small(**changes)) - size(small()) == more


def test_the_full_shape_trains():
  model = Transformer(8848, 6632)
  shapes = jax.eval_shape(model.init, jax.random.key(0), SOURCE, TARGET)
  loss = lambda v, key: jnp.mean(model.apply(v, SOURCE, TARGET, train=True, rngs={'dropout': key}))
  grads = jax.eval_shape(jax.grad(loss), shapes, jax.random.key(1))
  assert jax.tree.map(jnp.shape, grads) == jax.tree.map(jnp.shape, shapes)


def test_positions_by_hand():
  table = np.asarray(sinusoids(3, 6))
  assert table.shape == (4, 6) and not table[0].any()
  for position in (1, 2, 3):
    rates = [1, 1 / 100, 1 / 10_000]
    want = [np.sin(position * r) for r in rates] + [np.cos(position * r) for r in rates]
    np.testing.assert_allclose(table[position], want, rtol=1e-6)


def test_initial_parameters():
  params = jax.jit(Transformer(400, 500, width=64, hidden=128, layers=1).init)(
      jax.random.key(0), SOURCE, TARGET)['params']
  table = params['target_embedding']['embedding']
  assert not table[PAD].any() and float(table[UNK:].std()) == pytest.approx(1 / 8, rel=0.03)
  bound = lambda node: float(jnp.abs(node['kernel']).max())
  node = params['dec1']
  assert bound(node['expand']) == pytest.approx((6 / (64 + 128)) ** 0.5, rel=0.01)
  assert bound(node['attention']['out']) == pytest.approx((6 / 128) ** 0.5, rel=0.01)
  for part in (node['attention']['query_key_value'], node['cross_attention']['key_value'],
               node['cross_attention']['query']):  # square matrices, with a gain of sqrt(1/2)
    assert bound(part) == pytest.approx((6 / 128 / 2) ** 0.5, rel=0.01)


# What may not have an influence.


@pytest.mark.parametrize('norm', ['post', *slow('pre')])
def test_padding_and_companions_change_nothing(norm):
  model = small(norm=norm, boundaries=BOUNDARIES)
  variables = variables_of(model)
  apply = jax.jit(model.apply)
  both = apply(variables, SOURCE, TARGET)
  pad = lambda x, *sides: jnp.pad(x, ((0, 0), sides))
  np.testing.assert_allclose(apply(variables, pad(SOURCE, 0, 3), TARGET), both, **CLOSE)
  np.testing.assert_allclose(apply(variables, pad(SOURCE, 2, 1), TARGET), both, **CLOSE)
  np.testing.assert_allclose(apply(variables, SOURCE, pad(TARGET, 0, 2))[:, :4], both, **CLOSE)
  np.testing.assert_allclose(apply(variables, SOURCE, pad(TARGET, 2, 0))[:, 2:], both, **CLOSE)
  alone = apply(variables, SOURCE[1:, :3], TARGET[1:, :2])
  np.testing.assert_allclose(alone[0], both[1, :2], **CLOSE)


def test_the_row_of_padding_is_not_used_as_an_input():
  model = small(share_embeddings=False)
  variables = variables_of(model)
  real = TARGET != PAD
  loss = lambda v: jnp.sum(jnp.sin(model.apply(v, SOURCE, TARGET)) * real[..., None])
  grads = jax.jit(jax.grad(loss))(variables)['params']
  for name in ('source_embedding', 'target_embedding'):
    assert not grads[name]['embedding'][PAD].any() and grads[name]['embedding'][5].any()


def test_later_words_change_nothing_before_them():
  model = small()
  variables, apply = variables_of(model), jax.jit(model.apply)
  before = apply(variables, SOURCE, TARGET)
  after = apply(variables, SOURCE, TARGET.at[:, 2].set(11))
  np.testing.assert_array_equal(after[:, :2], before[:, :2])
  assert np.all(np.any(np.asarray(after[:1, 2:] != before[:1, 2:]), -1))
  other = apply(variables, SOURCE.at[:, 1].set(11), TARGET)
  assert np.all(np.any(np.asarray(other != before), -1))  # every word sees all of the source


def test_dropout_differs_by_key_and_place():
  model = small()
  variables = variables_of(model)
  run = lambda seed: model.apply(variables, SOURCE, TARGET, train=True, rngs={'dropout': jax.random.key(seed)})
  np.testing.assert_array_equal(run(1), run(1))
  assert np.all(np.any(np.asarray(run(1) != run(2)), -1))
  _, seen = model.apply(variables, SOURCE, TARGET, train=True, rngs={'dropout': jax.random.key(1)},
                        capture_intermediates=lambda module, _: isinstance(module, Dropout),
                        mutable=['intermediates'])
  masks = [np.asarray(x) == 0 for x in jax.tree.leaves(seen)]
  alike = [(i, j) for i in range(len(masks)) for j in range(i)
           if masks[i].shape == masks[j].shape and (masks[i] == masks[j]).all()]
  assert len(masks) > 4 and not alike
  still = small(dropout=0.0)
  np.testing.assert_array_equal(still.apply(variables, SOURCE, TARGET, train=True),
                                model.apply(variables, SOURCE, TARGET))


@pytest.mark.parametrize(('rate', 'share'), [(0.3, 77 / 256), (0.5, 0.5), (1e-4, 1 / 256), (0.999, 255 / 256)])
def test_dropout_keeps_the_mean(rate, share):
  x = jnp.ones((101, 999))  # no multiple of four
  y = Dropout(rate).apply({}, x, True, rngs={'dropout': jax.random.key(0)})
  assert float(jnp.mean(y == 0)) == pytest.approx(share, abs=0.005)
  np.testing.assert_allclose(np.unique(y), [0, 1 / (1 - share)], rtol=1e-6)


# Cuts.


def in_sections(model, variables, splits, **more):
  x = ()
  for section in sections(splits, model.layers, model.share_embeddings):
    assert len(x) == len(section.arriving)
    x = model.apply(section.params(variables), SOURCE, TARGET, section=section, inputs=x, **more)
  return x


@pytest.mark.parametrize('changes', [
    {}, {'norm': 'pre'}, {'share_embeddings': False}, {'boundaries': BOUNDARIES}, {'layers': (3, 2)}], ids=str)
@pytest.mark.parametrize('splits', ['dec1', 'enc1,enc2,dec1,dec2', *slow('', 'enc1', 'enc2', 'dec2')])
def test_sections_are_the_whole(splits, changes):
  model = small(**changes)
  variables = variables_of(model)
  more = {'train': True, 'rngs': {'dropout': jax.random.key(5)}}
  np.testing.assert_array_equal(in_sections(model, variables, splits, **more),
                                model.apply(variables, SOURCE, TARGET, **more))


@pytest.mark.parametrize('changes', [{}, {'norm': 'pre'}, {'share_embeddings': False}], ids=str)
def test_each_parameter_is_in_one_section_or_shared(changes):
  model = small(**changes)
  variables = variables_of(model)
  path = lambda tree: {jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(tree['params'])}
  parts = sections('enc1,dec1,dec2', 2, model.share_embeddings)
  paths = [path(part.params(variables)) for part in parts]
  assert set.union(*paths) == path(variables)
  twice = {p for i, a in enumerate(paths) for b in paths[i + 1:] for p in a & b}
  assert twice == ({"['target_embedding']['embedding']"} if model.share_embeddings else set())
  shared = () if 'share_embeddings' in changes else ('target_embedding',)
  assert [part.shared for part in parts] == [(), shared, (), shared]
  assert all(not part.shared for part in sections('enc1,enc2', 2))


def test_gradients_of_sections_add_up_to_the_wholes():
  model = small(boundaries=BOUNDARIES)
  variables = variables_of(model)
  loss = lambda logits: jnp.mean(jnp.sin(logits))
  whole = jax.jit(jax.grad(lambda v: loss(model.apply(v, SOURCE, TARGET))))(variables)['params']
  parts = sections('enc2,dec1', 2)

  def by_parts(own):
    x = ()
    for part, params in zip(parts, own, strict=True):
      x = model.apply(params, SOURCE, TARGET, section=part, inputs=x)
    return loss(x)

  grads = jax.jit(jax.grad(by_parts))([part.params(variables) for part in parts])
  tables = [g['params']['target_embedding']['embedding'] for g in grads[1:]]
  np.testing.assert_allclose(sum(tables), whole['target_embedding']['embedding'], rtol=1e-5, atol=1e-7)
  halves = grads[0]['params']['enc2'] | grads[1]['params']['enc2']
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), halves, whole['enc2'])


def test_boundaries_tell_their_traffic_and_let_gradients_through():
  model = small(boundaries={'enc2': SparseBoundary(0.9)})
  variables = variables_of(model)
  gradient = lambda model: jax.jit(jax.grad(lambda v: jnp.mean(jnp.sin(model.apply(v, SOURCE, TARGET)))))
  _, state = model.apply(variables, SOURCE, TARGET, mutable=['traffic'])
  traffic = state['traffic']['boundaries_enc2']
  # 8 words; of 40 numbers each, those from the 36th on; a bitmap for all 10 positions, padding has no values.
  assert traffic['forward_bytes'] == 8 * 5 * 4 + 10 * 5 and traffic['backward_bytes'] == 8 * 5 * 4
  grads = gradient(model)(variables)['params']
  assert all(np.any(g) for g in jax.tree.leaves([grads['enc1']['expand'], grads['source_embedding']]))
  dense = gradient(small())(variables)['params']
  assert np.any(dense['enc2']['expand']['kernel'] != grads['enc2']['expand']['kernel'])


# Bad arguments.


@pytest.mark.parametrize('splits', ['enc3', 'mid1', 'dec1,enc1', 'enc1,enc1', 'enc1;dec1'])
def test_bad_splits(splits):
  with pytest.raises(ValueError, match=r"'enc1', 'enc2', 'dec1', 'dec2'.*got splits"):
    sections(splits, 2)


@pytest.mark.parametrize(('bad', 'message'), [
    ({'boundaries': {'enc9': jnp.abs}}, r"'enc1', 'enc2', 'dec1', 'dec2'.*got unknown=\['enc9'\]"),
    ({'norm': 'rms'}, 'got self.norm'), ({'heads': 3}, 'got self.width'),
    ({'dropout': 1.0}, 'got self.dropout')])
def test_bad_models(bad, message):
  with pytest.raises(ValueError, match=message):
    small(**bad)


def test_sections_of_another_model_and_wrong_inputs():
  model = small()
  variables = variables_of(model)
  for section in [sections('enc3', 3)[1], sections('enc1', 1)[1], sections('', 3)[0]]:
    with pytest.raises(ValueError, match='is not of a model with layers=2'):
      model.apply(variables, SOURCE, TARGET, section=section, inputs=(0, 0))
  with pytest.raises(ValueError, match="'hidden', 'residual', 'memory'.*got 0"):
    model.apply(variables, SOURCE, TARGET, section=sections('dec1', 2)[1])


def test_split_names():
  assert split_names((3, 1)) == ('enc1', 'enc2', 'enc3', 'dec1')
