"""How the translation model's gradients are averaged over workers, and what is done with the mean."""

import jax.numpy as jnp
import optax

import dct_jax
from dct_jax.runtime import means_apart
from shared import sparse


def make_mean(config, transport, shared=()):
  """How gradients are averaged over workers: `config.compressor`; those of `shared` parameters apart."""
  sparse.check_feed_back(config)
  gather = dct_jax.all_gather() if transport is None else dct_jax.all_gather(transport=transport)
  fed_back = lambda compressor, collective=gather: dct_jax.compressed_mean(
      dct_jax.error_feedback(compressor), collective, axis_name='data')
  selected = lambda make: lambda: fed_back(make(), sparse.make_collective(config, transport))
  known = {
      'dense': lambda: dct_jax.dense_mean('data'),
      'dct': lambda: dct_jax.dct_dp(config.dp_sparsity, config.lifespan, 'data', tracking=config.tracking,
                                    value_codec='float16', collective=gather),
      '3lc': lambda: fed_back(dct_jax.three_lc(config.multiplier)),
      'top_k': lambda: fed_back(dct_jax.top_k(1 - config.dp_sparsity, value_codec='float16')),
      'qsgd': lambda: dct_jax.compressed_mean(dct_jax.qsgd(bits=4), gather, axis_name='data'),
      **{name: selected(make) for name, make in sparse.selections(config).items()},
  }
  if config.compressor not in known:
    raise ValueError(f'compressor must be one of {tuple(known)}, got {config.compressor=}')
  return means_apart(known[config.compressor], shared)


def make_optimizer(config, transport, shared=()):
  """Adam, after a warm-up with the inverse square root of the step.

  With `config.adam` of 'mean' it sees the mean of the workers' gradients, as everybody has it. With 'local'
  each worker has an Adam of its own, and what is averaged (and compressed) are their updates.
  """
  warmup = max(config.warmup, 1)
  rate = lambda step: config.learning_rate * jnp.minimum((step + 1) / warmup, jnp.sqrt(warmup / (step + 1)))
  decays = {'l2': (config.weight_decay, 0.0), 'decoupled': (0.0, config.weight_decay)}
  if config.decay not in decays:
    raise ValueError(f'decay must be one of {tuple(decays)}, got {config.decay=}')
  l2, decoupled = decays[config.decay]
  mean = make_mean(config, transport, shared)
  adam = optax.chain(optax.add_decayed_weights(l2), optax.scale_by_adam(b1=0.9, b2=0.98))
  orders = {'mean': (mean, adam), 'local': (dct_jax.per_worker(adam), mean)}
  if config.adam not in orders:
    raise ValueError(f'adam must be one of {tuple(orders)}, got {config.adam=}')
  return optax.chain(*orders[config.adam], optax.add_decayed_weights(decoupled),
                     optax.scale_by_learning_rate(rate))
