"""The contract: what a compressor and a collective are, and how a step uses them.

A step of data parallel training with compression is these lines (`transforms/compressed_mean.py`):

    room = collective.room(collective_state, size, workers)            # how long may a message be?
    packed = compressor.compress(layers, residual, state, room)        # layers -> one message
    total = collective.reduce(compressor, layers, packed, ...)         # messages -> sum over workers

*Layers* are the gradient's arrays as a tuple, in the order of the tree. A *message* is everything one
worker sends in one step: one flat `uint32` array, whatever the number of layers. XLA wants static
shapes, messages have none, so a message lives in a buffer of `room.capacity` words of which it may
use the first `room.words`, a number that is only known at run time and that all workers agree
on. **What does not fit stays in the residual**: a compressor never fails and never loses anything.

Four families fit this contract.

**Selections** send some entries as they are (`top_k`, `dct_threshold`). The message is a sparse stream:

    >>> import jax.numpy as jnp, dct_jax
    >>> layers = (jnp.array([0.1, -3.0, 0.2, 0.5]),)
    >>> top = dct_jax.top_k(0.25, dense_below=0)
    >>> packed = top.compress(layers, None, top.init(layers), dct_jax.whole_room(top, layers))
    >>> packed.residual is None                     # no residual came in, so none is kept
    True
    >>> top.decompress(packed.message[None], layers, None).layers[0].tolist()
    [0.0, -3.0, 0.0, 0.0]

**Quantizers** send every entry with fewer bits, in a fixed or a variable number of words (`cast`, `qsgd`,
`three_lc`). `residual` holds what rounding took away:

    >>> half = dct_jax.cast('float16')
    >>> layers, zero = (jnp.array([1.0, 1.0 + 2**-12]),), (jnp.zeros(2),)
    >>> packed = half.compress(layers, zero, half.init(layers), dct_jax.whole_room(half, layers))
    >>> packed.residual[0].tolist()                 # 2**-12 does not fit a float16 next to 1
    [0.0, 0.000244140625]

**Linear sketches** are messages whose sum is the message of the sum, so that a plain `psum` adds them on
the way (`random_k(shared=True)`, `identity`). They name the parts that messages have,
integers, bits or floats, with `linear`:

    >>> pick = dct_jax.random_k(0.5, shared=True)
    >>> layers = (jnp.arange(1.0, 5.0),)
    >>> [tuple(part) for part in pick.linear(layers, 8)]  # 8 workers; one word counts, two are numbers
    [('add_u32', 1), ('add_f32', 2)]
    >>> state = pick.init(layers)                   # every worker picks by the same random numbers
    >>> packed = pick.compress(layers, None, state, dct_jax.whole_room(pick, layers))
    >>> sorted(pick.decompress(packed.message[None], layers, state).layers[0].tolist())[:2]
    [0.0, 0.0]

**Rounds**: what a worker says next depends on what all have said (`power_sgd`), or the answer is no sum
(`sign_vote`). Instead of `compress` and `decompress` they have `rounds`, each with a linear message of its own:

    carry = rounds.begin(layers, residual, state, room)
    for each round: message, carry = round.pack(carry, total of the round before, workers)   # summed like any other
    layers, residual, state = rounds.finish(carry, total of the last round, workers, bad)

A state class says which of its fields are a worker's own (`dct_jax/state.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Layers = tuple[jax.Array, ...]


class Room(NamedTuple):
  """How long this step's message may be, and whether this worker takes part."""

  words: jax.Array | int  # uint32: usable words; 0 sends nothing and keeps all in the residual
  live: jax.Array | int  # uint32: 0 drops the layers (they were not finite) and sends nothing
  capacity: int  # static length of the buffer, at least the smallest message
  worker: jax.Array | int = 0  # uint32: who this is, for random choices that should differ
  group: Any = 0  # uint32: which of several groups of layers this is, equal on all workers; for the same


class Size(NamedTuple):
  """Words of a compressor's messages for given layers; static."""

  smallest: int  # a message always has room for this
  nominal: int  # what a usual step needs: where the capacity ladder starts
  largest: int  # nothing ever needs more
  dense: int  # the layers themselves, as float32
  unit: int = 1  # values that an index of a message speaks of


class Packed(NamedTuple):
  """What `compress` returns. decoded message + residual = layers + old residual."""

  message: jax.Array  # uint32[room.capacity]
  residual: Layers | None  # float32, the shapes of the layers; None when None came in
  state: Any


class Unpacked(NamedTuple):
  """What `decompress` returns: the sum over messages, in their order."""

  layers: Layers  # float32, the shapes of the layers
  intact: jax.Array  # uint32[messages]: 0 where a message failed its checks and was left out
  entries: jax.Array  # uint32[messages]: how many entries of the layers each one carried


# What a sum over workers does with the words of a linear message.
ADD_U32, ADD_F32, OR_U32, MAX_U32 = 'add_u32', 'add_f32', 'or_u32', 'max_u32'


class Part(NamedTuple):
  """A stretch of a linear message. Integers add modulo 2^32."""

  op: str
  words: int


Parts = Callable[[Layers, int], tuple[Part, ...]]  # (layers, workers) -> parts of a message, in order


class Round(NamedTuple):
  """One exchange of several.

  Attributes:
    parts: of its message. Word 0 of the last round counts the workers whose gradient is not finite: an `ADD_U32`.
    pack: (carry, total of the round before, or None, workers) -> (uint32 message, carry).
  """

  parts: Parts
  pack: Callable[[Any, jax.Array | None, int], tuple[jax.Array, Any]]


class Rounds(NamedTuple):
  """What a compressor does whose messages are answers, or whose answers are no sums.

  A carry is a pytree, in which `dct_jax.state.own` says what is a worker's own, as in a state.

  Attributes:
    begin: (layers, residual or None, state, room) -> carry; layers that are not finite (`room.live` is
      0) are left out.
    each: the rounds, one collective each; all of them happen, whatever they say.
    finish: (carry, total of the last round, workers, how many of them had no finite gradient) -> (float32 sums
      over workers, residual, state); the residual is not used if none came in. If that number is not 0 the step is
      called off: what was taken from layers and residual is the residual again, and the state stays as it was.
  """

  begin: Callable[[Layers, Layers | None, Any, Room], Any]
  each: tuple[Round, ...]
  finish: Callable[[Any, jax.Array, int, jax.Array], tuple[Layers, Layers | None, Any]]


# What a compressor's residual makes up for: sent + residual = layers + old residual ...
BITS = 'bits'  # ... of each worker, bit for bit
ROUNDING = 'rounding'  # ... of each worker, to rounding
TOGETHER = 'together'  # ... only of all workers' sums, to rounding
NOTHING = 'nothing'  # what is sent is no amount, and there is no residual


class Feedback(NamedTuple):
  """Error feedback: what a message leaves out is kept and added to the next gradient."""

  drain_period: int | None = None  # expected steps until an entry of the residual is forgotten


class Compressor(NamedTuple):
  """Pure functions made by a factory; the state is an explicit pytree.

  Attributes:
    init: layers -> state.
    compress: (layers, residual or None, state, room) -> Packed.
    decompress: (uint32[messages, words], layers for their shapes, the state that `compress` was
      given) -> Unpacked. Only what is equal on all workers may be used of the state.
    size: layers -> Size.
    settle: (mode, message, residual, the same state) -> residual, after the exchange. Mode `KEEP`
      changes nothing, `CLEAR` empties the residual (everything was sent another way), `TAKE_BACK` returns this
      worker's own message to it (the step was called off).
    linear: the parts of a message, if messages add up on the way. Word 0 counts the workers whose gradient is
      not finite.
    rounds: instead of `compress`, `decompress` and `settle`, for what takes several exchanges; see `Rounds`.
    feedback: whether a transform keeps a residual for it; set with `error_feedback`.
    stream: how its messages read as sparse streams (`compressors/stream.py`), for collectives that add
      them up on the way; None when they are something else.
    exact: whether what is read of a message is what was given, all of it.
    conserves: `BITS`, `ROUNDING`, `TOGETHER` or `NOTHING`.
    of_group: (group, static) -> this compressor for one of several groups of layers, where random choices are made
      without a room: by `init`, or by `decompress` because all workers make the same ones.
  """

  init: Callable[[Layers], Any]
  compress: Callable[[Layers, Layers | None, Any, Room], Packed]
  decompress: Callable[[jax.Array, Layers, Any], Unpacked]
  size: Callable[[Layers], Size]
  settle: Callable[[jax.Array, jax.Array, Layers, Any], Layers]
  linear: Parts | None = None
  feedback: Feedback | None = None
  stream: Any = None
  exact: bool = False
  rounds: Rounds | None = None
  conserves: str = BITS
  of_group: Callable[[int], Compressor] | None = None

  @property
  def summed(self) -> bool:
    """Whether its messages are for `psum`."""
    return self.linear is not None or self.rounds is not None


KEEP, CLEAR, TAKE_BACK = 0, 1, 2


class Receipt(NamedTuple):
  """What an exchange cost, the same number on every worker. Bytes are of one worker in one step."""

  encoded_bytes: jax.Array  # what the codec produced, averaged over workers
  moved_bytes: jax.Array  # what a worker put into collectives, padding included
  sent_bytes: jax.Array  # what a worker's network interface has to send for that
  overflow_bytes: jax.Array  # what was selected, did not fit and went back to the residual
  density: jax.Array  # fraction of the entries that travelled, averaged over workers


class Stats(NamedTuple):
  """Numbers to log, equal on all workers. `receipt` is of the last step, the rest has added up."""

  receipt: Receipt
  nonfinite: jax.Array  # gradients that were not finite, counted by worker and step
  corrupt: jax.Array  # messages that failed their checks
  drained: jax.Array  # entries of residuals that were forgotten, averaged over workers
  refused: jax.Array  # of `nonfinite`, what `nonfinite='raise'` says: the loop raises for it, and for `corrupt`


class Reduced(NamedTuple):
  """What `reduce` returns; everything in it is equal on all workers."""

  layers: Layers  # float32 sum over workers
  nonfinite: jax.Array  # uint32: workers whose gradient was not finite
  corrupt: jax.Array  # uint32: messages that failed their checks
  dense: jax.Array  # bool: everything travelled, residual included
  receipt: Receipt
  state: Any
  absorbed: Any = None  # residual and compressor's state that the answer gives; a state of None stays as it is


class Collective(NamedTuple):
  """How messages become a sum over a mesh axis.

  Attributes:
    init: Size -> state (replicated).
    room: (state, size, workers) -> Room, before anything is packed.
    reduce: (compressor, layers, packed, compressor's old state, state, room, axis_name) -> Reduced.
      Without an axis name the only worker is this one.
    check: compressor -> None; raises ValueError for one that it cannot carry.
    prepare: (compressor, layers, residual or None, state, room, axis_name) -> Packed: all rounds but the last,
      whose message is packed, with what `finish` needs as its state. None when the collective takes one round.
    start: the arguments of `reduce` -> handle, while the exchange runs in the background; None when the
      collective cannot do that.
    wait: (handle, the same arguments) -> Reduced, now or in a later program; what was not started in this
      process (it has restored a checkpoint) is done now.
  """

  init: Callable[[Size], Any]
  room: Callable[[Any, Size, int], Room]
  reduce: Callable[..., Reduced]
  check: Callable[[Compressor], None]
  prepare: Callable[..., Packed] | None = None
  start: Callable[..., jax.Array] | None = None
  wait: Callable[..., Reduced] | None = None


def as_bytes(count: int) -> jax.Array:
  """A number of bytes for a receipt; four gigabytes and more read as 2^32 - 1."""
  return jnp.uint32(min(count, 2**32 - 1))


def whole_room(compressor: Compressor, layers: Layers) -> Room:
  """Room for any message of these layers: for trying a compressor by itself."""
  largest = compressor.size(layers).largest
  return Room(words=largest, live=1, capacity=largest)
