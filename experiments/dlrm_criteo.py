"""DLRM on click data, with thresholded gradients (DCT-DP), activations (DCT-MP), and both.

    python experiments/dlrm_criteo.py                                        # synthetic clicks, 4 devices
    python experiments/dlrm_criteo.py --data=train.txt                       # Criteo Kaggle
    python experiments/dlrm_criteo.py --method=dp --dp_sparsity=0.98 --launch=processes
    python experiments/dlrm_criteo.py --method=hybrid --workers=2 --stages=3 --launch=processes   # 6 processes

A model can be tested on a file of one's own, and its predictions written to a file, with the flags that it was trained
with and

    ... --method=dp --workdir=DIRECTORY --test_data=mine.txt --predict=mine.csv    # or .parquet, or a number a line
"""

import pathlib

import numpy as np
from absl import app, logging

from dct_jax import measures, train
from dct_jax.data import clicks
from dct_jax.train import experiment, report
from shared import predictions, sparse
from shared.dlrm.setup import make_setup

experiment.define_flags(pathlib.Path(__file__).parents[1] / 'configs/dlrm_criteo.py', {
    'data': (str, "Path of a Criteo TSV, or of a directory with Frappe's files; synthetic clicks without it."),
    'test_data': (str, 'Path of another file in the same format to test on, instead of a part of --data.'),
    'test_share': (float, 'Share of the rows of a Criteo TSV, from its end, that is tested on instead of trained on; '
                   'with --test_data, 0 trains on all of them.'),
    'cache': (str, 'Directory in which a prepared TSV is kept.'),
    'rows': (int, 'Number of rows of the synthetic set to train with.'),
    'test_rows': (int, 'Number of rows of the synthetic set to test with.'),
    'batch': (int, 'Number of examples in a step, of all workers together.'),
    'learning_rate': (float, 'Learning rate of the MLPs; also that of the tables if --row_learning_rate is 0.'),
    'row_optimizer': (str, 'Optimizer of the tables: sgd, adagrad or row_adagrad.'),
    'row_learning_rate': (float, 'Learning rate of the tables; 0 takes --learning_rate.'),
    'row_codec': (str, 'Type in which rows and their gradients travel: float32, float16 or int8.'),
    'placement': (str, "Where tables are: 'dealt' out over workers, or 'replicated', with all tables on each."),
    'row_sum': (str, f'How gradients of rows of replicated tables are added up: {sparse.REDUCERS}.'),
    'dp_sparsity': (float, 'Share of the gradients that stays behind; 0 sends them dense.'),
    'lifespan': (int, 'Number of steps for which a threshold of gradients is kept.'),
    'tracking': (float, 'How fast thresholds follow their counts; 0 keeps them, as in the paper.'),
    'value_codec': (str, 'Type in which gradients travel: float32, float16 or bfloat16.'),
    'mp_sparsity': (float, 'Share of the activations that stays behind at a split.'),
    'splits': (str, 'Layers after which the model is cut: bottom1, ..., top3, with commas.'),
    'masks': (str, "Whether gradients of activations take the mask of these ('one') or choose their own ('apart')."),
    'stages': (int, 'Processes or devices of a worker: 1, or one more than splits for a pipeline of them.'),
    'microbatches': (int, "Number of parts of a worker's examples that are in the pipeline at once."),
    'selection': (str, "How thresholds of gradients are found: 'select', or 'sort' for the paper's copy-and-sort."),
    'activation_codec': (str, 'Type in which activations and their gradients travel: float32, float16 or int8.'),
    'evaluated': (int, 'Number of rows of either set that measures are of.'),
    'evaluate_every': (int, 'Number of steps between two evaluations.'),
    'checkpoint_every': (int, 'Number of steps between two checkpoints; the end and Ctrl-C make one anyway.'),
} | sparse.SKETCH_FLAGS)
# What a resumed run may change.
FREE = ('steps', 'workers', 'cache', 'test_data', 'evaluated', 'evaluate_every', 'checkpoint_every')


def make_evaluate(config, predict, sets):
  """(params, state) -> measures of the first rows of either set."""
  parts = {k: clicks.in_order(getattr(sets, k), config.evaluated, config.workers) for k in ('train', 'test')}
  known = {} if sets.best_loss is None else {'best_test_loss': sets.best_loss}

  def evaluate(params, state):
    out = dict(known)
    for name, batches in parts.items():
      logits = [predict(params, state, b._asdict()) for b in batches]
      measured = measures.of_clicks(np.concatenate(logits), np.concatenate([b.label for b in batches]))
      out |= {f'{name}_{k}': v for k, v in measured.items()}
    return out

  return evaluate


def load(config):
  """A training and a test set."""
  options = {'rows': config.rows, 'test_rows': config.test_rows}
  if config.data:
    options = {'test_share': config.test_share} if pathlib.Path(config.data).is_file() else {}
  return clicks.load(config.data, config.cache, test=config.test_data, **options)


def prepare(config, workdir):
  """Sets, what trains on them, and checkpoints."""
  sets = load(config)
  setup = make_setup(config, sets.test.dense.shape[1], sets.vocabularies)
  return sets, setup, setup.checkpoints(workdir / 'checkpoints', experiment.settings(config, FREE))


def predict(config, workdir, path):
  """Writes probabilities of clicks for all rows of the test set, in their order, by the model of a checkpoint."""
  sets, setup, checkpoints = prepare(config, workdir)
  params, state, step = checkpoints.restore(*setup.state, setup.meshes)
  logits = [setup.predict(params, state, b._asdict()) for b in clicks.padded(sets.test, config.workers)]
  logits = np.concatenate(logits)[:len(sets.test.label)].astype(np.float64)
  predictions.write(path, 1 / (1 + np.exp(-logits)), step)


def train_one(config, workdir, evaluation=None):
  """Trains with one method, into `workdir`; `evaluation` makes another `evaluate`, from config and sets."""
  sets, setup, checkpoints = prepare(config, workdir)
  if config.test_data and config.test_share and pathlib.Path(config.data).is_file():
    logging.warning('the last %.0f%% of the rows of --data are not used: --test_share=0 trains on them, too',
                    100 * config.test_share)
  params, state, start = experiment.resume(checkpoints, *setup.state, setup.meshes)

  mine, parts = setup.share
  rows = clicks.batches(sets.train, config.batch, config.seed, step=start, process=mine, processes=parts)
  evaluate = evaluation(config, sets) if evaluation else make_evaluate(config, setup.predict, sets)
  with train.MetricsWriter(workdir) as writer:
    train.run(setup.step, params, state, (b._asdict() for b in rows), steps=config.steps, start=start,
              metrics=writer, examples=config.batch, checkpoints=checkpoints, show=('test_auc',),
              evaluate=evaluate, evaluate_every=config.evaluate_every,
              checkpoint_every=config.checkpoint_every)


if __name__ == '__main__':
  app.run(experiment.main(train_one, compare=('baseline', 'dp', 'mp3', 'hybrid'),
                          columns=('train_loss', 'test_loss', 'test_accuracy', 'test_auc', 'test_ne'),
                          more=report.activation_table, curve='test_loss', predict=predict))
