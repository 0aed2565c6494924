"""Error feedback: what a message leaves out is added to the next gradient."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dct_jax.compressors import fraction
from dct_jax.contract import NOTHING, Compressor, Feedback, Layers


def error_feedback(compressor: Compressor, drain_period: int | None = None) -> Compressor:
  r"""Makes a transform keep a residual for `compressor`, whichever it is.

  With :math:`e_0 = 0`, each step compresses :math:`g_t + e_t` and keeps
  :math:`e_{t+1} = g_t + e_t - \text{sent}_t`: nothing is lost, only delayed. Compressors add and subtract
  inside their own kernels, in one pass over memory; this wrapper asks for it.

  Args:
    compressor: any `Compressor`.
    drain_period: if given, each entry of the residual is set to zero at random, once in so many
      steps on average, so that what was never sent does not grow stale (the DCT paper's Remark 2,
      which uses one million). What is drained is counted.

  Returns:
    A `Compressor`.

  References:
    Karimireddy et al., Error Feedback Fixes SignSGD, ICML 2019.
  """
  if drain_period is not None:
    drain_period = fraction.whole('drain_period', drain_period, 1)
  if compressor.conserves == NOTHING:
    raise ValueError('what this compressor sends is no amount (a vote, for example), so that nothing could be said '
                     'to be left: use it without error_feedback')
  return compressor._replace(feedback=Feedback(drain_period))


def empty_residual(layers: Layers) -> Layers:
  """Zeros in float32. A scalar has a residual of shape (1,), so that it can be sharded."""
  return tuple(jnp.zeros(jnp.shape(x) or (1,), jnp.float32) for x in layers)


def drain(residual: Layers, period: int, key: jax.Array) -> tuple[Layers, jax.Array]:
  """Zeroes each entry with a chance of 1 / period; returns how many were not zero before.

  One random offset a layer decides for every `period`-th entry at once: the chance is exact for each entry
  and independent between steps, and the cost is that of size / period entries, not of size.
  """
  drained, out = jnp.zeros((), jnp.uint32), []
  for i, e in enumerate(residual):
    flat = e.reshape(-1)
    start = jax.random.randint(jax.random.fold_in(key, i), (), 0, period)
    at = start + period * jnp.arange(-(-flat.size // period))
    at = jnp.where(at < flat.size, at, flat.size)
    drained += jnp.sum(flat.at[at].get(mode='fill', fill_value=0) != 0, dtype=jnp.uint32)
    out.append(flat.at[at].set(0, mode='drop').reshape(e.shape))
  return tuple(out), drained
