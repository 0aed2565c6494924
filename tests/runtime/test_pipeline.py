"""Hybrid training on a (data, stage) mesh equals training with the same cuts inside every device."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from marks import slow

import dct_jax
from dct_jax import runtime, train
from dct_jax import tables as embeddings
from dct_jax.boundaries import Cut
from dct_jax.models.dlrm import Dlrm, sections
from dct_jax.runtime import Pipeline, Stage, Tables, chain

pytestmark = pytest.mark.plain_code

BOTTOM, TOP, VOCABULARIES, FEATURES = (24, 12, 4), (20, 16, 1), (7, 5, 9), 6
SPLITS = 'bottom2,top1'


def click_loss(logits, batch):
  return optax.sigmoid_binary_cross_entropy(logits, batch['label']).mean()


def make_stages(splits, cut):
  model, parts = Dlrm(BOTTOM, TOP), sections(splits, BOTTOM, TOP)

  def make(section):
    return lambda params, rows, x, batch: model.apply(params, batch['dense'] if x is None else x, rows, section)

  return chain(list(map(make, parts)), cut, lambda *answers: (click_loss(*answers), {})), parts


def make_mean(sparsity):
  return dct_jax.dct_dp(sparsity, 5, 'data') if sparsity else dct_jax.dense_mean('data')


def make_batches(count, size=16):
  rng = np.random.default_rng(3)
  for _ in range(count):
    yield {'dense': rng.standard_normal((size, FEATURES)).astype(np.float32),
           'items': np.stack([rng.integers(0, v, size) for v in VOCABULARIES], 1).astype(np.int32),
           'label': rng.integers(0, 2, size).astype(np.float32)}


class Both:
  """The same training, in stages and in one piece."""

  def __init__(self, workers, splits=SPLITS, cut=Cut(0.75), dp=0.0, microbatches=1):  # noqa: B008
    self.layout = embeddings.deal(VOCABULARIES, workers)
    self.exchange = embeddings.RowExchange(self.layout, column='items')  # nothing knows its name
    self.optimizer = embeddings.make_optimizer('adagrad', 0.1)
    self.tx = lambda: optax.chain(make_mean(dp), optax.sgd(0.2))
    boundaries = {name: dct_jax.SparseBoundary(cut.sparsity, cut.value_codec) for name in splits.split(',')}
    self.model = Dlrm(BOTTOM, TOP, boundaries)
    self.params = {'params': self.model.init(
        jax.random.PRNGKey(0), jnp.zeros((1, FEATURES)), jnp.zeros((1, 3, BOTTOM[-1])))['params']}
    self.tables = embeddings.init_tables(jax.random.PRNGKey(1), self.layout, BOTTOM[-1])
    self.workers, self.splits, self.cut, self.microbatches = workers, splits, cut, microbatches

  def in_stages(self):
    stages, self.parts = make_stages(self.splits, self.cut)
    mesh = dct_jax.make_mesh(self.workers, stages=len(stages))
    (home,) = [i for i, part in enumerate(self.parts) if part.has_rows]
    tables = {home: Tables(self.exchange, self.optimizer)}
    self.pipeline = Pipeline(stages, mesh, lambda s: self.tx(), tables, microbatches=self.microbatches)
    return self.pipeline.init(lambda s: self.parts[s].params(self.params), lambda s: self.tables)

  def in_one(self):
    mesh = dct_jax.make_mesh(self.workers)
    tx = self.tx()
    params, state, specs = dct_jax.init(tx, self.params, mesh)
    state, specs = embeddings.init_rows(self.optimizer, self.tables, state, specs, mesh)

    def loss_fn(params, rows, batch):
      logits, _ = self.model.apply(params, batch['dense'], rows, mutable=['traffic'])
      return click_loss(logits, batch), {}

    step = embeddings.make_row_step(loss_fn, tx, self.optimizer, self.exchange, mesh, specs)
    return mesh, params, state, step


def merged(params):
  """All stages' layers as one model's."""
  return {'params': {k: jax.device_get(v) for part in params.values() for k, v in part['params'].items()}}


CASES = [(2, 2, Cut(0.75), 0.0), (2, 1, Cut(0.75, 'int8'), 0.9),
         *slow((2, 1, Cut(), 0.0), (1, 4, Cut(0.5, 'float16'), 0.0))]


@pytest.mark.parametrize('workers, microbatches, cut, dp', CASES)
def test_stages_train_as_one_piece_does(workers, microbatches, cut, dp):
  both = Both(workers, cut=cut, dp=dp, microbatches=microbatches)
  params, state, _ = both.in_stages()
  mesh, whole, whole_state, step = both.in_one()
  for batch in make_batches(6):
    params, state, metrics = both.pipeline.step(params, state, batch)
    whole, whole_state, expected = step(whole, whole_state, train.shard_batch(batch, mesh))
    np.testing.assert_allclose(metrics['loss'], expected['loss'], rtol=1e-5)
  for name, layer in merged(params)['params'].items():
    for kind, x in layer.items():
      np.testing.assert_allclose(x, whole['params'][name][kind], rtol=1e-4, atol=1e-6, err_msg=name)
  home = next(s for s in state if isinstance(state[s], embeddings.RowsState))
  np.testing.assert_allclose(state[home].tables, whole_state.tables, rtol=1e-4, atol=1e-6)
  assert metrics['row_bytes'] == expected['row_bytes']
  if not dp:
    assert metrics['encoded_bytes'] == expected['encoded_bytes'] + 2 * 4  # every stage's message has a count


def test_predictions_are_those_of_the_model():
  both = Both(2)
  params, state, _ = both.in_stages()
  batch = next(make_batches(1))
  found = both.pipeline.predict(params, state, batch)
  mesh, whole, whole_state, _ = both.in_one()
  predict = embeddings.make_row_predictor(
      lambda p, rows, b: both.model.apply(p, b['dense'], rows), both.exchange, mesh)
  np.testing.assert_allclose(found, predict(whole, whole_state, train.share_batch(batch, mesh)), rtol=1e-5)


def test_each_device_holds_its_own_stage_only():
  both = Both(2)
  params, state, _ = both.in_stages()
  devices = [{d for x in jax.tree.leaves((params[s], state[s])) for d in x.devices()} for s in range(3)]
  assert [len(d) for d in devices] == [2, 2, 2]
  assert len(set.union(*devices)) == 6


def test_what_cannot_work_is_refused():
  stages, _ = make_stages(SPLITS, Cut())
  with pytest.raises(ValueError, match='2 stages'):
    Pipeline(stages, dct_jax.make_mesh(2, stages=2), lambda s: make_mean(0))
  with pytest.raises(ValueError, match='sparsity'):
    Stage(lambda *x: x, (Cut(1.5),)).check()


def test_a_run_that_died_while_it_saved_goes_on_with_the_same_bits(tmp_path):
  """Stage 0 has saved step 4, stage 1 and 2 have not: all go on from step 2."""
  both = Both(2, dp=0.9)
  batches = list(make_batches(5))

  def go(params, state, first, last, checkpoints=None):
    losses = []
    for step in range(first, last):
      params, state, metrics = both.pipeline.step(params, state, batches[step])
      losses.append(metrics['loss'])
      if checkpoints is not None and step % 2:
        checkpoints.save(step + 1, params, state, {'total': step + 1})
    return params, state, losses

  params, state, specs = both.in_stages()
  kept = runtime.StageCheckpoints(tmp_path, {'a': 1}, both.pipeline.meshes)
  params, state, losses = go(params, state, 0, 5, kept)
  assert kept.latest() == 4
  for stage in (1, 2):
    shutil.rmtree(tmp_path / f'stage{stage}/4')

  fresh, other, specs = both.in_stages()
  again = runtime.StageCheckpoints(tmp_path, {'a': 1}, both.pipeline.meshes)
  assert again.latest() == 2 and again.totals(2) == {'total': 2}
  fresh, other, step = again.restore(fresh, other, specs, both.pipeline.meshes)
  assert step == 2
  fresh, other, more = go(fresh, other, 2, 5, again)
  assert more == losses[2:]
  jax.tree.map(np.testing.assert_array_equal, (fresh, other), (params, state))

  victim, = (tmp_path / 'stage1/4/notes').glob('metadata')  # all go back to step 2 if one stage is damaged
  victim.write_text(victim.read_text().replace('"total": 4', '"total": 5'))
  fresh, other, specs = both.in_stages()
  assert again.restore(fresh, other, specs, both.pipeline.meshes)[2] == 2
  assert all((tmp_path / f'stage{s}/damaged-4').exists() for s in range(3))


def test_without_a_step_of_all_stages_there_is_nothing_to_restore(tmp_path):
  both = Both(1)
  params, state, specs = both.in_stages()
  kept = runtime.StageCheckpoints(tmp_path, {}, both.pipeline.meshes)
  assert kept.latest() is None
  with pytest.raises(FileNotFoundError, match='all stages'):
    kept.restore(params, state, specs, both.pipeline.meshes)
