"""Sums of linear messages over a mesh axis, part by part: integers and floats add, bits OR.

JAX has no collective for OR. One bit a block must stay one bit on the wire, so words are gathered and OR-ed, or,
where that would send more, dealt out, OR-ed by their owners, and gathered. A transport has an OR of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dct_jax import axes
from dct_jax.arrays import ceil_div, floats_of, words_of
from dct_jax.collectives.accounts import STREAM_HEAD, check_size
from dct_jax.contract import ADD_F32, ADD_U32, MAX_U32, OR_U32, Part, as_bytes
from dct_jax.transport import Transport, reduce_stream
from dct_jax.wire.exchanges import Algorithm, Op, Settings

ONE_ROUND_WORDS = 1024  # up to here a round trip costs more than the bytes that it saves
_OPS = {ADD_U32: Op.SUM, ADD_F32: Op.SUM, OR_U32: Op.OR, MAX_U32: Op.MAX}


def merged(parts: Sequence[Part]) -> tuple[Part, ...]:
  """Neighbours with the same operation as one part: each part costs a round trip."""
  out: list[Part] = []
  for part in parts:
    if part.op not in _OPS:
      raise ValueError(f'the operation of a part is one of {tuple(_OPS)}, got {part=}')
    if out and out[-1].op == part.op:
      out[-1] = Part(part.op, out[-1].words + part.words)
    elif part.words:
      out.append(part)
  return tuple(out)


class Summation:
  """Adds up messages of an axis.

  Args:
    transport: from `dct_jax.connect`; without one sums go through XLA.
  """

  def __init__(self, transport: Transport | None = None):
    self._transport = transport
    self._channel = 0 if transport is None else transport.open()

  def __call__(self, message: jax.Array, parts: Sequence[Part], axis_name: axes.AxisName | None) -> jax.Array:
    """The total of all workers' messages, equal on all of them."""
    parts = merged(parts)
    if message.size != sum(p.words for p in parts):
      raise ValueError(f'a message must have the words of its parts, got {message.size} words and {parts=}')
    if axis_name is None or not parts:
      return message
    pieces = jnp.split(message, np.cumsum([p.words for p in parts])[:-1])
    if self._transport is None:
      return jnp.concatenate(_through_xla(pieces, parts, axis_name))
    check_size(self._transport, axis_name)
    return self.over_transport(pieces, parts)

  def over_transport(self, pieces: Sequence[jax.Array], parts: Sequence[Part]) -> jax.Array:
    """The total of messages that are cut into their parts; every worker's program is one of its own."""
    return jnp.concatenate([self._travel(x, p.op) for x, p in zip(pieces, parts, strict=True)])

  def _travel(self, words, op):
    value = floats_of(words) if op == ADD_F32 else words
    algorithm = Algorithm.ALL_GATHER if words.size <= ONE_ROUND_WORDS else Algorithm.DENSE
    nothing = jnp.zeros(0, jnp.uint32)  # no indices: the vector is dense
    _, total = reduce_stream(nothing, value, value.size, value.size, self._channel, Settings(),
                             algorithm=int(algorithm), op=_OPS[op])
    return words_of(total) if op == ADD_F32 else total

  def sent_bytes(self, parts: Sequence[Part], workers: int) -> int:
    """What a worker's network interface has to send for the sum of a message with such parts."""
    heads = 0 if self._transport is None else STREAM_HEAD
    return sum(self._part_bytes(part, workers, heads) for part in merged(parts)) if workers > 1 else 0

  def _part_bytes(self, part, workers, head):
    whole, slice_ = 4 * part.words + head, 4 * ceil_div(part.words, workers) + head
    if self._transport is not None:
      return (whole if part.words <= ONE_ROUND_WORDS else 2 * slice_) * (workers - 1)
    if part.op == OR_U32:
      return (whole if _in_one_round(part.words, workers) else 2 * slice_) * (workers - 1)
    return 8 * part.words * (workers - 1) // workers  # a ring


def _through_xla(pieces, parts, axis_name):
  """Sums and maxima of all parts in one call each, so that XLA may join them; then what is OR-ed."""
  as_value = [floats_of(x) if p.op == ADD_F32 else x for x, p in zip(pieces, parts, strict=True)]
  out: list[jax.Array] = [None] * len(parts)  # type: ignore[list-item]
  for ops, collective in (((ADD_U32, ADD_F32), lax.psum), ((MAX_U32,), lax.pmax)):
    where = [i for i, p in enumerate(parts) if p.op in ops]
    for i, total in zip(where, collective([as_value[i] for i in where], axis_name) if where else [], strict=True):
      out[i] = words_of(total) if parts[i].op == ADD_F32 else total
  return [or_words(x, axis_name) if p.op == OR_U32 else total
          for x, p, total in zip(pieces, parts, out, strict=True)]


def or_words(words: jax.Array, axis_name: axes.AxisName) -> jax.Array:
  """The OR of all workers' uint32 words, exact, and known to be equal on all of them."""
  workers = axes.axis_size(axis_name)
  join = lambda x: lax.reduce(x, np.uint32(0), lax.bitwise_or, (0,))
  if _in_one_round(words.size, workers):
    return join(axes.gather(words, axis_name))
  slices = jnp.pad(words, (0, -words.size % workers)).reshape(workers, -1)
  mine = join(lax.all_to_all(slices, axis_name, 0, 0))
  return axes.gather(mine, axis_name).reshape(-1)[:words.size]


def _in_one_round(words, workers):
  """Whether gathering whole messages sends hardly more than dealing them out, or less than a round trip costs."""
  return workers <= 4 or words <= ONE_ROUND_WORDS


def or_with_notes(add: Summation, words: jax.Array, notes: jax.Array,
                  axis_name: axes.AxisName | None) -> tuple[jax.Array, jax.Array]:
  """The OR of all workers' words, and everybody's notes, in one exchange.

  A worker writes its notes to a place that is zero in all others' messages, so that OR-ing them is gathering them.

  Args:
    add: of the workers.
    words: uint32.
    notes: uint32, as many on every worker.
    axis_name: of the workers.

  Returns:
    The words, and the notes, uint32[workers, notes].
  """
  workers = axes.axis_size(axis_name)
  mine = jnp.zeros((workers, notes.size), jnp.uint32).at[axes.worker(axis_name)].set(notes)
  total = add(jnp.concatenate([mine.reshape(-1), words]), or_parts(words.size, notes.size, workers), axis_name)
  return total[mine.size:], total[:mine.size].reshape(mine.shape)


def or_parts(words: int, notes: int, workers: int) -> tuple[Part, ...]:
  """The message of `or_with_notes`."""
  return (Part(OR_U32, workers * notes + words),)


def traffic(add: Summation, messages: Sequence[Sequence[Part]], workers: int) -> tuple[jax.Array, jax.Array]:
  """Bytes that a worker puts into collectives for some messages, and those that it sends for them."""
  moved = sum(4 * part.words for parts in messages for part in parts)
  return as_bytes(moved), as_bytes(sum(add.sent_bytes(parts, workers) for parts in messages))
