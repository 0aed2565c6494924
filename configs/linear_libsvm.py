"""Linear models on sparse rows: what all algorithms of the exchange share."""

import pathlib

import ml_collections

from dct_jax.train import experiment

METHODS = ('auto', 'dense', 'all_gather', 'recursive_double', 'split_all_gather', 'dsar', 'union')


def base():
  config = ml_collections.ConfigDict()
  config.workers = 8
  config.dataset = 'libsvm'  # or urls, or synthetic (which is not real data)
  config.data = ''  # path of the training set, or of the URLs
  config.test = ''  # path of the test set; a tenth of the rows unless given
  config.num_features = 0  # what the data has by itself
  config.rows = 100_000  # of synthetic data
  config.positive_below = 0.0  # for several classes: labels below are +1, others -1; 0: there are two
  config.loss = 'logistic'  # or hinge, or squared
  config.penalty = 'none'  # or l1, or l2
  config.strength = 0.0  # of the penalty
  config.solver = 'sgd'  # or scd
  config.learning_rate = 10.0  # rows have length 1: far larger rates than usual are stable
  config.batch = 1000  # of a worker (SGD)
  config.picks = 100  # coordinates of a worker in a step (SCD)
  config.passes = 3
  config.steps = 0  # of a pass, at most; 0 is all
  config.seed = 0
  return config


def get_config(variant: str = 'split_all_gather'):
  return experiment.choose(base(), {name: {} for name in METHODS}, variant)


def check(config):
  """Raises what `data.linear.load` would after a while."""
  if config.dataset != 'synthetic' and not config.data:
    raise ValueError(f'--dataset={config.dataset} needs the path of its file: --data')
  if config.test and not pathlib.Path(config.test).exists():
    raise FileNotFoundError(f'--test={config.test}: there is no such file')
