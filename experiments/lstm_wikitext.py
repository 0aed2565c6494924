"""A word language model, with gradients of embedding rows that travel sparse.

    python experiments/lstm_wikitext.py                                          # a synthetic text, 4 devices
    python experiments/lstm_wikitext.py --data=wikitext2/ --method=gather,s2 --lam=0.5
    python experiments/lstm_wikitext.py --data=wikitext2/ --method=tied          # one table, softmax over all words
    python experiments/lstm_wikitext.py --method=union --launch=processes
"""

import pathlib

import jax
from absl import app, logging

from dct_jax import train
from dct_jax.data import words
from dct_jax.train import experiment, report
from shared import sparse
from shared.lstm.evaluation import Evaluation
from shared.lstm.setup import make_setup

experiment.define_flags(pathlib.Path(__file__).parents[1] / 'configs/lstm_wikitext.py', {
    'data': (str, "Directory with WikiText's files; a synthetic text of known entropy without it."),
    'batch': (int, 'Number of windows of a worker in a step.'),
    'length': (int, 'Number of words of a window, which begins from a zero state.'),
    'width': (int, 'Width of embeddings and of layers.'),
    'layers': (int, 'Number of LSTM layers of the model.'),
    'tied': (bool, 'Whether input and output share one table of embeddings.'),
    'softmax': (str, "Whether training compares a word with a few others ('sampled') or with all ('full')."),
    'negatives': (int, 'Number of words that a worker draws in a step, for the sampled softmax.'),
    'same_negatives': (bool, 'Whether all workers draw the same words for the sampled softmax.'),
    'dropout': (float, 'Share of entries that are dropped before and after every layer.'),
    'learning_rate': (float, 'Learning rate of the layers, at the beginning; it falls to 0 along a cosine.'),
    'clip': (float, "Largest norm of the layers' gradient; larger ones are scaled down to it."),
    'row_optimizer': (str, 'Optimizer of the tables: sgd, adagrad or row_adagrad.'),
    'row_learning_rate': (float, 'Learning rate of the tables, which stays the same.'),
    'rows': (str, f'How gradients of input rows are added up: {sparse.REDUCERS}.'),
    'output_rows': (str, 'How gradients of output rows are added up, by the names of --rows.'),
    'compressor': (str, 'How gradients of the layers are compressed: dense, bucket_top_k or block_top_k.'),
    'evaluated': (int, 'Number of words of either set that are predicted at an evaluation on the way.'),
    'evaluate_every': (int, 'Number of steps between two evaluations.'),
    'checkpoint_every': (int, 'Number of steps between two checkpoints; the end and Ctrl-C make one anyway.'),
} | sparse.SELECTION_FLAGS)
FREE = ('data', 'workers', 'evaluated', 'evaluate_every', 'checkpoint_every')  # what a resumed run may change


def load(config):
  """The texts; says what they are."""
  sets = words.load(config.data)
  if jax.process_index() == 0:
    best = '' if sets.best_perplexity is None else f', best possible perplexity {sets.best_perplexity:.2f}'
    print(f'{sets.name}: {len(sets.train):,}, {len(sets.valid):,} and {len(sets.test):,} words to train, validate and '
          f'test, {len(sets.vocabulary):,} different ones{best}')
  return sets


def train_one(config, workdir):
  """Trains with one method, into `workdir`; the whole test set is judged at the end."""
  sets = load(config)
  vocabulary = len(sets.vocabulary)
  setup = make_setup(config, vocabulary)
  evaluation = Evaluation(config, setup, sets)
  checkpoints = setup.checkpoints(workdir / 'checkpoints', experiment.settings(config, FREE))
  params, state, start = experiment.resume(checkpoints, *setup.state, setup.meshes)

  mine, parts = setup.share
  windows = words.batches(sets.train, config.workers, vocabulary=vocabulary, rows=config.batch, length=config.length,
                          negatives=config.negatives, same_negatives=config.same_negatives, seed=config.seed,
                          step=start, process=mine, processes=parts)
  with train.MetricsWriter(workdir) as writer:
    done = train.run(setup.step, params, state, windows, steps=config.steps, start=start, metrics=writer,
                     examples=config.workers * config.batch * config.length, unit='words', checkpoints=checkpoints,
                     show=('valid_perplexity',), evaluate=evaluation.on_the_way,
                     evaluate_every=config.evaluate_every, checkpoint_every=config.checkpoint_every)
    logging.info('the whole test set is predicted, which takes a while')
    last = train.read_metrics(workdir)[-1] if jax.process_index() == 0 else {}
    writer.write(config.steps, last | evaluation.at_the_end(done.params, done.opt_state))


if __name__ == '__main__':
  app.run(experiment.main(train_one, compare=('dense', 'gather', 'union', 's2'),
                          columns=('train_loss', 'valid_perplexity', 'test_perplexity'), more=report.row_table))
