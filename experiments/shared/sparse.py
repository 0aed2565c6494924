"""Sparse gradients of experiments: which entries go, how they are added up, how rows of tables travel."""

import dct_jax
from dct_jax import tables

ALGORITHMS = ('recursive_double', 'split_all_gather', 'dsar')  # SparCML's
REDUCERS = 'gather, union, s2 or dense; split, between processes'
# Settings with their types and help texts, for the flags of experiments.
SKETCH_FLAGS = {
    'lam': (float, 'Size of the sketch of s2: its numbers over those that it stands for.'),
    'lam_of': (str, "Whose numbers --lam counts: those of a 'worker', as in the paper, or of the 'union' of all."),
    'sketch_rows': (int, 'Number of rows of the sketch of s2, of which the median is taken.'),
}
SELECTION_FLAGS = SKETCH_FLAGS | {
    'keep': (float, 'Share of the blocks of each layer that block_top_k sends.'),
    'block': (int, 'Number of consecutive entries that block_top_k sends together.'),
    'k': (int, 'Number of entries that bucket_top_k sends of each bucket.'),
    'bucket': (int, 'Number of consecutive entries of which bucket_top_k sends k.'),
    'collective': (str, 'How blocks and buckets are added up: all_gather, s2, union_sum, recursive_double, '
                   'split_all_gather or dsar.'),
    'feed_back': (bool, "Whether the sketch's own error is fed back and estimates shrunk: not in the paper."),
    'bits': (int, 'Bits of a value in the dense half of dsar: 2, 4, 8, or 32 for float32.'),
}


def make_collective(config, transport=None):
  """How sparse messages are added up: `config.collective`."""
  more = {} if transport is None else {'transport': transport}
  sparcml = lambda name: lambda: dct_jax.sparse_all_reduce(name, bits=config.bits % 32, **more)
  known = {
      'all_gather': lambda: dct_jax.all_gather(**more),
      's2': lambda: dct_jax.s2(config.lam, config.sketch_rows, of=config.lam_of, feed_back=config.feed_back, **more),
      'union_sum': lambda: dct_jax.union_sum(**more),
      **{name: sparcml(name) for name in ALGORITHMS},
  }
  return chosen('collective', config, known)


def check_feed_back(config):
  """Refuses to feed back the error of a sketch where gradients go through none: it would change nothing."""
  if config.feed_back and (config.compressor not in selections(config) or config.collective != 's2'):
    raise ValueError(f'feed_back is for a compressor of {tuple(selections(config))} with collective=s2, got '
                     f'{config.compressor=} and {config.collective=}')


def selections(config, **more):
  """Name -> what makes a compressor that sends some entries of a layer as they are."""
  return {
      'block_top_k': lambda: dct_jax.block_top_k(config.keep, config.block, **more),
      'bucket_top_k': lambda: dct_jax.bucket_top_k(config.k, config.bucket, **more),
  }


def make_reducer(config, transport=None, setting='rows'):
  """How the gradients of rows are added up: `config.rows`, or another setting."""
  known = {
      'gather': lambda: tables.gather_rows(transport=transport),
      'union': lambda: tables.union_rows(transport=transport),
      's2': lambda: tables.sketch_rows(config.lam, config.sketch_rows, of=config.lam_of, transport=transport),
      'dense': lambda: tables.dense_rows(transport=transport),
  }
  if transport is not None:
    known['split'] = lambda: tables.split_rows(transport)
  elif config[setting] == 'split':  # there are no owners to send rows to
    raise ValueError(f'{setting}=split needs a process for each worker: --launch=processes')
  return chosen(setting, config, known)


def chosen(name, config, known):
  """What a setting stands for."""
  if config[name] not in known:
    raise ValueError(f'{name} must be one of {tuple(known)}, got config.{name}={config[name]!r}')
  return known[config[name]]()
