"""Ready-made transformations: the names that a training script starts with."""

from __future__ import annotations

from typing import Any

import optax

from dct_jax import axes, compressors
from dct_jax.collectives.psum import psum
from dct_jax.compressors import fraction, stream
from dct_jax.contract import Collective
from dct_jax.transforms.compressed_mean import compressed_mean


def dct_dp(
    sparsity: fraction.Fraction = 0.99,
    lifespan: int = 1000,
    axis_name: axes.AxisName | None = None,
    mask: Any | None = None,
    *,
    value_codec: str = 'float32',
    index_codec: str = 'auto',
    dense_below: int = stream.DENSE_BELOW,
    selection: str = 'select',
    early_refresh: bool = False,
    tracking: float = 0.0,
    drain_period: int | None = None,
    nonfinite: str = 'skip',
    collective: Collective | None = None,
    seed: int = 0,
) -> optax.GradientTransformation:
  """DCT-DP: thresholded gradients with error feedback (Algorithm 1 of the DCT paper).

  Args:
    sparsity: share of each layer that stays behind, in [0, 1], of which 0 sends everything; or an optax schedule of
      it, whose values are clipped.
    lifespan: steps for which a threshold is kept.
    axis_name: mapped axis of the workers; None runs on one worker.
    mask: tree of booleans or a function of the parameters; what it leaves out goes dense.
    value_codec: 'float32', 'float16' or 'bfloat16'; the residual keeps what rounding takes away.
    index_codec: 'auto', 'int32', 'gap16', 'bitmap' or 'rice'.
    dense_below: layers with fewer entries travel whole, in the same message.
    selection: 'select', or 'sort' for the paper's own copy-and-sort.
    early_refresh: renew the threshold in steps 1, 2, 4, ... too, while the residual fills.
    tracking: 0.1 lets thresholds follow the number of entries sent, between renewals; 0 as in the paper.
    drain_period: expected steps until an entry of the residual is forgotten (Remark 2); None: never.
    nonfinite: 'skip', 'raise' or 'pass'; see `compressed_mean`.
    collective: `all_gather()` unless given.
    seed: of the drain.

  Returns:
    An `optax.GradientTransformation`; chain an optimizer after it.

  Examples:
    >>> import dct_jax, jax.numpy as jnp, optax
    >>> tx = optax.chain(dct_jax.dct_dp(sparsity=0.75, dense_below=0), optax.sgd(1.0))
    >>> params = jnp.zeros(4)
    >>> updates, _ = tx.update(jnp.array([1.0, -4.0, 2.0, 3.0]), tx.init(params), params)
    >>> updates.tolist()
    [-0.0, 4.0, -0.0, -3.0]

  References:
    Gupta et al., Training Recommender Systems at Scale, KDD 2021.
  """
  compressor = compressors.dct_threshold(
      sparsity, lifespan, selection=selection, early_refresh=early_refresh, tracking=tracking,
      index_codec=index_codec, value_codec=value_codec, dense_below=dense_below)
  return compressed_mean(
      compressors.error_feedback(compressor, drain_period), collective, axis_name, mask=mask,
      nonfinite=nonfinite, seed=seed)


def dense_mean(axis_name: axes.AxisName | None = None, *,
               nonfinite: str = 'skip') -> optax.GradientTransformation:
  """The exact mean over workers, with the same interface, checks and accounts: the baseline."""
  return compressed_mean(compressors.identity(), psum(), axis_name, nonfinite=nonfinite)
