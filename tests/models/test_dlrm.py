"""DLRM against plain loops, and against the public PyTorch implementation.

`public_dlrm.npz` has what facebookresearch/dlrm (commit 090956ee, torch 2.13) made of a small model: its first
weights, a batch, the probabilities, the losses of three steps of SGD with rate 0.5, and the weights after them.
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference import dct_mp
from reference import dlrm as oracle

from dct_jax import tables as embeddings
from dct_jax.boundaries import SparseBoundary, sparse_boundary
from dct_jax.models import dlrm
from dct_jax.models.dlrm import Dlrm

pytestmark = pytest.mark.plain_code


@pytest.fixture(scope='module')
def public():
  with np.load(pathlib.Path(__file__).with_name('public_dlrm.npz')) as file:
    return {name: file[name] for name in file.files}


def public_params(public, prefix=''):
  names = sorted({k.split('_')[-2] for k in public if k.endswith('_w')})
  return {'params': {n: {'kernel': public[f'{prefix}{n}_w'], 'bias': public[f'{prefix}{n}_b']} for n in names}}


def public_tables(public, prefix=''):
  return [public[f'{prefix}table{f}'] for f in range(len(public['vocabularies']))]


def public_model():
  return Dlrm(bottom=(24, 16, 8), top=(32, 12, 1))


def rows_of(tables, ids):
  return np.stack([t[ids[:, f]] for f, t in enumerate(tables)], 1)


def test_probabilities_are_those_of_the_public_model(public):
  rows = rows_of(public_tables(public), public['categories'])
  logits = public_model().apply(public_params(public), public['dense'], rows)
  np.testing.assert_allclose(jax.nn.sigmoid(logits), public['probability'], rtol=2e-6)


def test_three_steps_of_sgd_are_those_of_the_public_model(public):
  model, ids = public_model(), public['categories']
  layout = embeddings.deal([int(v) for v in public['vocabularies']])
  flat = np.zeros((layout.rows, 8), np.float32)
  for f, table in enumerate(public_tables(public)):
    flat[layout.begin[f]:layout.begin[f] + len(table)] = table
  params, tables, optimizer = public_params(public), jnp.asarray(flat), embeddings.sgd(0.5)

  def loss_fn(params, rows):
    logits = model.apply(params, public['dense'], rows)
    return optax.sigmoid_binary_cross_entropy(logits, public['label']).mean()

  losses, where = [], ids + layout.begin
  gradient = jax.jit(jax.value_and_grad(loss_fn, (0, 1)))
  for _ in range(3):
    loss, (grads, row_grads) = gradient(params, tables[where])
    params = jax.tree.map(lambda p, g: p - 0.5 * g, params, grads)
    tables, _ = optimizer.update(tables, (), where.reshape(-1), row_grads.reshape(-1, 8))
    losses.append(loss)
  np.testing.assert_allclose(losses, public['losses'], rtol=1e-5)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6),
               params, public_params(public, 'after_'))
  for f, after in enumerate(public_tables(public, 'after_')):
    mine = tables[layout.begin[f]:layout.begin[f] + len(after)]
    np.testing.assert_allclose(mine, after, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize('features', [0, 5])
def test_logits_are_those_of_plain_loops(features):
  rng = np.random.default_rng(0)
  model = Dlrm(bottom=(7, 4), top=(9, 6, 1))
  dense = rng.standard_normal((3, features)).astype(np.float32)
  rows = rng.standard_normal((3, 5, 4)).astype(np.float32)
  params = jax.jit(model.init)(jax.random.PRNGKey(1), dense, rows)
  layers = lambda name: [(np.float64(p['kernel']), np.float64(p['bias']))
                         for k, p in sorted(params['params'].items()) if k.startswith(name)]
  want = oracle.logits(layers('bottom'), layers('top'), dense, rows)
  np.testing.assert_allclose(model.apply(params, dense, rows), want, rtol=1e-4, atol=1e-5)


def test_a_cut_applies_where_it_is_named_and_cuts_have_names():
  assert dlrm.split_names() == ('bottom1', 'bottom2', 'bottom3', 'bottom4', 'top1', 'top2', 'top3')
  rng = np.random.default_rng(0)
  dense, rows = (rng.standard_normal(s).astype(np.float32) for s in ((6, 13), (6, 4, 16)))
  whole, cut = Dlrm(), Dlrm(boundaries={'bottom2': lambda x: sparse_boundary(x, 0.9)})
  params = jax.jit(whole.init)(jax.random.PRNGKey(0), dense, rows)
  p = params['params']
  hidden = np.maximum(np.maximum(dense @ p['bottom1']['kernel'] + p['bottom1']['bias'], 0)
                      @ p['bottom2']['kernel'] + p['bottom2']['bias'], 0)
  sent = dct_mp.forward(np.asarray(hidden), 0.9)
  assert 0 < (sent != 0).mean() < 0.11
  rest = {k: v for k, v in p.items() if 'top' in k} | {'bottom1': p['bottom3'], 'bottom2': p['bottom4']}
  later = Dlrm(bottom=(64, 16)).apply({'params': rest}, jnp.asarray(sent), rows)
  np.testing.assert_allclose(cut.apply(params, dense, rows), later, rtol=1e-4, atol=1e-5)


def test_modules_as_boundaries_tell_their_traffic():
  model = Dlrm(boundaries={'bottom2': SparseBoundary(0.9), 'top2': SparseBoundary(0.75)})
  dense, rows = jnp.ones((4, 13)), jnp.ones((4, 26, 16))
  params = {'params': jax.jit(model.init)(jax.random.PRNGKey(0), dense, rows)['params']}
  _, state = model.apply(params, dense, rows, mutable=['traffic'])
  cuts = list(state['traffic'].values())
  assert [float(c['dense_bytes']) for c in cuts] == [4 * 4 * 256] * 2
  assert all(0 < float(c['backward_bytes']) < 0.3 * 4 * 4 * 256 for c in cuts)


@pytest.mark.parametrize('arguments, message', [
    ({'boundaries': {'bottom5': lambda x: x}}, 'boundaries are at .*bottom1.*top3.*unknown'),
    ({'boundaries': {'top4': lambda x: x}}, 'boundaries are at'),
    ({'bottom': (512, 8)}, 'ends with the width of the rows')])
def test_bad_models_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    Dlrm(**arguments).init(jax.random.PRNGKey(0), jnp.ones((1, 13)), jnp.ones((1, 26, 16)))
