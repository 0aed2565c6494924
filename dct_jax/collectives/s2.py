"""S2 Reducer: a bitmap of the blocks that are not zero, and a count-sketch of their values, both summed on the way.

Algorithm 1 of the paper. What comes back is an unbiased estimate of the sum, whose error is 1/lambda times the
signal's energy, lambda being the numbers of a sketch over the entries of the *union* of all workers' blocks.
"""

from __future__ import annotations

import itertools
import math
import warnings
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dct_jax import arrays, axes
from dct_jax.arrays import floats_of, u32, words_of
from dct_jax.collectives import ladder, stream_blocks
from dct_jax.collectives.accounts import whole_message
from dct_jax.collectives.blocks import Blocks, union_of
from dct_jax.collectives.parts import Summation, or_parts, or_with_notes, traffic
from dct_jax.collectives.union_sum import Total
from dct_jax.contract import ADD_F32, ADD_U32, MAX_U32, Collective, Part
from dct_jax.kernels import bit_packing, bitmaps, choices, hashing
from dct_jax.kernels.choices import Purpose
from dct_jax.transport import Transport

VALUES = ('float32', 'int16')
OF = ('worker', 'union')
CLOSE, APART = 1.12, 3.0  # ratios of neighbouring lengths, near the usual one and far from it
OVERLOADED = 8.0  # entries of the union for each number of a sketch, from which on a factory warns


class S2State(NamedTuple):
  """State of `s2`, equal on all workers."""

  step: jax.Array  # uint32: rotates the keys
  worker_lambda: jax.Array  # float32: numbers of the last sketch over a worker's entries, the paper's lambda
  union_lambda: jax.Array  # float32: and over the union's entries, which decides the error

  @classmethod
  def first(cls) -> S2State:
    """Before the first step."""
    return cls(jnp.zeros((), jnp.uint32), jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32))

  def metrics(self) -> dict[str, jax.Array]:
    """For the accounts of a step."""
    return {'s2_lambda': self.worker_lambda, 's2_union_lambda': self.union_lambda}


class Sketch(NamedTuple):
  """Static choices of a sketch.

  Attributes:
    lam: numbers of a sketch over entries, of a worker (the paper's lambda) or of the union.
    rows: of the sketch, each with its own hash function; estimates are the median over them.
    of: 'worker' or 'union', whose entries `lam` counts.
    values: 'float32', or 'int16' for numbers of half the length, rounded at random to a common scale.
    seed: of the hash functions; a number, or a uint32.
    rungs: lengths of sketches to compile.
  """

  lam: float
  rows: int = 1
  of: str = 'worker'
  values: str = 'float32'
  seed: Any = 0
  rungs: int = 16

  def check(self) -> Sketch:
    """Itself, or a ValueError. Warns of a sketch that is too small for anything."""
    if not 0 < self.lam < math.inf:
      raise ValueError('lam must be above 0 and finite: it is the length of a sketch over the number of entries, got '
                       f'lam={self.lam}')
    if self.rows < 1:
      raise ValueError(f'a sketch needs at least one row, got rows={self.rows}')
    if self.of not in OF:
      raise ValueError(f'lam counts entries of one of {OF}, got of={self.of!r}')
    if self.values not in VALUES:
      raise ValueError(f'values must be one of {VALUES}, got values={self.values!r}')
    if self.rungs < 1:
      raise ValueError(f'rungs must be at least 1, got rungs={self.rungs}')
    if 1 / self.lam > OVERLOADED:
      load = f'{1 / self.lam:.1f}'
      warnings.warn(
          f'a sketch of lam={self.lam} is too small for its load: every number of it holds {load} entries or more (the '
          f'load factor), so that the error has at least {load} times the energy of the signal', RuntimeWarning,
          stacklevel=3)
    return self

  def lengths(self, nominal: int, most: int, times: int = 1) -> tuple[int, ...]:
    """Numbers of a row, increasing, up to those of `most` entries.

    They are close together near those of `nominal` entries; or, if there may well be up to so many `times` as many,
    from there on.
    """
    row = lambda entries: max(1, math.ceil(self.lam * entries / self.rows))
    top = row(most)
    middle = min(row(nominal) + 1, top)
    ratio, first = (CLOSE, -(self.rungs // 2)) if times == 1 else (times ** (1 / max(self.rungs - 1, 1)), 0)
    near = [middle * ratio**i for i in range(first, first + self.rungs)]
    below = [near[0] / APART**i for i in (1, 2, 3, 4)]
    above = itertools.takewhile(lambda n: n < top, (near[-1] * APART**i for i in itertools.count(1)))
    return tuple(sorted({min(max(1, int(n)), top) for n in (*below, *near, *above, top)})) if self.rungs > 1 else (top,)

  def choose(self, steps: tuple[int, ...], entries: jax.Array) -> jax.Array:
    """The first of the lengths that has `lam` numbers for each of so many entries."""
    wanted = jnp.ceil(entries.astype(jnp.float32) * (self.lam / self.rows)).astype(jnp.uint32)
    return jnp.minimum(ladder.first_holding(steps, wanted), len(steps) - 1)


def sum_sketched(blocks: Blocks, rest: jax.Array, notes: jax.Array, sketch: Sketch, steps: tuple[int, ...],
                 state: S2State, add: Summation, axis_name: axes.AxisName | None,
                 inspect: Any = None) -> tuple[Total, S2State, Any]:
  """Algorithm 1: what a summed sketch says about the blocks of all workers.

  Args:
    blocks: of this worker.
    rest: float32, what every worker has: it is summed along, exactly.
    notes: uint32, what everybody shall know; the last one is the number of this worker's blocks.
    sketch: static choices.
    steps: lengths of a sketch's row, from `Sketch.lengths`.
    state: of the step before.
    add: of the workers.
    axis_name: likewise.
    inspect: (union, keys, this worker's own sketch as it was sent, lambda of the union) -> anything, returned beside
      the sum.
  """
  workers = axes.axis_size(axis_name)
  own = blocks.bitmap()
  words, everyone = or_with_notes(add, own, notes, axis_name)
  union = union_of(words, blocks.universe, min(workers * blocks.most, blocks.universe))
  each = jnp.mean(everyone[:, -1].astype(jnp.float32)) * blocks.unit
  together = union.count.astype(jnp.float32) * blocks.unit
  keys = hashing.keys(sketch.seed, state.step, sketch.rows)
  before = or_parts(bitmaps.num_words(blocks.universe), notes.size, workers)

  def summed(buckets):
    table = blocks.sketch(own, keys, buckets)
    flat, left, sent_table, parts = _sum(table.reshape(-1), rest, sketch, state.step, add, axis_name)
    moved, sent = traffic(add, (before, *parts), workers)
    total = Total(blocks.estimated(union, flat.reshape(table.shape), keys), left, everyone, union, moved, sent)
    ratio = lambda entries: jnp.float32(table.size) / jnp.maximum(entries, 1)
    known = S2State(state.step + 1, ratio(each), ratio(together))
    return total, known, None if inspect is None else inspect(
        union, keys, sent_table.reshape(table.shape), known.union_lambda)

  rung = sketch.choose(steps, each if sketch.of == 'worker' else together)
  return ladder.take(rung, [partial(summed, n) for n in steps])


def _sum(table, rest, sketch, step, add, axis_name):
  """A flat sketch and the rest, summed; what this worker's part of the sketch was; and the messages that it took."""
  workers = axes.axis_size(axis_name)
  if sketch.values == 'float32':
    whole = (Part(ADD_F32, table.size + rest.size),)
    total = floats_of(add(words_of(jnp.concatenate([table, rest])), whole, axis_name))
    return *arrays.cut(total, (table, rest)), table, (whole,)
  scale_parts = (Part(MAX_U32, 1),)  # magnitudes order like the integers that they look like
  scale = floats_of(add(words_of(jnp.max(jnp.abs(table))).reshape(1), scale_parts, axis_name))[0]
  fields = _to_fields(table, scale, workers, hashing.noise(
      choices.seed_of(Purpose.ROUND_SKETCH, sketch.seed, 0, step, axes.worker(axis_name)),
      jnp.arange(table.size, dtype=jnp.uint32)))
  parts = (Part(ADD_U32, fields.size), Part(ADD_F32, rest.size))
  total = add(jnp.concatenate([fields, words_of(rest)]), parts, axis_name)
  read = lambda words, terms: _of_fields(words, scale, workers, table.size, terms)
  return read(total[:fields.size], workers), floats_of(total[fields.size:]), read(fields, 1), (scale_parts, parts)


def _levels(workers):
  """The largest number of a 16-bit field of which as many fit beside each other as there are workers."""
  most = 0xFFFF // (2 * workers)
  if not most:
    raise ValueError(f'16 bits hold no sum of {workers} workers; use values="float32"')
  return most


def _to_fields(x, scale, workers, noise):
  """Two numbers a word, rounded at random to whole levels of the scale; sums of all workers stay in their fields."""
  level = jnp.where(scale > 0, x / jnp.where(scale > 0, scale, 1), 0) * _levels(workers)
  down = jnp.floor(level)
  up = (noise.astype(jnp.float32) < (level - down) * 65536).astype(jnp.int32)
  return bit_packing.pack(u32(down.astype(jnp.int32) + up + _levels(workers)), 16)


def _of_fields(words, scale, workers, count, terms):
  """The numbers in fields that are sums of so many workers' ones."""
  whole = bit_packing.unpack(words, count, 16).astype(jnp.int32) - terms * _levels(workers)
  return whole.astype(jnp.float32) * (scale / _levels(workers))


def s2(lam: float, rows: int = 1, *, of: str = 'worker', values: str = 'float32', feed_back: bool = False,
       shrink: bool = True, seed: int = 0, rungs: int = 16, transport: Transport | None = None) -> Collective:
  r"""S2 Reducer: messages become a bitmap of blocks and a count-sketch of values, which plain sums add up.

  The mean that comes back is unbiased, but not exact: with :math:`\lambda` numbers in the sketch for each entry of
  the union of all workers' blocks, the error has :math:`1/\lambda` times the energy of the signal with one row. With as
  many numbers in all, two rows have the same, and three or more have more on even values, and less where a few entries
  are large. Keys rotate by step. As in the paper the sketch's noise is not fed back: with
  `error_feedback` the residual is what was not selected.

  Args:
    lam: numbers of a sketch over entries; the length follows the density of every step.
    rows: of the sketch, each with its own hash function; estimates are the median over them.
    of: whose entries `lam` counts: a 'worker''s, as in the paper, or the 'union''s, which decide the error.
    values: 'float32'; or, ours, 'int16', rounded at random: half the bytes and one more round trip.
    feed_back: ours. The sketch's own error goes to the residual, too, and estimates are shrunk by
      lambda / (1 + lambda) of the union. For one row.
    shrink: False is refused with `feed_back`, and only there to be asked for.
    seed: of the hash functions, which differ between groups of layers and steps.
    rungs: lengths of sketches to compile.
    transport: from `dct_jax.connect`; without one sums go through XLA.

  Returns:
    A `Collective` for compressors whose messages are sparse streams: `block_top_k` as in the paper. Its state has both
    lambdas, which training steps log as `s2_lambda` and `s2_union_lambda`.

  Raises:
    ValueError: for arguments that cannot work.

  Warns:
    RuntimeWarning: if the sketch is too small for its load whatever comes.

  Examples:
    >>> import dct_jax, jax.numpy as jnp
    >>> blocks = dct_jax.error_feedback(dct_jax.block_top_k(1 / 4, 2, dense_below=0))
    >>> tx = dct_jax.compressed_mean(blocks, dct_jax.s2(lam=64), 'data')   # so long that nothing collides
    >>> update, state = dct_jax.simulate(tx, jnp.zeros(8), workers=2)
    >>> mean, state = update(jnp.array([[9.0, 9, 0, 0, 0, 0, 1, 1], [8.0, 8, 0, 0, 0, 0, 0, 0]]), state, None)
    >>> mean.tolist()
    [8.5, 8.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]

  References:
    Ge et al., S2 Reducer: High-Performance Sparse Communication to Accelerate Distributed Deep Learning, ICASSP 2022.
  """
  sketch = Sketch(lam, rows, of, values, seed, rungs).check()
  if feed_back and not shrink:
    raise ValueError('feeding the error of a sketch back without shrinking its estimates makes the residual grow '
                     'without bound: below lambda = 1 the error is larger than what was sent. Use shrink=True, or '
                     'feed_back=False as in the paper')
  if feed_back and rows > 1:
    raise ValueError(f'only the error of one row is a sum of workers\' errors, as a median is not linear, got {rows=}')
  add = Summation(transport)

  def reduce(compressor, layers, packed, old_state, state, room, axis_name):
    own = stream_blocks.read(compressor, packed.message, layers, old_state)
    size = compressor.size(layers)
    here = sketch._replace(seed=choices.seed_of(Purpose.SKETCH, seed, room.group))
    times = axes.axis_size(axis_name) if of == 'union' else 1  # workers may have nothing in common
    steps = sketch.lengths(size.nominal, own.blocks.units.size, times)
    total, new, fed = sum_sketched(own.blocks, own.rest, own.notes, here, steps, state, add, axis_name,
                                   _feed_back(own.blocks) if feed_back else None)
    if fed is None:
      return stream_blocks.reduced(own, total, compressor, layers, new)
    estimate, factor = fed
    bad = jnp.sum(total.notes[:, 0]) > 0
    told = lambda blocks, rest, share: stream_blocks.joined(
        blocks._replace(units=blocks.units * share), rest, compressor, layers)
    sums = told(total.blocks, total.rest, factor)
    mine = told(own.blocks, own.rest, 1.0)
    sent = told(estimate, own.rest, factor)
    back = lambda e, x, s: e + jnp.where(bad, x, x - s)
    residual = jax.tree.map(back, packed.residual, mine, sent)
    return stream_blocks.reduced(own, total, compressor, layers, new, sums, (residual, None))

  def check(compressor):
    stream_blocks.check(compressor)
    if feed_back and not compressor.feedback:
      raise ValueError('feed_back needs a residual to go to: wrap the compressor in error_feedback')

  return Collective(lambda size: S2State.first(), whole_message, reduce, check)


def _feed_back(blocks):
  """What a worker's own sketch says about the union, and by how much all estimates are shrunk."""
  def inspect(union, keys, table, lam):
    return blocks.estimated(union, table, keys), lam / (1 + lam)

  return inspect
