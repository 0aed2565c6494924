"""The sum of the union: bitmaps are OR-ed first, then the union's blocks are summed plainly.

Once everybody knows which blocks somebody has, the rank of a block among them is a perfect hash: all workers lay their
values out alike, and an ordinary sum adds them, exactly, on every platform that has `psum`.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dct_jax import arrays, axes
from dct_jax.arrays import floats_of, words_of
from dct_jax.collectives import ladder, stream_blocks
from dct_jax.collectives.accounts import whole_message
from dct_jax.collectives.blocks import Blocks, Union, union_of
from dct_jax.collectives.parts import Summation, or_parts, or_with_notes, traffic
from dct_jax.collectives.sparse_all_reduce import sparse_all_reduce
from dct_jax.contract import ADD_F32, Collective, Part
from dct_jax.kernels import bitmaps
from dct_jax.transport import Transport

SPAN = 32  # the largest length over the smallest


class Total(NamedTuple):
  """A sum over workers, equal on all of them."""

  blocks: Blocks
  rest: jax.Array  # float32: the sum of what every worker has
  notes: jax.Array  # uint32[workers, notes]
  union: Union
  moved: jax.Array  # uint32: bytes that a worker put into collectives
  sent: jax.Array  # uint32: bytes that its network interface has to send for that


def lengths(most: int, count: int) -> tuple[int, ...]:
  """Static numbers of blocks, increasing by one factor; the last one holds whatever there is."""
  ratio = min(SPAN, most) ** (1 / max(count - 1, 1))
  return tuple(sorted({max(1, int(most / ratio**i)) for i in range(count)}))


def sum_union(blocks: Blocks, rest: jax.Array, notes: jax.Array, add: Summation, axis_name: axes.AxisName | None,
              rungs: int) -> Total:
  """Adds up all workers' blocks.

  Args:
    blocks: of this worker.
    rest: float32, what every worker has: it is summed along.
    notes: uint32, what everybody shall know.
    add: of the workers.
    axis_name: likewise.
    rungs: lengths to compile. The length is chosen when the size of the union is known, and the last one holds
      everything.
  """
  workers = axes.axis_size(axis_name)
  capacity = min(workers * blocks.most, blocks.universe)
  words, everyone = or_with_notes(add, blocks.bitmap(), notes, axis_name)
  union = union_of(words, blocks.universe, capacity)
  before = or_parts(bitmaps.num_words(blocks.universe), notes.size, workers)

  def summed(length):
    values = blocks.laid_out(union, length)
    parts = (Part(ADD_F32, values.size + rest.size),)
    total = floats_of(add(words_of(jnp.concatenate([values.reshape(-1), rest])), parts, axis_name))
    values, left = arrays.cut(total, (values, rest))
    moved, sent = traffic(add, (before, parts), workers)
    return Total(blocks.placed(union, values), left, everyone, union, moved, sent)

  steps = lengths(capacity, rungs)
  return ladder.take(ladder.first_holding(steps, union.count), [partial(summed, n) for n in steps])


def union_sum(rungs: int = 24, *, transport: Transport | None = None) -> Collective:
  """Sums what workers have selected exactly: an OR of bitmaps, then a plain sum of the union's blocks.

  It sends 2 (P - 1) / P times the union. An all-gather sends P - 1 times what one worker has selected, so that this is
  less where workers choose alike, or where there are many of them. Nothing overflows and nothing is lost: the length
  of the sum is chosen when the size of the union is known, up to all blocks.

  Args:
    rungs: lengths to compile, each at most so much too long that all of them span a factor of 32.
    transport: from `dct_jax.connect`, which has the same as `sparse_all_reduce('union')`: lengths are exact then.
      Without one sums go through XLA.

  Returns:
    A `Collective` for compressors whose messages are sparse streams. It is at its best with blocks
    (`block_top_k`), as the bitmap has one bit for each.

  Examples:
    >>> import dct_jax, jax.numpy as jnp
    >>> blocks = dct_jax.block_top_k(1.0, 2, dense_below=0)      # all blocks that are not zero
    >>> tx = dct_jax.compressed_mean(blocks, dct_jax.union_sum(), 'data')
    >>> update, state = dct_jax.simulate(tx, jnp.zeros(6), workers=2)
    >>> update(jnp.array([[1.0, 2, 0, 0, 0, 0], [3.0, 4, 0, 0, 5, 6]]), state, None)[0].tolist()
    [2.0, 3.0, 0.0, 0.0, 2.5, 3.0]
  """
  if rungs < 1:
    raise ValueError(f'rungs must be at least 1, got {rungs=}')
  if transport is not None:
    return sparse_all_reduce('union', transport)
  add = Summation()

  def reduce(compressor, layers, packed, old_state, state, room, axis_name):
    del room
    own = stream_blocks.read(compressor, packed.message, layers, old_state)
    total = sum_union(own.blocks, own.rest, own.notes, add, axis_name, rungs)
    return stream_blocks.reduced(own, total, compressor, layers, state)

  return Collective(lambda size: (), whole_message, reduce, stream_blocks.check)
