"""signSGD with majority vote: workers send signs, and the sign that most of them have comes back."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dct_jax import arrays, state
from dct_jax.arrays import ceil_div, u32
from dct_jax.compressors import linear
from dct_jax.contract import ADD_U32, NOTHING, Compressor, Layers, Part, Round, Rounds, Size
from dct_jax.kernels import bit_packing


@state.own(layers=state.NEVER, live=state.NEVER)
class SignVoteCarry(NamedTuple):
  """What is known while votes are counted."""

  layers: Layers
  live: jax.Array  # uint32[1]


def sign_vote() -> Compressor:
  r"""Replaces every entry by the sign that most workers' entries have.

  .. math:: \operatorname{sign}\Big(\sum_w \operatorname{sign}(g_w)\Big)

  Votes of n workers add up in fields of as many bits as 2 n has digits, so that an ordinary sum of integers
  counts them: 3 bits an entry with 2 or 3 workers, 4 with 4 to 7. Zeros do not vote, and a tie moves nothing. The
  answer is -1, 0 or 1 whatever the gradients are: the learning rate behind it is a length.

  Use it with the `psum` collective and without `error_feedback`: a vote is no amount. The paper's Signum has a
  momentum on each worker in front of it, `dct_jax.per_worker(optax.trace(0.9))`.

  Returns:
    A `Compressor` for `psum`.

  Examples:
    >>> import dct_jax, jax.numpy as jnp
    >>> tx = dct_jax.compressed_mean(dct_jax.sign_vote(), dct_jax.psum(), 'data')
    >>> update, state = dct_jax.simulate(tx, jnp.zeros(4), workers=3)
    >>> grads = jnp.array([[5.0, -1.0, 0.0, 0.0], [-1.0, -2.0, 3.0, 0.0], [0.1, 7.0, -9.0, 0.0]])
    >>> update(grads, state, None)[0].tolist()
    [1.0, -1.0, 0.0, 0.0]

  References:
    Bernstein, Zhao, Azizzadenesheli and Anandkumar, signSGD with Majority Vote is Communication Efficient and Fault
    Tolerant, ICLR 2019.
  """

  def begin(layers, residual, state, room):
    del residual, state
    live = jnp.asarray(room.live, jnp.uint32).reshape(1)
    return SignVoteCarry(tuple(x.astype(jnp.float32) for x in layers), live)

  def pack(carry, total, workers):
    del total
    flat = jnp.concatenate([x.reshape(-1) for x in carry.layers])
    sign = jnp.where((flat != 0) & (carry.live[0] != 0), jnp.where(flat < 0, -1, 1), 0)
    fields = bit_packing.pack(u32(sign + 1), _bits(workers))
    return jnp.concatenate([1 - carry.live, fields]), carry

  def finish(carry, total, workers, bad):
    del bad  # the step is called off by whoever uses this
    count = sum(x.size for x in carry.layers)
    votes = bit_packing.unpack(total[linear.FLAG_WORDS:], count, _bits(workers)).astype(jnp.int32) - workers
    return arrays.cut(jnp.sign(votes).astype(jnp.float32) * workers, carry.layers), None, ()

  def parts(layers, workers):
    return (Part(ADD_U32, linear.FLAG_WORDS + _words(sum(x.size for x in layers), workers)),)

  def size(layers):
    count = sum(x.size for x in layers)
    most = linear.FLAG_WORDS + count
    return Size(linear.FLAG_WORDS, linear.FLAG_WORDS + _words(count, 2), most, count)

  return linear.of_rounds(lambda layers: (), size, Rounds(begin, (Round(parts, pack),), finish), NOTHING)


def _bits(workers: int) -> int:
  """Of a field that holds the sum of as many numbers from 0 to 2."""
  return (2 * workers).bit_length()


def _words(count: int, workers: int) -> int:
  return ceil_div(count, 32 // _bits(workers))
