"""How the translation model's gradients are averaged over workers, and what is done with the mean."""

import jax.numpy as jnp
import optax

import dct_jax


def make_mean(config, transport):
  """How gradients are averaged over workers: `config.compressor`."""
  gather = dct_jax.all_gather() if transport is None else dct_jax.all_gather(transport=transport)
  fed_back = lambda compressor: dct_jax.compressed_mean(
      dct_jax.error_feedback(compressor), gather, axis_name='data')
  known = {
      'dense': lambda: dct_jax.dense_mean('data'),
      'dct': lambda: dct_jax.dct_dp(config.dp_sparsity, config.lifespan, 'data', tracking=config.tracking,
                                    value_codec='float16', collective=gather),
      '3lc': lambda: fed_back(dct_jax.three_lc(config.multiplier)),
      'top_k': lambda: fed_back(dct_jax.top_k(1 - config.dp_sparsity, value_codec='float16')),
      'qsgd': lambda: dct_jax.compressed_mean(dct_jax.qsgd(bits=4), gather, axis_name='data'),
  }
  if config.compressor not in known:
    raise ValueError(f'compressor must be one of {tuple(known)}, got {config.compressor=}')
  return known[config.compressor]()


def make_optimizer(config, transport):
  """Adam, after a warm-up with the inverse square root of the step."""
  rate = lambda step: config.learning_rate * jnp.minimum(
      (step + 1) / config.warmup, jnp.sqrt(config.warmup / (step + 1)))
  return optax.chain(make_mean(config, transport), optax.add_decayed_weights(config.weight_decay),
                     optax.adam(rate, b1=0.9, b2=0.98))
