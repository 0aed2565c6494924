"""Hierarchical training of a DLRM: what all variants share, and how each one differs."""

import ml_collections

from dct_jax.train import experiment


def base():
  config = ml_collections.ConfigDict()
  config.engine = 'virtual'  # or ray, or threads
  config.address = ''  # of a Ray cluster
  config.checkpoint_every = 30.0
  config.publish_every = 0.0
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
  config.feedback = 0  # batches until what gradients have lost is forgotten; 0 keeps nothing of it
  config.fc = 'float32'  # products of layers forward; int8 as the paper's Model-B
  # A small net on machines that are as many times slower computes and sends for as long as a large one on fast ones.
  config.slower = 1000.0
  config.rate = '100gbit'
  config.cores = 18
  config.jitter = 0.1
  config.evaluations = 10
  return config


HT = {'trainers': 6, 'servers': 6}
# A larger learning rate and less time for the network: what codecs do shows sooner.
EDGES_BASE = {'groups': 5, 'nets': 2, 'evaluations': 2, 'learning_rate': 0.02, 'gap': 0.05, 'rate': '10gbit', **HT}
EDGES = {
    'edges': {},
    'edges-int8-bfloat16': {'forward': 'int8', 'backward': 'bfloat16'},
    'edges-int8-int8': {'forward': 'int8', 'backward': 'int8'},
    'edges-int8-int4': {'forward': 'int8', 'backward': 'int4'},
    'edges-int4-bfloat16': {'forward': 'int4', 'backward': 'bfloat16'},
    'edges-int8-sparse': {'forward': 'int8', 'backward': 'sparse:0.9'},
    'edges-feedback10': {'forward': 'int8', 'backward': 'sparse:0.9', 'feedback': 10},
    'edges-feedback1000': {'forward': 'int8', 'backward': 'sparse:0.9', 'feedback': 1000},
    'edges-int8-half': {'forward': 'int8', 'backward': 'sparse:0.5'},
    'edges-feedback1000-half': {'forward': 'int8', 'backward': 'sparse:0.5', 'feedback': 1000},
    'edges-fc8': {'fc': 'int8'},
}
VARIANTS = {
    'one': {'nets': 1},
    'small': {'groups': 2, 'trainers': 2, 'servers': 2, 'nets': 3, 'rows': 100_000, 'test_rows': 20_000},
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
    # What travels in few bits (docs/codecs_on_edges.md).
    **{name: {**EDGES_BASE, **codecs} for name, codecs in EDGES.items()},
}


def get_config(variant: str = 'ht5'):
  return experiment.choose(base(), VARIANTS, variant)
