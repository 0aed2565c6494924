"""Translation, the DCT paper's Transformer and an LSTM model: what all methods share, and how each one differs."""

import ml_collections

from dct_jax.boundaries import Cut
from dct_jax.models import transformer
from dct_jax.partition import ready
from dct_jax.train import experiment

# Where the paper cuts the model for so many workers: in the FFN of these layers, after its ReLU. It names "the
# fifth encoder layer" twice; the second must be the decoder's.
CUTS = {2: 'enc5', 3: 'enc5,dec5', 5: 'enc3,enc5,dec3,dec5'}


def base():
  config = ml_collections.ConfigDict()
  config.data = ''  # a directory of parallel text; without, a synthetic language
  config.cache = ''  # where subwords are kept; the work directory without
  config.source, config.target = 'de', 'en'
  config.test = 'test*'  # the test set's files; a pattern that fits one
  config.lower = False
  config.tokenize = '13a'  # for BLEU
  config.vocabulary = 4000  # subwords of each language
  config.longest = 100  # subwords of a sentence; longer ones are left out of the training, and counted
  config.model = 'transformer'
  config.width = 128
  config.hidden = 512  # of an FFN
  config.heads = 4
  config.layers = 6  # of the encoder, and of the decoder
  config.norm = 'pre'
  config.share_embeddings = True  # of the decoder's input and output
  config.dropout = 0.1
  config.workers = 1
  config.tokens = 2048  # of a step: rows times the longer side, all workers together
  config.shapes = 5  # of batches, at most; each is compiled once
  config.steps = 600
  config.learning_rate = 2e-3  # the highest, at the end of the warm-up; then with the inverse square root
  config.warmup = 200
  config.label_smoothing = 0.1
  config.weight_decay = 1e-4
  config.decay = 'l2'  # in the gradient, as of PyTorch's Adam; 'decoupled' as of AdamW, and of fairseq's Adam
  config.adam = 'mean'  # of gradients; 'local': each worker has its own, of which the updates are averaged
  config.seed = 0
  config.compressor = 'dense'  # of gradients; the names are in experiments/shared/transformer/optimizer.py
  config.dp_sparsity = 0.99
  config.lifespan = 1000
  config.tracking = 0.1
  config.multiplier = 1.75  # of 3lc
  config.keep, config.block = 1 / 32, 256  # of block_top_k
  config.k, config.bucket = 4, 512  # of bucket_top_k
  config.collective = 'all_gather'  # of both; the names are in experiments/shared/sparse.py
  config.lam = 1.0  # of s2: numbers of the sketch for each entry
  config.lam_of = 'worker'
  config.sketch_rows = 1
  config.feed_back = False  # of the sketch's own error
  config.bits = 32  # of dsar
  config.rows = ''  # how rows of embeddings are added up; without, they are parameters like others
  config.row_optimizer = 'adagrad'
  config.row_learning_rate = 0.1
  config.splits = ''
  config.mp_sparsity = 0.0
  config.activation_codec = 'float32'
  config.stages = 1
  config.microbatches = 1
  config.average = 5  # checkpoints of which the mean is evaluated at the end
  config.beam = 5
  config.length_penalty = 1.0
  config.evaluated = 200  # sentences that are translated at an evaluation on the way
  config.evaluate_every = 200
  config.checkpoint_every = 100
  return config


GNMT = {'model': 'gnmt', 'layers': 2, 'dropout': 0.1, 'weight_decay': 0.0, 'learning_rate': 1.6e-2, 'warmup': 100,
        'workers': 4, 'shapes': 2, 'average': 1}

VARIANTS = {
    'baseline': {},
    **{f'mp{n}': {'splits': cuts, 'mp_sparsity': 0.9} for n, cuts in CUTS.items()},
    'dp': {'compressor': 'dct'},
    '3lc': {'compressor': '3lc'},
    'hybrid': {'compressor': 'dct', 'splits': CUTS[3], 'mp_sparsity': 0.9},
    'gnmt': GNMT,
    **{f'gnmt_{rows}': GNMT | {'rows': rows} for rows in ('gather', 'union', 's2', 'dense')},
    # S2 Reducer's blocks, and SparCML's top 2 and 4 of every 512.
    **{f'gnmt_blocks{end}': GNMT | {'compressor': 'block_top_k', 'collective': collective}
       for end, collective in (('', 'all_gather'), ('_s2', 's2'), ('_union', 'union_sum'))},
    **{f'gnmt_top{k}': GNMT | {'compressor': 'bucket_top_k', 'k': k} for k in (2, 4)},
    # fairseq's transformer_iwslt_de_en, and its recipe but for the text: subwords are sentencepiece's, of each
    # language apart, and the mean of checkpoints is evaluated instead of the best one.
    'iwslt': {'width': 512, 'hidden': 1024, 'vocabulary': 10_000, 'norm': 'post', 'dropout': 0.3,
              'longest': 175, 'lower': True, 'decay': 'decoupled',
              'tokens': 4096, 'learning_rate': 5e-4, 'warmup': 4000, 'steps': 50_000, 'checkpoint_every': 1000,
              'evaluate_every': 1000},
}


def get_config(variant: str = 'baseline'):
  return experiment.choose(base(), VARIANTS, variant)


def check(config):
  """Raises ValueError for what could not be built after subwords are there."""
  if config.model == 'transformer':
    parts = transformer.sections(config.splits, config.layers, config.share_embeddings)
    if config.stages > 1 and len(parts) != config.stages:
      raise ValueError(f'--stages={config.stages} wants {config.stages - 1} splits, got --splits={config.splits}')
  if config.stages == 1 and config.microbatches > 1:
    raise ValueError(f'only stages have microbatches, got --stages=1 and --microbatches={config.microbatches}')
  Cut(config.mp_sparsity, config.activation_codec).check()


def get_net(variant: str = 'baseline', batch: int = 0, length: int = 32):
  """What a worker trains, for `python -m dct_jax.partition plan`: sentences of one length."""
  config = get_config(variant)
  if config.model != 'transformer':
    raise ValueError(f'there is a net of the Transformer alone, got {config.model=}')
  return ready.transformer(
      batch=batch or max(1, config.tokens // length // config.workers), length=length, layers=config.layers,
      width=config.width, hidden=config.hidden, vocabulary=config.vocabulary, dropout=config.dropout,
      share_embeddings=config.share_embeddings)
