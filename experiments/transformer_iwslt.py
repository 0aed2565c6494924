"""Translation with a Transformer that is cut inside its feed-forward networks (DCT-MP), or trained by many.

    python experiments/transformer_iwslt.py                                   # a synthetic language, no files
    python experiments/transformer_iwslt.py --data=multi30k/ --method=baseline,mp5 --mp_sparsity=0.95
    python experiments/transformer_iwslt.py --method=dp --workers=4           # compressed gradients
    python experiments/transformer_iwslt.py --method=mp3 --stages=3 --launch=processes    # activations travel
"""

import pathlib

import jax
import transformer_evaluation
import transformer_parallel
from absl import app, logging

from dct_jax import measures, train
from dct_jax.data.translation import batching as translation_batches
from dct_jax.data.translation import buckets
from dct_jax.data.translation import pairs as translation
from dct_jax.train import experiment, report

experiment.define_flags(pathlib.Path(__file__).parents[1] / 'configs/transformer_iwslt.py', {
    'data': (str, 'Directory with train, val and test files of both languages; synthetic without it.'),
    'cache': (str, 'Where subwords are kept; the work directory without it.'),
    'source': (str, 'Language that is translated from: the ending of its files.'),
    'target': (str, 'Language that is translated to.'),
    'test': (str, "Name of the test set's files, where there are several: a pattern."),
    'lower': (bool, 'Whether the model sees lower case only; BLEU then ignores case.'),
    'tokenize': (str, "sacrebleu's tokenizer; 'none' for tokenized text, as fairseq's IWSLT'14 is."),
    'vocabulary': (int, 'Subwords of each language.'),
    'longest': (int, 'Subwords of a sentence; training pairs with more are skipped, and counted.'),
    'width': (int, 'Of embeddings and the residual stream.'),
    'hidden': (int, 'Of feed-forward networks.'),
    'heads': (int, 'Of attention.'),
    'layers': (int, 'Of the encoder, and of the decoder.'),
    'norm': (str, "'pre' or 'post'."),
    'share_embeddings': (bool, "Whether the decoder's input and output share one table."),
    'dropout': (float, 'Share of entries that are dropped.'),
    'tokens': (int, 'Of a step: rows times the longer side, of all workers together.'),
    'shapes': (int, 'Of batches, by length, at most: each is compiled once.'),
    'learning_rate': (float, 'The highest one, at the end of the warm-up.'),
    'warmup': (int, 'Steps.'),
    'decay': (str, "Of weights: 'l2', in the gradient that Adam sees, or 'decoupled', as in AdamW."),
    'adam': (str, "Adam sees the 'mean' of gradients; or 'local' ones, and its updates are averaged."),
    'label_smoothing': (float, 'Share of a label that all other words have together.'),
    'compressor': (str, 'Of gradients: dense, dct, 3lc, top_k or qsgd.'),
    'dp_sparsity': (float, 'Share of the gradients that stays behind, of dct and top_k.'),
    'lifespan': (int, 'Steps for which a threshold of gradients is kept, of dct.'),
    'multiplier': (float, 'Sparsity multiplier of 3lc, in [1, 2).'),
    'splits': (str, 'Layers in which the model is cut: enc1, ..., dec6, with commas.'),
    'mp_sparsity': (float, 'Share of the hidden activations that stays behind at a cut.'),
    'activation_codec': (str, 'Of what crosses of them: float32, float16 or int8.'),
    'stages': (int, 'Processes or devices a worker: 1, or one more than splits, for a pipeline of them.'),
    'microbatches': (int, "Parts of a worker's examples that are on their way through the stages at once."),
    'average': (int, 'Checkpoints of which the mean is evaluated at the end.'),
    'beam': (int, 'Translations that are followed at once, at the end; 1 is greedy.'),
    'length_penalty': (float, 'Power of the length that scores are divided by.'),
    'evaluated': (int, 'Sentences that are translated at an evaluation on the way.'),
    'evaluate_every': (int, 'Steps between two evaluations.'),
    'checkpoint_every': (int, 'Steps between two checkpoints.')})
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
  setup = transformer_parallel.make(config, (sets.source_words.size, sets.target_words.size))
  shapes = buckets.choose(sets.train, config.tokens, multiple=config.workers * config.microbatches,
                          count=config.shapes)
  logging.info('%s', shapes)
  fixed = {k: v for k, v in config.to_dict().items() if k not in FREE}
  checkpoints = setup.checkpoints(workdir / 'checkpoints', fixed)
  params, state, start = experiment.resume(checkpoints, *setup.state, setup.meshes)
  mine, parts = setup.share
  rows = translation_batches.batches(sets.train, shapes, config.seed, step=start, process=mine, processes=parts)
  evaluation = transformer_evaluation.Evaluation(config, setup, sets, workdir)
  with train.MetricsWriter(workdir) as writer:
    train.run(setup.step, params, state, rows, steps=config.steps, start=start, metrics=writer,
              examples=len(sets.train.target.tokens) // shapes.steps, unit='tokens', checkpoints=checkpoints,
              show=('valid_perplexity', 'valid_bleu'), evaluate=evaluation.on_the_way,
              evaluate_every=config.evaluate_every, checkpoint_every=config.checkpoint_every)
    mean = checkpoints.mean_params(setup.state[0], setup.meshes, last=config.average,
                                   every=config.checkpoint_every)
    writer.write(config.steps, train.read_metrics(workdir)[-1] | evaluation.at_the_end(mean))


if __name__ == '__main__':
  app.run(experiment.main(train_one, compare=('baseline', 'mp2', 'mp3', 'mp5'),
                          columns=('train_loss', 'test_loss', 'test_nll', 'test_bleu'),
                          more=report.activation_table))
