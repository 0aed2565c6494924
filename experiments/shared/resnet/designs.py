"""The designs that 3LC's paper compares: how gradients get to a parameter server, and deltas back.

Workers own equal slices of every layer (`dct_jax.push_pull`). Kernels are compressed; what is small, and so
all of batch normalization, travels whole. Beside them are means of sparse gradients, without servers.
"""

import optax

import dct_jax
from dct_jax.models.resnet import is_kernel
from shared import sparse
from shared.resnet.models import make_model


def small(config):
  """Entries of a slice below which it travels whole: any of normalization has fewer, no kernel has."""
  return -(-make_model(config).widest // config.workers) + 1


def compressors(config, multiplier):
  """Name -> compressor of pushes or of pulls, as the paper's section 4.2 has them."""
  feedback, whole = dct_jax.error_feedback, small(config)
  return {
      'float32': lambda: dct_jax.cast('float32'),
      'int8': lambda: dct_jax.int8(dense_below=whole),
      'ternary': lambda: dct_jax.stochastic_ternary(seed=config.seed, dense_below=whole),
      'one_bit': lambda: feedback(dct_jax.one_bit(dense_below=whole)),
      'sparse': lambda: feedback(dct_jax.sampled_top_k(0.05, seed=config.seed, dense_below=whole)),
      'three_lc': lambda: feedback(
          dct_jax.three_lc(multiplier, dense_below=whole, zero_runs=config.zero_runs)),
  }


def sparse_means(config, transport):
  """Name -> mean of the workers' gradients; what is no kernel is averaged exactly."""
  fed_back = lambda make: lambda: dct_jax.compressed_mean(
      dct_jax.error_feedback(make()), sparse.make_collective(config, transport), 'data', mask=is_kernel)
  return {
      'dct': lambda: dct_jax.dct_dp(config.sparsity, config.lifespan, 'data', mask=is_kernel),
      **{name: fed_back(make) for name, make in sparse.selections(config).items()},
  }


def has_servers(config):
  """Whether parameters are on servers, and workers have copies of them."""
  return config.compressor in compressors(config, config.multiplier)


def make_optimizer(config, transport=None):
  """How local gradients become updates; the moving averages follow the first worker's."""
  sparse.check_feed_back(config)
  exchanges = config.steps // config.local_steps
  peak = config.learning_rate * config.workers
  rate = optax.warmup_cosine_decay_schedule(
      0.0, peak, int(config.warmup * exchanges), exchanges, end_value=0.01 * peak)
  decay = config.weight_decay * config.local_steps  # of as many gradients as are added up
  weights = optax.chain(optax.add_decayed_weights(decay, is_kernel),
                        optax.sgd(rate, momentum=config.momentum))
  by_kind = {'params': weights, 'batch_stats': optax.sgd(1.0)}
  apart = optax.multi_transform(by_kind, lambda tree: {k: k for k in tree})
  means, known = sparse_means(config, transport), compressors(config, config.multiplier)
  if config.compressor in means:
    return optax.chain(means[config.compressor](), apart)
  if config.compressor not in known:
    raise ValueError(f'compressor must be one of {(*means, *known)}, got {config.compressor=}')
  push = known[config.compressor]()
  pull = compressors(config, config.pull_multiplier or config.multiplier)[config.compressor]()
  # One rung: as in the paper, a message is never cut short, also between devices of one process.
  server = dct_jax.push_pull(
      push, pull, apart, 'data', workers=config.workers, rungs=1, transport=transport)
  if config.local_steps == 1:
    return server
  # The paper's are accumulated, not averaged.
  return dct_jax.accumulate(optax.chain(optax.scale(float(config.local_steps)), server), config.local_steps)
