"""Messages to the owners of slices, and the owners' answers to all: what a sharded parameter server needs.

Every worker has one message for each owner; owner p gets everybody's p-th one (push). What it makes of them
goes back as one message, made once, to all workers (pull). Both exchanges carry as many words as the longest
message of the last step wanted; what everybody has to know about the pushes travels with the answers, in the
words before them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dct_jax import axes
from dct_jax.collectives import ladder
from dct_jax.collectives.accounts import FRAME_HEAD, check_size, mean_words
from dct_jax.contract import Receipt, Room, Size, Unpacked, as_bytes
from dct_jax.transport import Transport, gather_messages, is_bulk, scatter_messages
from dct_jax.wire import header

NOTE = 8  # words before an answer; the second is the length of all of it, as in every message


class OwnersState(NamedTuple):
  """State of an `Owners`, equal on all workers: words of the longest message wanted in the last step."""

  push: jax.Array
  pull: jax.Array


class Arrived(NamedTuple):
  """What an owner got; it differs between workers."""

  unpacked: Unpacked  # the sum over workers
  heads: header.Header
  own_words: jax.Array  # of the message to itself, which no network carries
  wanted: jax.Array  # words that the exchange had room for, at least; equal on all workers


class Answers(NamedTuple):
  """What everybody knows after a step, equal on all workers."""

  parts: Any  # of each owner's answer, with a leading axis of owners
  nonfinite: jax.Array  # uint32: workers whose gradient was not finite
  unsound: jax.Array  # uint32: owners whose answer was not finite, and so is left out
  corrupt: jax.Array  # uint32: messages that failed their checks
  push: Receipt
  pull: Receipt
  state: OwnersState

  @property
  def called_off(self) -> jax.Array:
    """Whether the step does not count: a gradient was not finite, or a message corrupt."""
    return self.nonfinite + self.corrupt > 0


class Owners:
  """The two exchanges of one axis.

  Args:
    axis_name: of the workers, each of which owns a slice; None for a single one.
    rungs: capacities to compile for each exchange; a transport needs but one.
    transport: from `dct_jax.connect`; messages then travel as long as they are.
    agree: lengths are agreed upon before each exchange, by a `pmax`, instead of being those of the last step.
  """

  def __init__(self, axis_name: axes.AxisName | None, rungs: int = 12, transport: Transport | None = None,
               agree: bool = False):
    if rungs < 1:
      raise ValueError(f'rungs must be at least 1, got {rungs=}')
    self.axis_name, self.transport = axis_name, transport
    self.agree = agree and transport is None
    self.rungs = rungs if transport is None else 1
    self.channels = (0, 0) if transport is None else (transport.open(), transport.open())

  def init(self, push: Size, pull: Size) -> OwnersState:
    return OwnersState(jnp.asarray(push.nominal, jnp.uint32), jnp.asarray(pull.nominal, jnp.uint32))

  def room(self, wanted: jax.Array, size: Size, workers: int) -> Room:
    """For one message, of either exchange."""
    steps = ladder.rungs(size, workers, self.rungs, False)
    words = jnp.uint32(max(steps)) if self.agree else jnp.array(steps, jnp.uint32)[self._rung(steps, wanted, size)]
    return Room(words=words, live=1, capacity=max(steps))

  def _rung(self, steps, wanted, size):
    if self.agree:  # what is agreed upon is enough
      return jnp.minimum(ladder.first_holding(steps, wanted), len(steps) - 1)
    return ladder.choose(steps, wanted, False, size.largest)

  def _length(self, messages, before):
    """Words that the longest message has, or had in the step before."""
    if not self.agree:
      return before
    length = jnp.max(header.read_headers(messages).length)
    return length if self.axis_name is None else lax.pmax(length, self.axis_name)

  def push(self, messages: jax.Array, read: Callable[[jax.Array], Unpacked], state: OwnersState,
           size: Size) -> Arrived:
    """Everybody's message to this owner, added up; messages are uint32[owners, words]."""

    def carry(words):
      part = messages[:, :words]
      if self.axis_name is None:
        arrived = part
      elif self.transport is None:
        arrived = lax.all_to_all(part, self.axis_name, 0, 0)
      else:
        check_size(self.transport, self.axis_name)
        arrived = axes.vary_as(scatter_messages(part, self.channels[0]), (messages,))
      return read(arrived), header.read_headers(arrived)

    wanted = self._length(messages, state.push)
    unpacked, heads = self._on_a_rung(carry, wanted, size, messages.shape[0])
    own = header.read_headers(messages).length[axes.worker(self.axis_name)]
    return Arrived(unpacked, heads, own, wanted)

  def pull(self, message: jax.Array, read: Callable[[jax.Array], Unpacked], arrived: Arrived,
           state: OwnersState, push_size: Size, size: Size) -> Answers:
    """All owners' answers; `read` takes one of them."""
    letter = jnp.concatenate([_note(message, arrived), message])

    def carry(words):
      part = letter[:NOTE + words]
      if self.axis_name is None:
        gathered = part[None]
      elif self.transport is None:
        gathered = axes.gather(part, self.axis_name)
      else:
        gathered = gather_messages(part, self.channels[1], self.transport.size, is_bulk(state.pull))
      unpacked = jax.vmap(lambda m: read(m[None]))(gathered[:, NOTE:])
      return unpacked, gathered[:, :NOTE], header.read_headers(gathered[:, NOTE:])

    workers = axes.axis_size(self.axis_name)
    wanted = self._length(message, state.pull)
    unpacked, notes, heads = self._on_a_rung(carry, wanted, size, workers)
    lengths = OwnersState(arrived.wanted, wanted)
    return self._answers(unpacked, notes, heads, state, lengths, push_size, size, workers)

  def _on_a_rung(self, carry, wanted, size, workers):
    steps = ladder.rungs(size, workers, self.rungs, False)
    branches = [lambda w=w: carry(w) for w in steps]
    return ladder.take(self._rung(steps, wanted, size), branches)

  def _answers(self, unpacked, notes, heads, state, lengths, push_size, size, workers) -> Answers:
    wanted, _, corrupt, nonfinite, words, missing, entries, own = notes.T
    bad = unpacked.intact.reshape(-1) == 0
    every = lambda x: jnp.sum(x, dtype=jnp.uint32)
    pushed, pulled = mean_words(words), mean_words(heads.length) + NOTE
    push = self._receipt(pushed, pushed - mean_words(own), mean_words(missing), entries, lengths.push, push_size,
                         workers, workers)
    pull = self._receipt(pulled, pulled * (workers - 1), mean_words(heads.missing), unpacked.entries,
                         lengths.pull, size, workers, 1)
    unsound = every(heads.nonfinite)
    failed = every(corrupt) + every(bad)
    called_off = nonfinite[0] + failed > 0  # such a step says nothing about the next one
    new = OwnersState(jnp.where(called_off, state.push, jnp.max(wanted)),
                      jnp.where(called_off | (unsound > 0), state.pull, jnp.max(heads.wanted)))
    return Answers(unpacked.layers, nonfinite[0], unsound, failed, push, pull, new)

  def _receipt(self, encoded, crossing, missing, entries, wanted, size, workers, messages) -> Receipt:
    """Of one worker, in words, means of all of them; `messages` are how many it puts in."""
    if self.transport is not None or self.axis_name is None:
      moved, sent = 4 * encoded, 4 * crossing + as_bytes(FRAME_HEAD * (workers - 1))
    else:
      steps = jnp.array(ladder.rungs(size, workers, self.rungs, False), jnp.uint32)
      words = steps[self._rung(steps, wanted, size)] + jnp.uint32(NOTE if messages == 1 else 0)
      agreed = as_bytes(4 if self.agree else 0)
      moved, sent = 4 * words * messages + agreed, 4 * words * (workers - 1) + agreed * (workers - 1)
    if workers == 1:
      sent = jnp.uint32(0)
    # Pushes are of all entries, an answer of a worker's own slice: either way all entries count once.
    density = jnp.sum(entries.astype(jnp.float32)) / (float(size.dense) * workers * messages)
    return Receipt(4 * encoded, moved, sent, 4 * missing, density)


def _note(message, arrived: Arrived):
  """What all have to know of the pushes to this owner; see `NOTE`."""
  heads, intact = arrived.heads, arrived.unpacked.intact
  every = lambda x: jnp.sum(x, dtype=jnp.uint32)
  return jnp.stack([
      jnp.max(heads.wanted * intact), header.read_headers(message).length + NOTE, every(1 - intact),
      every(heads.nonfinite * intact), every(heads.length), every(heads.missing),
      every(arrived.unpacked.entries), arrived.own_words])
