"""Hierarchical training of a DLRM: what all variants share, and how each one differs."""

import ml_collections

from dct_jax.train import experiment


def base():
  config = ml_collections.ConfigDict()
  config.engine = 'virtual'
  config.data = ''  # a Criteo TSV, a directory with Frappe's files, or the synthetic set
  config.cache = 'runs/cache'
  config.rows = 2_000_000  # of the synthetic set, each seen once
  config.test_rows = 100_000
  config.vocabulary = 300  # ids of the synthetic set's largest field
  config.passes = 1
  config.batch = 32
  config.bottom = (32, 16, 8)
  config.top = (32, 16, 1)
  config.learning_rate = 0.005  # Adagrad; the largest with which one trainer with 96 nets does not swing
  config.row_learning_rate = 0.02
  config.seed = 0
  config.workers = 1  # processes of this script
  config.steps = 0  # batches; 0 for all rows
  # Groups of trainers and group servers; without servers a trainer is a group of its own.
  config.groups = 1
  config.trainers = 1
  config.servers = 0
  config.nets = 12
  config.sync = 'easgd'
  config.alpha = 0.1
  config.gap = 0.5  # seconds between synchronizations: some 8 batches of a trainer, or 10 of a group
  config.forward = 'exact'  # codecs of activations and of their gradients
  config.backward = 'exact'
  # A small net on machines that are as many times slower computes and sends for as long as a large one on fast ones.
  config.slower = 1000.0
  config.rate = '100gbit'
  config.cores = 18
  config.jitter = 0.1
  config.evaluations = 10
  return config


HT = {'trainers': 6, 'servers': 6}
VARIANTS = {
    'one': {'nets': 1},
    'easgd5': {'groups': 5},
    'easgd10': {'groups': 10},
    'easgd20': {'groups': 20},
    'easgd40': {'groups': 40},
    'nets12': {'nets': 12},
    'nets24': {'nets': 24},
    'nets48': {'nets': 48},
    'nets96': {'nets': 96},
    'ht5': {'groups': 5, **HT},
    'ht8': {'groups': 8, **HT},
    'ht10': {'groups': 10, **HT},
}


def get_config(variant: str = 'ht5'):
  return experiment.choose(base(), VARIANTS, variant)
