"""All-gather of messages on the capacity ladder; every worker decodes and adds them up."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dct_jax import axes
from dct_jax.collectives import ladder
from dct_jax.collectives.accounts import FRAME_HEAD, check_size, mean_words
from dct_jax.contract import Collective, Receipt, Reduced, Room, Unpacked, as_bytes
from dct_jax.transport import Transport, gather_messages, is_bulk
from dct_jax.wire import header


class AllGatherState(NamedTuple):
  """State of `all_gather`, equal on all workers."""

  wanted: jax.Array  # uint32: words of the longest message wanted in the last step


def all_gather(rungs: int = 16, dense_fallback: bool | None = None, *, agree: bool = False,
               transport: Transport | None = None, decode: Callable | None = None) -> Collective:
  """One all-gather a step, of as many words as the last step's messages wanted.

  All workers know all headers of the last step, so that choosing a capacity costs no round trip. What
  does not fit stays in the residual for a step, as large a share of every layer. When messages would be larger than
  a dense exchange, the dense exchange happens: residuals are summed by `psum` and cleared. Without error feedback the
  layers are, and what overflows a rung in between is lost (and counted).

  Args:
    rungs: how many capacities to compile; a transport needs but one.
    dense_fallback: whether the dense exchange is the last rung; it is unless `agree`.
    agree: one number, the length of the longest message of this step, is agreed upon before the exchange, in a
      collective of four bytes (a `pmax`). Nothing ever overflows then, whatever it costs, and what is selected is
      what travels: with `dct_threshold`, DCT's Algorithm 1 to the letter. A transport needs no such number, since its
      messages have lengths of their own.
    transport: from `dct_jax.connect`; messages then travel as long as they are, on connections of their
      own. Without one they travel through XLA, padded to a rung.
    decode: (compressor, gathered messages, layers, state) -> Unpacked; `compressor.decompress` unless given.

  Returns:
    A `Collective` for any compressor that is not meant for `psum` only.
  """
  if rungs < 1:
    raise ValueError(f'rungs must be at least 1, got {rungs=}')
  if agree and dense_fallback:
    raise ValueError('agree=True sends what is selected and nothing else: dense_fallback=True, which sends everything '
                     'that is pending, cannot go with it')
  fall_back = not agree if dense_fallback is None else dense_fallback
  rungs = rungs if transport is None else 1
  agreed = agree and transport is None
  channel = None if transport is None else transport.open()
  decode = decode or (lambda compressor, *args: compressor.decompress(*args))

  def plan(size, workers):
    """The ladder, and whether the dense exchange is the rung above it."""
    fallback = fall_back and workers > 1
    return ladder.rungs(size, workers, rungs, fallback), fallback

  def init(size):
    return AllGatherState(jnp.asarray(size.nominal, jnp.uint32))

  def room(state, size, workers):
    steps, fallback = plan(size, workers)
    capacity = max((*steps, size.smallest))
    if agreed:
      return Room(words=jnp.uint32(capacity), live=1, capacity=capacity)
    rung = ladder.choose(steps, state.wanted, fallback, size.largest)
    words = jnp.array((*steps, 0), jnp.uint32)[rung]
    return Room(words=words, live=1, capacity=capacity)

  def reduce(compressor, layers, packed, old_state, state, room, axis_name):
    workers = axes.axis_size(axis_name)
    size = compressor.size(layers)
    steps, fallback = plan(size, workers)
    gather = lambda part: _gather(part, axis_name, transport, channel, state.wanted)
    read = lambda gathered: decode(compressor, gathered, layers, old_state)
    wanted = _longest(packed.message, axis_name) if agreed else state.wanted
    branches = [_sparse(w, packed.message, gather, read, axis_name, channel is not None) for w in steps]
    if fallback:
      branches.append(_dense(layers, packed, room, axis_name))
    rung = ladder.first_holding(steps, wanted) if agreed else ladder.choose(steps, wanted, fallback, size.largest)
    exchanged = ladder.take(rung, branches)
    if agreed and workers > 1:
      exchanged = exchanged._replace(moved=exchanged.moved + 4, sent=exchanged.sent + as_bytes(8 * (workers - 1)))
    return _reduced(exchanged, (rung == len(steps)) & fallback, state, layers)

  def check(compressor):
    if compressor.summed:
      raise ValueError('this compressor makes messages that add up; use the psum collective, '
                       'all_gather would only move more bytes')

  return Collective(init, room, reduce, check)


class _Exchanged(NamedTuple):
  """What one rung brings, equal on all workers."""

  unpacked: Unpacked
  head: header.Header
  encoded: jax.Array  # uint32[workers]: words
  moved: jax.Array  # uint32: bytes
  sent: jax.Array  # uint32: bytes


def _longest(message, axis_name):
  """Words of the longest message of this step."""
  length = header.read_headers(message).length
  return length if axis_name is None else lax.pmax(length, axis_name)


def _gather(part, axis_name, transport, channel, wanted):
  """All workers' messages, equal everywhere."""
  if axis_name is None:
    return part[None]
  if transport is None:
    return axes.gather(part, axis_name)
  check_size(transport, axis_name)
  return gather_messages(part, channel, transport.size, is_bulk(wanted))


def _sparse(words, message, gather, read, axis_name, exact):
  """The exchange of messages of `words` words, or of their exact lengths."""

  def exchange() -> _Exchanged:
    others = axes.axis_size(axis_name) - 1
    gathered = gather(message[:words])
    head = header.read_headers(gathered)
    moved = 4 * mean_words(head.length) if exact else as_bytes(4 * words)
    sent = (moved + FRAME_HEAD) * others if exact else as_bytes(4 * words * others)
    return _Exchanged(read(gathered), head, head.length, moved, sent.astype(jnp.uint32))

  return exchange


def _dense(layers, packed, room, axis_name):
  """The dense exchange: everything pending is summed, only headers travel beside it."""

  def exchange() -> _Exchanged:
    workers, total = axes.axis_size(axis_name), sum(x.size for x in layers)
    head = header.read_headers(axes.gather(packed.message[:header.WORDS], axis_name))
    pending = packed.residual
    if pending is None:
      pending = tuple(jnp.where(room.live != 0, x, 0).astype(jnp.float32) for x in layers)
    sums = axes.sum_together(pending, axis_name)
    words = jnp.full(workers, total + header.WORDS, jnp.uint32)
    sent = (8 * total // workers + 4 * header.WORDS) * (workers - 1)
    # The branches of messages read these from headers, which differ between groups where a mesh has several.
    words, intact, entries = axes.vary_as(
        (words, jnp.ones(workers, jnp.uint32), jnp.full(workers, total, jnp.uint32)), head)
    return _Exchanged(Unpacked(sums, intact, entries), head._replace(length=head.wanted), words,
                      as_bytes(4 * (total + header.WORDS)), as_bytes(sent))

  return exchange


def _reduced(exchanged, is_dense, state, layers) -> Reduced:
  unpacked, head, encoded, moved, sent = exchanged
  total = sum(x.size for x in layers)
  nonfinite = jnp.sum(head.nonfinite, dtype=jnp.uint32)
  receipt = Receipt(
      encoded_bytes=4 * mean_words(encoded),
      moved_bytes=moved,
      sent_bytes=sent,
      overflow_bytes=4 * mean_words(head.missing),
      density=jnp.mean(unpacked.entries.astype(jnp.float32)) / float(total))
  # A worker without a gradient wanted nothing; that says nothing about the next step.
  wanted = jnp.where(nonfinite > 0, state.wanted, jnp.max(head.wanted * unpacked.intact))
  corrupt = jnp.sum(1 - unpacked.intact, dtype=jnp.uint32)
  return Reduced(unpacked.layers, nonfinite, corrupt, is_dense, receipt, AllGatherState(wanted))
