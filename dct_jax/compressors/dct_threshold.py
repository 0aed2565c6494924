"""DCT's threshold with a life-span: Algorithm 1 of the DCT paper, without the exchange."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dct_jax import axes, kernels
from dct_jax.arrays import add_residual
from dct_jax.compressors import fraction, stream
from dct_jax.contract import Compressor

SELECTIONS = ('select', 'sort')
_RETRY = -1.0  # a threshold that was due when the gradient was not finite
SMOOTHING = 0.1  # of the running mean that `tracking` follows
ALL = 2**32  # layers below this size are all layers


class DctThresholdState(NamedTuple):
  """State of `dct_threshold`."""

  step: jax.Array  # k of the paper, from 0
  tau: jax.Array  # float32[layers]; every worker has its own
  usual: jax.Array  # float32[layers], with tracking: entries that pass over those wanted, a running mean


def dct_threshold(
    sparsity: fraction.Fraction,
    lifespan: int = 1000,
    *,
    selection: str = 'select',
    early_refresh: bool = False,
    tracking: float = 0.0,
    index_codec: str = 'auto',
    value_codec: str = 'float32',
    dense_below: int = stream.DENSE_BELOW,
) -> Compressor:
  r"""Keeps the entries of each layer that reach a threshold which is renewed every `lifespan` steps.

  With :math:`w_1 \le \dots \le w_N` the sorted magnitudes of a layer plus its residual, every L steps

  .. math:: \tau = w_{\max(1, \lfloor N \eta \rfloor)}, \qquad M = [|W| \ge \tau] \wedge [W \ne 0],

  and :math:`\tau` is kept in between: the number of entries sent is free to drift.

  Args:
    sparsity: :math:`\eta` in [0, 1], or an optax schedule of it (a warm-up starts low). 0 means dense: all layers
      travel whole; where a schedule is 0, everything that is not zero is selected.
    lifespan: L; 1 renews the threshold in every step.
    selection: `'select'` finds the threshold with an exact selection kernel; `'sort'` copies and
      sorts, as the paper's authors did. The thresholds are equal, the cost is not.
    early_refresh: not in the paper. The first threshold is taken while the residual is still empty,
      so that later sums pass it 5 to 7 times too often until step L. With this, it is also
      renewed in steps 1, 2, 4, 8, ... below L.
    tracking: not in the paper. Between renewals a layer's threshold follows the number of entries that
      pass it: with r the running mean, over some ten steps, of that number over the wanted one, it is
      multiplied by :math:`r^{tracking}` in each step. 0 leaves it alone, 0.1 keeps messages at their nominal
      size.
    index_codec: how indices travel; `'auto'` takes the smallest.
    value_codec: how values travel; with error feedback nothing is lost to a narrow one.
    dense_below: layers with fewer entries travel whole.

  Returns:
    A `Compressor`. Wrap it with `error_feedback`.

  Examples:
    >>> import jax.numpy as jnp, dct_jax
    >>> c = dct_jax.dct_threshold(0.75, dense_below=0)
    >>> layers = (jnp.array([1.0, -4.0, 2.0, 3.0]),)
    >>> packed = c.compress(layers, None, c.init(layers), dct_jax.whole_room(c, layers))
    >>> packed.state.tau.tolist()
    [3.0]
    >>> c.decompress(packed.message[None], layers, None).layers[0].tolist()
    [0.0, -4.0, 0.0, 3.0]

  References:
    Gupta et al., Training Recommender Systems at Scale, KDD 2021, Algorithm 1.
  """
  sparsity = fraction.check('sparsity', sparsity, zero=True)
  lifespan, tracking = fraction.whole('lifespan', lifespan, 1), fraction.number('tracking', tracking)
  dense_below = fraction.whole('dense_below', dense_below, 0)
  if selection not in SELECTIONS:
    raise ValueError(f'selection must be one of {SELECTIONS}, got {selection=}')
  if not 0 <= tracking <= 1:
    raise ValueError(f'tracking must be in [0, 1], got {tracking=}')
  form = stream.StreamFormat(index_codec, value_codec, ALL if fraction.is_zero(sparsity) else dense_below)

  def init(layers):
    of_layers = lambda value: jnp.full(max(1, len(layers)), value, jnp.float32)
    return DctThresholdState(jnp.zeros((), jnp.int32), of_layers(0), of_layers(1))

  def share_at(step):
    return fraction.at(sparsity, step)

  def is_due(state):
    due = state.step % lifespan == 0
    if early_refresh:
      due |= (lax.population_count(state.step) == 1) & (state.step < lifespan)
    if tracking:  # nothing multiplies its way out of zero
      due |= (state.tau == 0).any()
    if callable(sparsity):  # a schedule leaves 0, where no threshold was taken
      due |= (share_at(state.step) > 0) & (share_at(jnp.maximum(state.step - 1, 0)) == 0)
    return due | (state.tau[0] == _RETRY)

  def compress(layers, residual, state, quota):
    rank = jnp.maximum(fraction.floor_of([x.size for x in layers], sparsity, state.step), 1)
    due = is_due(state)
    find = _sorted_threshold if selection == 'sort' else _selected_threshold
    tau = find(layers, residual, rank, state.tau, due & (quota.live != 0))
    if callable(sparsity):
      tau = jnp.where(share_at(state.step) > 0, tau, 0)
    selected = stream.pack(layers, residual, tau, None, quota, value_codec)
    usual = state.usual
    if tracking:
      assert selected.wanted_by_layer is not None, 'the fused pass counts'
      kept = jnp.array([x.size for x in layers], jnp.uint32) - rank + 1
      ratio = (selected.wanted_by_layer + 1).astype(jnp.float32) / (kept + 1).astype(jnp.float32)
      # A mean over some steps: residuals that reach a threshold together come in waves, all, then none.
      usual = jnp.where(due, 1.0, state.usual)
      usual = jnp.where(quota.live == 0, usual, usual + SMOOTHING * (jnp.minimum(ratio, 8.0) - usual))
      tau = jnp.where(quota.live == 0, tau, tau * jnp.clip(usual, 0.25, 4.0) ** tracking)
    missed = due & (quota.live == 0)
    return selected, DctThresholdState(state.step + 1, jnp.where(missed, _RETRY, tau), usual)

  def nominal(layers):
    return sum(x.size + 1 - max(1, fraction.floor_once(x.size, sparsity)) for x in layers)

  return form.compressor(init, compress, nominal)


def _selected_threshold(layers, residual, rank, old, refresh):
  return kernels.threshold(layers, residual, rank, old_tau=old, refresh=refresh)[0]


def _sorted_threshold(layers, residual, rank, old, refresh):
  """Copy and sort, for showing what it costs."""
  inputs = (*layers, *(residual or ()), rank, old, refresh)

  def compute():
    tables = add_residual(layers, residual)
    taus = [jnp.sort(jnp.abs(x))[r - 1] for x, r in zip(tables, rank, strict=True)]
    return axes.vary_as(jnp.stack(taus), inputs)

  return lax.cond(refresh, compute, lambda: axes.vary_as(old, inputs))
