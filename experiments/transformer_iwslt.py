"""Translation with a Transformer that is cut inside its feed-forward networks (DCT-MP), or trained by many.

    python experiments/transformer_iwslt.py                                   # a synthetic language, no files
    python experiments/transformer_iwslt.py --data=multi30k/ --method=baseline,mp5 --mp_sparsity=0.95
    python experiments/transformer_iwslt.py --method=dp --workers=4           # compressed gradients
    python experiments/transformer_iwslt.py --method=mp3 --stages=3 --launch=processes    # activations travel
    python experiments/transformer_iwslt.py --method=gnmt,gnmt_blocks         # LSTMs in GNMT's shape
"""

import pathlib

import jax
from absl import app, logging

from dct_jax import measures, train
from dct_jax.data import translation
from dct_jax.data.translation import buckets
from dct_jax.train import experiment, report
from shared import sparse
from shared.transformer.evaluation import Evaluation
from shared.transformer.setup import make_setup

experiment.define_flags(pathlib.Path(__file__).parents[1] / 'configs/transformer_iwslt.py', {
    'data': (str, 'Directory with train, val and test files of both languages; a synthetic language without it.'),
    'cache': (str, 'Directory in which subwords are kept; the work directory without it.'),
    'source': (str, 'Language that is translated from: the ending of its files.'),
    'target': (str, 'Language that is translated to: the ending of its files.'),
    'test': (str, "Pattern of the names of the test set's files, where there are several sets."),
    'lower': (bool, 'Whether the model sees lower case only; BLEU then ignores case.'),
    'tokenize': (str, "Tokenizer of sacrebleu; 'none' for tokenized text, as fairseq's IWSLT'14 is."),
    'vocabulary': (int, 'Number of subwords of each language.'),
    'longest': (int, 'Most subwords of a sentence; training pairs with more are skipped, and counted.'),
    'model': (str, "Whether a 'transformer' translates, or 'gnmt', LSTMs with attention."),
    'width': (int, 'Width of embeddings and of the residual stream.'),
    'hidden': (int, 'Width of the hidden layer of feed-forward networks.'),
    'heads': (int, 'Number of heads of attention.'),
    'layers': (int, 'Number of layers of the encoder, and of the decoder.'),
    'norm': (str, "Where layers are normalized: 'pre' or 'post', before or after what they do."),
    'share_embeddings': (bool, "Whether the decoder's input and output share one table."),
    'dropout': (float, 'Share of entries that are dropped.'),
    'tokens': (int, 'Size of a step: rows times the longer side, of all workers together.'),
    'shapes': (int, 'Most shapes of batches, by length; each is compiled once.'),
    'learning_rate': (float, 'Highest learning rate, at the end of the warm-up.'),
    'warmup': (int, 'Number of steps in which the learning rate grows from 0.'),
    'decay': (str, "Decay of weights: 'l2', in the gradient that Adam sees, or 'decoupled', as in AdamW."),
    'adam': (str, "Whether Adam sees the 'mean' of gradients, or 'local' ones, and its updates are averaged."),
    'label_smoothing': (float, 'Share of a label that all other words have together.'),
    'compressor': (str, 'How gradients are compressed: dense, dct, 3lc, top_k, qsgd, block_top_k or bucket_top_k.'),
    'dp_sparsity': (float, 'Share of the gradients that stays behind with dct and top_k.'),
    'lifespan': (int, 'Number of steps for which dct keeps a threshold of gradients.'),
    'multiplier': (float, 'Sparsity multiplier of 3lc, in [1, 2).'),
    'rows': (str, f"How rows of gnmt's embeddings are added up, apart from all else: {sparse.REDUCERS}; "
             'with nothing they are parameters like others.'),
    'row_optimizer': (str, 'Optimizer of these rows: sgd, adagrad or row_adagrad.'),
    'row_learning_rate': (float, 'Learning rate of these rows.'),
    'splits': (str, 'Layers in which the model is cut: enc1, ..., dec6, with commas.'),
    'mp_sparsity': (float, 'Share of the hidden activations that stays behind at a cut.'),
    'activation_codec': (str, 'Type in which hidden activations cross a cut: float32, float16 or int8.'),
    'stages': (int, 'Processes or devices of a worker: 1, or one more than splits for a pipeline of them.'),
    'microbatches': (int, "Number of parts of a worker's examples that are in the pipeline at once."),
    'average': (int, 'Number of checkpoints of which the mean is evaluated at the end.'),
    'beam': (int, 'Number of translations that are followed at once, at the end; 1 is greedy.'),
    'length_penalty': (float, 'Power of the length that scores are divided by.'),
    'evaluated': (int, 'Number of sentences that are translated at an evaluation on the way.'),
    'evaluate_every': (int, 'Number of steps between two evaluations.'),
    'checkpoint_every': (int, 'Number of steps between two checkpoints.'),
} | sparse.SELECTION_FLAGS)
FREE = ('steps', 'data', 'cache', 'workers', 'evaluated', 'evaluate_every', 'checkpoint_every', 'average',
        'beam', 'length_penalty')  # what a resumed run may change


def check(config):
  """What would otherwise fail at the first evaluation, or after all training."""
  for name in ('evaluated', 'average', 'beam', 'shapes'):
    if config[name] < 1:
      raise ValueError(f'--{name} must be at least 1, got {config[name]}')
  if not 0 <= config.label_smoothing < 1:
    raise ValueError(f'--label_smoothing must be in [0, 1), got {config.label_smoothing}')
  measures.bleu(['a'], ['a'], tokenize=config.tokenize)


def load(config, workdir):
  """The sets of sentences in subwords; says what was skipped."""
  if not config.data:
    logging.warning('no --data: this is a synthetic language, whose perfect translation is known')
  sets = translation.load(config.data, config.cache or workdir.parent / 'subwords', source=config.source,
                          target=config.target, size=config.vocabulary, longest=config.longest,
                          lower=config.lower, test=config.test)
  if jax.process_index() == 0:
    print('\n'.join(map(str, sets.reports)))
  return sets


def train_one(config, workdir):
  """Trains with one method; everything worth keeping is in `workdir` afterwards."""
  check(config)
  sets = load(config, workdir)
  setup = make_setup(config, (sets.source_words.size, sets.target_words.size))
  shapes = buckets.choose(sets.train, config.tokens, multiple=config.workers * config.microbatches,
                          count=config.shapes)
  logging.info('%s', shapes)
  checkpoints = setup.checkpoints(workdir / 'checkpoints', experiment.settings(config, FREE))
  params, state, start = experiment.resume(checkpoints, *setup.state, setup.meshes)

  mine, parts = setup.share
  rows = translation.batches(sets.train, shapes, config.seed, step=start, process=mine, processes=parts)
  evaluation = Evaluation(config, setup, sets, workdir)
  with train.MetricsWriter(workdir) as writer:
    done = train.run(setup.step, params, state, rows, steps=config.steps, start=start, metrics=writer,
                     examples=len(sets.train.target.tokens) // shapes.steps, unit='tokens', checkpoints=checkpoints,
                     show=('valid_perplexity', 'valid_bleu'), evaluate=evaluation.on_the_way,
                     evaluate_every=config.evaluate_every, checkpoint_every=config.checkpoint_every)
    last = evaluation.at_the_end(*final_model(config, setup, checkpoints, done))
    writer.write(config.steps, train.read_metrics(workdir)[-1] | last)


def final_model(config, setup, checkpoints, done):
  """What is evaluated at the end: the mean of the last checkpoints, or the last parameters and their tables."""
  if config.rows:
    return done.params, done.opt_state
  return checkpoints.mean_params(setup.state[0], setup.meshes, last=config.average, every=config.checkpoint_every), None


if __name__ == '__main__':
  app.run(experiment.main(train_one, compare=('baseline', 'mp2', 'mp3', 'mp5'),
                          columns=('train_loss', 'test_loss', 'test_nll', 'test_bleu'),
                          more=report.activation_table))
