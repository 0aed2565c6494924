"""An MLP on scikit-learn's digits: what all methods share, and how each one differs."""

import ml_collections

import dct_jax
from dct_jax.train import experiment


def base():
  config = ml_collections.ConfigDict()
  config.workers = 8
  config.steps = 1500
  config.batch = 256  # of all workers together
  config.hidden = (256, 256)
  config.learning_rate = 0.1  # decays to 0 with a cosine
  config.momentum = 0.9
  config.weight_decay = 3e-3  # keeps the loss from going to 0, where 1% of it means nothing
  config.seed = 0
  config.sparsity = 0.99
  config.lifespan = 1000
  config.early_refresh = False
  config.tracking = 0.0
  config.value_codec = 'float32'
  return config


VARIANTS = {
    'dense': {},
    'dct': {},
    'dct_early': {'early_refresh': True},  # not in the paper: fewer bytes in the first steps
    # Not in the paper either: thresholds follow their counts, so that messages keep their size.
    'dct_tracked': {'tracking': 0.1, 'value_codec': 'float16'},
    'topk': {'lifespan': 1},  # a threshold of every step's own
}


def get_config(variant: str = 'dct'):
  return experiment.choose(base(), VARIANTS, variant)


def check(config):
  experiment.even_batch(config)
  dct_jax.dct_dp(config.sparsity, config.lifespan, tracking=config.tracking, value_codec=config.value_codec)
