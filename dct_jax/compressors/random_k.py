"""A random share of the entries, the same for all workers or each its own."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dct_jax.compressors import linear, stream
from dct_jax.compressors.fraction import check, floor_once
from dct_jax.contract import Compressor, Packed, Size, Unpacked
from dct_jax.kernels import choices
from dct_jax.kernels.choices import Purpose


class RandomKState(NamedTuple):
  """State of `random_k`."""

  step: jax.Array


def random_k(
    keep: float,
    *,
    shared: bool = False,
    seed: int = 0,
    index_codec: str = 'auto',
    value_codec: str = 'float32',
    dense_below: int = stream.DENSE_BELOW,
) -> Compressor:
  """Keeps a random share of each layer: one entry of each of k equal stretches.

  Entries have the same chance (to within the rounding of a stretch to whole entries), and exactly
  `k = max(1, floor(keep * size))` travel. Drawing from stretches rather than from the whole layer costs k
  random numbers instead of a permutation.

  Args:
    keep: in (0, 1].
    shared: all workers pick the same entries, so that indices need not travel and messages add
      up on the way (`linear`); otherwise each picks its own.
    seed: of the random numbers, which differ between groups of layers and steps; if not shared, between workers.
    index_codec: how indices travel; not used when shared.
    value_codec: how values travel; float32 when shared.
    dense_below: layers with fewer entries travel whole; not used when shared.

  Returns:
    A `Compressor`.

  References:
    Stich et al., Sparsified SGD with Memory, NeurIPS 2018.
  """
  check('keep', keep)
  if shared and value_codec != 'float32':
    raise ValueError(f'shared messages are summed on the way as float32, got {value_codec=}')
  return _of_group(keep, shared, seed, stream.StreamFormat(index_codec, value_codec, dense_below), 0)


def _of_group(keep: float, shared: bool, seed: int, form: stream.StreamFormat, shared_group: int) -> Compressor:
  """The compressor of one of several groups of layers; one that is not shared is told in its room which."""

  def count(x):
    return max(1, floor_once(x.size, keep))

  def draw(layers, step, group, worker):
    """Strictly increasing indices into the layers laid end to end."""
    key = choices.key_of(Purpose.PICK, seed, group, step, worker)
    picks, offset = [], 0
    for i, x in enumerate(layers):
      edges = np.arange(count(x) + 1) * x.size // count(x)
      where = jax.random.randint(jax.random.fold_in(key, i), (count(x),), edges[:-1], edges[1:])
      picks.append((offset + where).astype(jnp.uint32))
      offset += x.size
    return jnp.concatenate(picks)

  def init(layers):
    del layers
    return RandomKState(jnp.zeros((), jnp.int32))

  def nominal(layers):
    return sum(count(x) for x in layers)

  if not shared:
    def compress(layers, residual, state, quota):
      index = draw(layers, state.step, quota.room.group, quota.room.worker)
      units = stream.as_units(layers, residual, 1)
      selected = stream.pick(units, residual, index, index.size, quota, form.value_codec)
      return selected, RandomKState(state.step + 1)

    return form.compressor(init, compress, nominal)

  def compress_shared(layers, residual, state, room):
    index = draw(layers, state.step, shared_group, 0)
    units = stream.as_units(layers, residual, 1)[:, 0]
    if residual is not None:
      exact = tuple(stream.cut_units(units[:, None], residual))
      sent = jnp.zeros_like(units).at[index].set(units[index])
      residual = linear.residual_after(
          room, residual, exact, tuple(stream.cut_units(sent[:, None], residual)))
    return Packed(linear.write([units[index].reshape(-1)], room), residual, RandomKState(state.step + 1))

  def decompress(messages, layers, state):
    index = draw(layers, state.step, shared_group, 0)
    total = jnp.zeros(sum(x.size for x in layers)).at[index].set(
        linear.read_sum(messages, index.size))
    entries = jnp.full(messages.shape[0], index.size, jnp.uint32)
    return Unpacked(tuple(stream.cut_units(total[:, None], layers)), jnp.ones_like(entries), entries)

  def size(layers):
    words = linear.FLAG_WORDS + nominal(layers)
    return Size(words, words, words, sum(x.size for x in layers))

  return Compressor(init, compress_shared, decompress, size, linear.settle_by(decompress),
                    linear=linear.parts(nominal),
                    of_group=lambda group: _of_group(keep, shared, seed, form, group))
