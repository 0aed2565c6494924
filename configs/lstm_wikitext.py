"""A word language model: what all methods share, and how each one differs."""

import ml_collections

from dct_jax.train import experiment


def base():
  config = ml_collections.ConfigDict()
  config.data = ''  # a directory with WikiText's files; without, a synthetic text of known entropy
  config.workers = 4
  config.batch = 20  # windows of a worker
  config.length = 35  # words of a window; each begins from a zero state
  config.steps = 1500  # two passes over WikiText-2
  config.width = 200
  config.layers = 1
  config.tied = False
  config.softmax = 'sampled'
  config.negatives = 1024  # that a worker draws in a step
  config.same_negatives = False
  config.dropout = 0.2
  config.learning_rate = 2e-3  # of Adam, for the layers; it falls to 0 along a cosine
  config.clip = 1.0  # the largest norm of the layers' gradient
  config.row_optimizer = 'adagrad'
  config.row_learning_rate = 0.2
  config.seed = 0
  config.rows = 'gather'  # how gradients of input rows are added up; the names are in experiments/shared/sparse.py
  config.output_rows = 'gather'
  config.lam = 1.0  # of s2: numbers of the sketch for each entry
  config.lam_of = 'worker'
  config.sketch_rows = 1
  config.feed_back = False  # of the sketch's own error
  config.compressor = 'dense'  # of the layers' gradients
  config.collective = 'all_gather'  # that these go through; the names are in experiments/shared/sparse.py
  config.keep, config.block = 1 / 32, 256  # of block_top_k
  config.k, config.bucket = 4, 512  # of bucket_top_k
  config.bits = 32  # of dsar
  config.evaluated = 14_000  # words of either set that are predicted at an evaluation on the way
  config.evaluate_every = 250
  config.checkpoint_every = 500
  return config


VARIANTS = {
    'dense': {'rows': 'dense', 'output_rows': 'dense'},
    'gather': {},
    'union': {'rows': 'union'},
    's2': {'rows': 's2'},
    # With the softmax over all words, the output table has a dense gradient; and the input table, if both are one.
    'full': {'softmax': 'full'},
    'tied': {'softmax': 'full', 'tied': True},
    # As SparCML has LSTMs in section 6.1: the largest 2 or 4 of every 512 entries.
    'top2': {'compressor': 'bucket_top_k', 'k': 2},
    'top4': {'compressor': 'bucket_top_k', 'k': 4},
    # As S2 Reducer has them: the largest of blocks.
    'blocks': {'compressor': 'block_top_k'},
}


def get_config(variant: str = 'gather'):
  return experiment.choose(base(), VARIANTS, variant)
