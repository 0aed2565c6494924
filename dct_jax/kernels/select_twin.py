"""Pure-JAX twins of the selection kernels: the same bits as the native ones, on any platform."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from dct_jax import axes
from dct_jax.arrays import add_residual
from dct_jax.kernels import cuts
from dct_jax.wire import values

NO_QUOTA = 0xFFFFFFFF  # of entries equal to a threshold, all go


def rows(x, segment):
  """A flat layer as [segments, length], short rows padded with NaN, which no comparison selects."""
  length = segment or max(x.size, 1)
  pad = -x.size % length
  return jnp.pad(x, (0, pad), constant_values=jnp.nan).reshape(-1, length)


def all_finite(layers):
  finite = jnp.stack([jnp.isfinite(g).all() for g in layers]).all()
  return finite.astype(jnp.uint32).reshape(1)


def order_statistic(x, rank):
  """Row-wise: the rank-th smallest magnitude (from 1), and how many entries are larger.

  Decides the 31 bits of the answer one by one, by counting: no sort, and the same on every platform.
  """
  bits = lax.bitcast_convert_type(jnp.abs(x), jnp.uint32)
  valid = ~jnp.isnan(x)

  def decide(i, answer):
    candidate = answer | (jnp.uint32(1) << (30 - i).astype(jnp.uint32))
    below = jnp.sum((bits < candidate[:, None]) & valid, axis=1, dtype=jnp.uint32)
    return jnp.where(below < rank, candidate, answer)

  start = axes.vary_as(jnp.zeros(bits.shape[:1], jnp.uint32), (x, rank))
  answer = lax.fori_loop(0, 31, decide, start)
  greater = jnp.sum((bits > answer[:, None]) & valid, axis=1, dtype=jnp.uint32)
  return lax.bitcast_convert_type(answer, jnp.float32), greater


def threshold(layers, residual, rank, old_tau, refresh, segment):
  def compute(_):
    taus, ties, at = [], [], 0
    for x in add_residual(layers, residual):
      table = rows(x, segment)
      r = rank[at:at + table.shape[0]]
      tau, greater = order_statistic(table, r)
      size = jnp.sum(~jnp.isnan(table), axis=1, dtype=jnp.uint32)
      taus.append(tau)
      ties.append(size - r + 1 - greater)
      at += table.shape[0]
    return jnp.concatenate(taus), jnp.concatenate(ties)

  def keep(_):
    return old_tau, jnp.full(rank.shape, jnp.uint32(NO_QUOTA))

  # Both branches must vary over the same axes, or their types differ.
  inputs = (*layers, *(residual or ()), rank, old_tau)
  spread = lambda branch: lambda _: axes.vary_as(branch(_), inputs)
  return lax.cond(refresh != 0, spread(compute), spread(keep), None)


def keep_mask(x, tau, ties, segment):
  """Entries of a flat layer at or above their threshold; of those equal to it, the first `ties`."""
  magnitude = jnp.abs(rows(x, segment))
  smallest = jnp.finfo(jnp.float32).tiny  # denormals are flushed: this means "not zero"
  keep = magnitude >= jnp.maximum(tau, smallest)[:, None]
  equal = magnitude == tau[:, None]
  order = jnp.cumsum(equal, axis=1, dtype=jnp.uint32)
  keep &= ~equal | (order <= ties[:, None])
  return keep.reshape(-1)[:x.size]


def pack(layers, residual, tau, ties, limit, live, capacity, segment, value_codec):
  sums = add_residual(layers, residual)
  masks, at = [], 0
  for x in sums:
    count = rows(x, segment).shape[0]
    masks.append(keep_mask(x, tau[at:at + count], ties[at:at + count], segment))
    at += count
  flat, mask = jnp.concatenate(sums), jnp.concatenate(masks) & (live != 0)
  order = jnp.cumsum(mask, dtype=jnp.uint32)
  limit = jnp.minimum(limit, capacity)
  cut = cuts.even(limit, order[-1])
  before = cut.at(order - mask)
  send = mask & (cut.at(order) > before)
  wanted = jnp.stack([jnp.sum(m & (live != 0), dtype=jnp.uint32) for m in masks])
  place = jnp.where(send, before, capacity)
  index = jnp.zeros(capacity, jnp.uint32).at[place].set(
      jnp.arange(flat.size, dtype=jnp.uint32), mode='drop')
  value = jnp.zeros(capacity, jnp.float32).at[place].set(flat, mode='drop')
  counts = jnp.concatenate([jnp.minimum(order[-1:], limit), wanted])
  return index, value, counts, new_residual(residual, flat, send, live, value_codec)


def new_residual(residual, flat, sent, live, value_codec):
  """What is left: all of an entry that stayed, the rounding error of one that was sent."""
  if residual is None:
    return None
  left = jnp.where(sent, flat - values.round_trip(flat, value_codec), flat)
  out, at = [], 0
  for e in residual:
    out.append(jnp.where(live != 0, left[at:at + e.size].reshape(e.shape), e))
    at += e.size
  return tuple(out)
