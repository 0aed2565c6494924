"""Messages of blocks in pure JAX: every layer becomes so many words, in every step (docs/wire_format.md)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from dct_jax import axes
from dct_jax.arrays import add_residual, floats_of, u32, words_of
from dct_jax.kernels.hashing import checksum
from dct_jax.wire.format import HEADER, MAGIC

Layers = Sequence[jax.Array]
Shapes = Sequence[jax.Array | jax.ShapeDtypeStruct]  # layers of which only the shapes count


class BlockCodec(NamedTuple):
  """How the entries of a layer become words.

  Attributes:
    code: value codec of docs/wire_format.md.
    num_words: count -> words of a block.
    quantize: (float32[count], index of its first entry among all layers, seed) -> words.
    dequantize: (words, count) -> float32[count]. What it ends with must not be a product: with the sum that
      follows it would become one operation, which rounds differently.
    num_scales: count -> how many words at the start of a block are float32 scales.
    most: the largest scale that a receiver accepts.
  """

  code: int
  num_words: Callable[[int], int]
  quantize: Callable[[jax.Array, int, ArrayLike], jax.Array]
  dequantize: Callable[[jax.Array, int], jax.Array]
  num_scales: Callable[[int], int]
  most: float


def seal(code: int, body: jax.Array, length: jax.Array, wanted: ArrayLike, live: ArrayLike) -> jax.Array:
  """A message: the header with its checksum, then the body."""
  head = [u32(MAGIC | code), u32(length), u32(wanted), u32(0), u32(live == 0), u32(0)]
  words = jnp.concatenate([jnp.stack(head), body])
  return words.at[5].set(checksum(words, length))


def encode(codec: BlockCodec, layers: Layers, residual: Layers | None, dense: jax.Array, seed: ArrayLike,
           live: jax.Array, silent: jax.Array, capacity: int) -> tuple[jax.Array, tuple[jax.Array, ...] | None]:
  """A message and the new residual; the arguments are those of `kernels.qsgd_encode`."""
  sums, blocks, at = add_residual(layers, residual), [], 0
  for x in sums:
    blocks.append(codec.quantize(x, at, seed))
    at += x.size
  silent = (silent != 0) | (live == 0)
  body = jnp.concatenate([dense, *blocks])
  full = HEADER + body.size
  body = jnp.pad(jnp.where(silent, 0, body), (0, max(0, capacity - full)))[:capacity - HEADER]
  words = seal(codec.code, body, jnp.where(silent, HEADER, u32(full)), full, live)
  if residual is None:
    return words, None
  left = [x - jnp.where(silent, 0, codec.dequantize(b, x.size)) for b, x in zip(blocks, sums, strict=True)]
  return words, new_residual(left, residual, live)


def new_residual(left: Layers, residual: Layers, live: ArrayLike) -> tuple[jax.Array, ...]:
  """What flat layers have left, in the shapes of the residual; without a gradient it stays as it was."""
  return tuple(jnp.where(live == 0, e, x.reshape(e.shape)) for x, e in zip(left, residual, strict=True))


def _valid(codec, words, starts, layers):
  """Whether a message holds; `starts` is where the blocks begin, and last the length."""
  length = words[1]
  fits = (length == HEADER) | (length == starts[-1] if starts[-1] <= words.size else False)
  valid = (words[0] == u32(MAGIC | codec.code)) & (words[3] == 0) & fits
  valid &= checksum(words, length) == words[5]
  if starts[-1] > words.size:
    return valid
  most = words_of(jnp.float32(codec.most))
  for start, x in zip(starts, layers, strict=False):
    scales = words[start:start + codec.num_scales(x.size)]
    valid &= (length == HEADER) | (scales <= most).all()
  return valid


def sum_messages(codec: BlockCodec, words: jax.Array, layers: Shapes,
                 dense: Shapes) -> tuple[jax.Array, tuple[jax.Array, ...]]:
  """Adds messages in their order; `layers` and `dense` are the shapes of what they carry."""
  starts = [HEADER + sum(x.size for x in dense)]
  for x in layers:
    starts.append(starts[-1] + codec.num_words(x.size))

  def read(message):
    valid = _valid(codec, message, starts, layers)
    use = valid & (message[1] != HEADER)
    message = jnp.pad(message, (0, max(0, starts[-1] - message.size)))
    parts = [codec.dequantize(message[a:b], x.size)
             for a, b, x in zip(starts, starts[1:], layers, strict=False)]
    return valid, [jnp.where(use, p, 0) for p in (*parts, *dense_parts(message, dense))]

  return add_up(read, words, layers, dense)


def dense_parts(message: jax.Array, dense: Shapes) -> list[jax.Array]:
  """The layers that travelled whole, flat."""
  ends = [HEADER]
  for x in dense:
    ends.append(ends[-1] + x.size)
  return [floats_of(message[a:b]) for a, b in itertools.pairwise(ends)]


def add_up(read: Callable, words: jax.Array, layers: Shapes,
           dense: Shapes) -> tuple[jax.Array, tuple[jax.Array, ...]]:
  """Intact or not, and sums; read(message) -> whether it is valid, flat arrays, of zeros if it is not."""

  def add(total, message):
    valid, parts = read(message)
    return [t + p.reshape(t.shape) for t, p in zip(total, parts, strict=True)], u32(valid)

  zero = [jnp.zeros(x.shape, jnp.float32) for x in (*layers, *dense)]
  total, intact = lax.scan(add, axes.vary_as(zero, (words,)), words)
  return intact, tuple(total)
