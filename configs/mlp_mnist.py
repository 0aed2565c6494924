"""SparCML's MLP on MNIST: what all methods share, and how each one differs."""

import ml_collections

from dct_jax.partition import ready
from dct_jax.train import experiment


def base():
  config = ml_collections.ConfigDict()
  config.data = ''  # a directory with MNIST's four files; without, a small stand-in
  config.workers = 4
  config.batch = 512  # of all workers together
  config.steps = 117  # one pass over MNIST
  config.hidden = 4096  # width of each of the two hidden layers
  config.learning_rate = 0.05  # decays to 0 with a cosine
  config.momentum = 0.9
  config.seed = 0
  config.k = 0  # entries kept of each bucket; 0 keeps all
  config.bucket = 512
  config.bits = 32  # of a value that travels dense
  config.dense_below = 10_000  # layers with fewer entries travel whole
  config.algorithm = 'all_gather'
  config.evaluated = 10_000  # rows of either set that the losses are of
  config.evaluate_every = 39
  return config


VARIANTS = {
    'dense': {},
    'q4': {'bits': 4},
    # Table 3: the largest 16 of every 512; in the second half of the exchange sums are dense, and have 4 bits.
    'top16_q4': {'k': 16, 'bits': 4, 'algorithm': 'dsar'},
    **{f'topk{k}': {'k': k} for k in (1, 2, 4, 8, 16, 32)},  # Figure 5
}


def get_config(variant: str = 'topk16'):
  return experiment.choose(base(), VARIANTS, variant)


def check(config):
  experiment.even_batch(config)


def get_net(variant: str = 'dense', batch: int = 0):
  """What a worker trains, for `python -m dct_jax.partition plan`."""
  config = get_config(variant)
  return ready.mlp(batch=batch or config.batch // config.workers, layers=3, width=config.hidden)
