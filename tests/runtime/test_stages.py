"""Stages with a network between them compute what the same model computes on one device with the same masks."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import slow

from dct_jax.boundaries import sparse_boundary
from dct_jax.boundaries.cut import Cut
from dct_jax.runtime.schedule import BACKWARD, FORWARD, schedule
from dct_jax.runtime.stages import Stage
from dct_jax.runtime.worker import Programs, Worker, run
from dct_jax.transport.links import local_links

pytestmark = pytest.mark.plain_code

WIDTHS = (7, 33, 20, 16, 1)  # no two stages have parameters of the same shape


def layers(params, x):
  for i, w in enumerate(params):
    x = jnp.tanh(x @ w) if i % 2 else jax.nn.relu(x @ w)
  return x


def make_params(seed=0):
  keys = jax.random.split(jax.random.PRNGKey(seed), len(WIDTHS) - 1)
  shapes = itertools.pairwise(WIDTHS)
  return [jax.random.normal(k, shape) / 3 for k, shape in zip(keys, shapes, strict=True)]


def make_stages(cuts):
  """Three stages: one layer, two, one; the second also has rows of its own, the third the loss."""

  def first(params, own, inputs, batch):
    return (layers(params, batch['x']),)

  def middle(params, own, inputs, batch):
    return (layers(params, inputs[0]) + own['rows'],)

  def last(params, own, inputs, batch):
    loss = jnp.mean((layers(params, inputs[0])[:, 0] - batch['y']) ** 2)
    return loss, {'largest': jnp.max(inputs[0])}

  return [Stage(first, (cuts[0],)), Stage(middle, (cuts[1],)),
          Stage(last, (), lambda p, own, inputs, batch: layers(p, inputs[0])[:, 0])]


def whole_loss(params, rows, batch, cut):
  x = batch['x']
  for section, more in [(params[:1], 0), (params[1:3], rows)]:
    x = layers(section, x) + more
    if cut.sparsity:
      x = sparse_boundary(x, cut.sparsity, value_codec=cut.value_codec)
  return jnp.mean((layers(params[3:], x)[:, 0] - batch['y']) ** 2)


def in_stages(params, rows, batch, cut, microbatches):
  stages, before, workers = make_stages([cut, cut]), (), []
  sections = [params[:1], params[1:3], params[3:]]
  for s, (stage, links) in enumerate(zip(stages, local_links(3), strict=True)):
    workers.append(Worker(s, Programs(stage, before, microbatches), links))
    before = stage.cuts
    workers[-1].begin(sections[s], {'rows': rows} if s == 1 else (), batch)
  run(workers)
  return [w.result() for w in workers], workers


def make_batch(n=24, seed=0):
  rng = np.random.default_rng(seed)
  normal = lambda *shape: rng.standard_normal(shape).astype(np.float32)
  return normal(n, WIDTHS[3]) / 3, {'x': normal(n, 7), 'y': normal(n)}


@functools.cache
def gradient(cut):
  """Compiled once for all numbers of microbatches."""
  return jax.jit(jax.value_and_grad(functools.partial(whole_loss, cut=cut), argnums=(0, 1)))


@pytest.mark.parametrize('microbatches', [1, 4, *slow(2)])
@pytest.mark.parametrize('cut', [Cut(), Cut(0.75), Cut(0.9, 'float16'), Cut(0.5, 'int8')], ids=str)
def test_gradients_are_those_of_one_device_with_the_same_masks(cut, microbatches):
  params, (rows, batch) = make_params(), make_batch()
  expected, (grads, row_grads) = gradient(cut)(params, rows, batch)
  results, _ = in_stages(params, rows, batch, cut, microbatches)
  close = {'rtol': 2e-5, 'atol': 2e-7}
  np.testing.assert_allclose(results[2].scalars['loss'], expected, rtol=1e-6)
  found = [g for r in results for g in r.grads]
  for a, b in zip(found, grads, strict=True):
    np.testing.assert_allclose(a, b, **close)
  np.testing.assert_allclose(results[1].own_grads['rows'], row_grads, **close)


def test_bytes_are_those_that_a_boundary_inside_a_device_counts():
  params, (rows, batch) = make_params(), make_batch()
  cut = Cut(0.75, 'float16')
  results, workers = in_stages(params, rows, batch, cut, 2)
  x = layers(params[:1], batch['x'])
  kept = int(jnp.sum(sparse_boundary(x, 0.75) != 0))
  heads = 2 * 4 * 3  # of two microbatches: how many dimensions, and two of them
  assert results[0].traffic == {
      'forward_bytes': 2 * kept + 24 * 5 + heads, 'backward_bytes': 0, 'dense_bytes': 4 * 24 * 33}
  assert results[1].traffic['backward_bytes'] == 2 * kept + heads + 2 * 4  # gradients have a scale
  sent = sum(w.links.sent_bytes for w in workers)
  told = sum(r.traffic['forward_bytes'] + r.traffic['backward_bytes'] for r in results)
  assert sent == told + 28 * 2 * 2 * 2  # a frame for every message: microbatches, cuts, ways


@pytest.mark.parametrize('stages', [1, 2, 3, 5])
@pytest.mark.parametrize('microbatches', [1, 2, 3, 8])
def test_a_schedule_has_everything_once_and_keeps_few_activations(stages, microbatches):
  for stage in range(stages):
    order = schedule(stage, stages, microbatches)
    for what in (FORWARD, BACKWARD):
      assert [m for w, m in order if w == what] == list(range(microbatches))
    kept = np.cumsum([1 if w == FORWARD else -1 for w, _ in order])
    assert kept.min() >= 0
    assert kept.max() <= stages - stage


def test_examples_must_divide_into_microbatches():
  with pytest.raises(ValueError, match='24 examples'):
    in_stages(make_params(), *make_batch(), Cut(), 5)
