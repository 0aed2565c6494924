"""DLRM on click data, with thresholded gradients (DCT-DP), activations (DCT-MP), and both.

    python experiments/dlrm_criteo.py                                        # synthetic clicks, 4 devices
    python experiments/dlrm_criteo.py --data=train.txt                       # Criteo Kaggle
    python experiments/dlrm_criteo.py --method=dp --dp_sparsity=0.98 --launch=processes
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app

import dct_jax
from dct_jax import train
from dct_jax.data import click_sets, clicks
from dct_jax.models import click_metrics, embeddings
from dct_jax.models.dlrm import Dlrm
from dct_jax.train import experiment, report

experiment.define_flags(pathlib.Path(__file__).parents[1] / 'configs/dlrm_criteo.py', {
    'data': (str, "A Criteo TSV, a directory with Frappe's files; synthetic clicks without it."),
    'cache': (str, 'Where a prepared TSV is kept.'),
    'rows': (int, 'Of the synthetic set, for training.'),
    'test_rows': (int, 'Of the synthetic set, for testing.'),
    'batch': (int, 'Examples a step, of all workers together.'),
    'learning_rate': (float, 'Of everything, or of all but the tables.'),
    'row_optimizer': (str, 'Of the tables: sgd, adagrad or row_adagrad.'),
    'row_learning_rate': (float, 'Of the tables, if another one.'),
    'row_codec': (str, 'How rows and their gradients travel: float32, float16 or int8.'),
    'dp_sparsity': (float, 'Share of the gradients that stays behind; 0 sends them dense.'),
    'lifespan': (int, 'Steps for which a threshold of gradients is kept.'),
    'tracking': (float, 'How fast thresholds follow their counts; 0 as in the paper.'),
    'value_codec': (str, 'Of gradients: float32, float16 or bfloat16.'),
    'mp_sparsity': (float, 'Share of the activations that stays behind at a split.'),
    'splits': (str, 'Where the model is cut: bottom1, ..., top3, with commas.'),
    'masks': (str, "'one' for both passes, or 'apart'."),
    'activation_codec': (str, 'Of activations and their gradients: float32, float16 or int8.'),
    'evaluated': (int, 'Rows of either set that losses are of.'),
    'evaluate_every': (int, 'Steps between two evaluations.')})


def make_model(config):
  cut = lambda: dct_jax.SparseBoundary(config.mp_sparsity, config.activation_codec, config.masks)
  names = [name for name in config.splits.split(',') if name]
  return Dlrm(config.bottom, config.top, {name: cut() for name in names})


def make_mean(config):
  if not config.dp_sparsity:
    return dct_jax.dense_mean('data')
  return dct_jax.dct_dp(config.dp_sparsity, config.lifespan, 'data', tracking=config.tracking,
                        value_codec=config.value_codec)


def make_loss(model):
  def loss_fn(params, rows, batch):
    logits, state = model.apply(params, batch['dense'], rows, mutable=['traffic'])
    loss = optax.sigmoid_binary_cross_entropy(logits, batch['label']).mean()
    cuts = jax.tree.leaves(state.get('traffic', {}), is_leaf=lambda x: 'dense_bytes' in x)
    total = lambda name: sum((cut[name] for cut in cuts), jnp.float32(0))
    return loss, {f'activation_{k}': total(k) for k in ('forward_bytes', 'backward_bytes', 'dense_bytes')}

  return loss_fn


def make_evaluate(config, model, exchange, sets, mesh):
  """(params, state) -> measures of the first rows of either set."""
  predict = train.make_row_predictor(lambda p, rows, b: model.apply(p, b['dense'], rows), exchange, mesh)
  parts = {k: clicks.in_order(getattr(sets, k), config.evaluated, mesh.size) for k in ('train', 'test')}

  def evaluate(params, state):
    out = {}
    for name, batches in parts.items():
      logits = [predict(params, state, train.share_batch(b._asdict(), mesh)) for b in batches]
      measured = click_metrics.measure(np.concatenate(logits), np.concatenate([b.label for b in batches]))
      out |= {f'{name}_{k}': v for k, v in measured.items()}
    return out

  return evaluate


def train_one(config, workdir, evaluation=None):
  """Trains with one method, into `workdir`; `evaluation` makes another `evaluate`, from config and sets."""
  mesh, model = dct_jax.make_mesh(config.workers), make_model(config)
  synthetic = {} if config.data else {'rows': config.rows, 'test_rows': config.test_rows}
  sets = click_sets.load(config.data, config.cache, **synthetic)
  layout = embeddings.deal(sets.vocabularies, config.workers)
  exchange = dct_jax.RowExchange(layout, 'data', codec=config.row_codec)
  row_optimizer = embeddings.make_optimizer(
      config.row_optimizer, config.row_learning_rate or config.learning_rate)
  tx = optax.chain(make_mean(config), optax.sgd(config.learning_rate))
  key, width = jax.random.PRNGKey(config.seed), config.bottom[-1]
  some_rows = jnp.zeros((1, len(sets.vocabularies), width))
  params = {'params': model.init(key, sets.test.dense[:1], some_rows)['params']}
  params, state, specs = dct_jax.init(tx, params, mesh)
  state, specs = train.init_rows(row_optimizer, embeddings.init_tables(key, layout, width), state, specs, mesh)
  free = ('steps', 'cache', 'evaluated', 'evaluate_every')  # what a resumed run may change
  fixed = {k: v for k, v in config.to_dict().items() if k not in free}
  checkpoints = train.Checkpoints(workdir / 'checkpoints', fixed, keep=1)
  params, state, start = experiment.resume(checkpoints, params, state, specs, mesh)
  step = train.make_row_step(make_loss(model), tx, row_optimizer, exchange, mesh, specs)
  mine = {'process': jax.process_index(), 'processes': jax.process_count()}
  batches = (train.shard_batch(b._asdict(), mesh)
             for b in clicks.batches(sets.train, config.batch, config.seed, step=start, **mine))
  evaluate = evaluation(config, sets) if evaluation else make_evaluate(config, model, exchange, sets, mesh)
  with train.MetricsWriter(workdir) as writer:
    train.run(step, params, state, batches, steps=config.steps, start=start, metrics=writer,
              examples=config.batch, checkpoints=checkpoints, show=('test_auc',),
              evaluate=evaluate, evaluate_every=config.evaluate_every)


if __name__ == '__main__':
  app.run(experiment.main(train_one, compare=('baseline', 'dp', 'mp3', 'hybrid'),
                          columns=('train_loss', 'test_loss', 'test_accuracy', 'test_auc', 'test_ne'),
                          more=report.activation_table))
