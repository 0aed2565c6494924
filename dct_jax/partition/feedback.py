"""Error feedback on edges: what a codec leaves out of a gradient is added to the next one that goes the same way.

The DCT paper's Remark 2, which speaks of gradients of parameters, to the letter. All nets of a node share one buffer
for each value that it sends, so that what a batch has left goes along with any other one's, whatever its examples are.
Such a buffer grows stale: each entry's past is forgotten at random, once in so many batches on average.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dct_jax.compressors.error_feedback import drain
from dct_jax.partition import codecs
from dct_jax.partition.programs import Program


class EdgeBuffer(NamedTuple):
  """What is left of a value; sent + residual + what was drained = gradient + old residual."""

  residual: jax.Array  # float32, the value's shape
  key: jax.Array  # of the next drain
  drained: jax.Array  # uint32: entries that were forgotten so far and were not zero
  nonfinite: jax.Array  # uint32: entries of gradients that were NaN or infinite, of which nothing is kept


class EdgeFeedback:
  """The buffers of a node.

  Args:
    period: expected number of batches until an entry's past is forgotten.
    buffers: by number of the value.
  """

  def __init__(self, period: int, buffers: dict[int, EdgeBuffer]):
    self.period, self.buffers = period, buffers

  def encode(self, value: int, x: jax.Array, codec: str) -> Any:
    """What is sent for a value; its buffer is that after it."""
    if value not in self.buffers:
      return codecs.encode(x, codec)
    payload, self.buffers[value] = compress(x, self.buffers[value], codec, self.period)
    return payload

  def clear(self) -> None:
    """Forgets everything."""
    self.buffers = {v: b._replace(residual=jnp.zeros_like(b.residual)) for v, b in self.buffers.items()}


def empty(avals: Any, values: set[int], period: int, key: jax.Array) -> EdgeFeedback:
  """Buffers of values, with nothing in them."""
  zero = jnp.zeros((), jnp.uint32)
  return EdgeFeedback(period, {v: EdgeBuffer(jnp.zeros(avals[v].shape), jax.random.fold_in(key, v), zero, zero)
                               for v in sorted(values)})


def encodes(program: Program) -> set[int]:
  """Values that a node itself encodes: what came from another node is sent on as it is."""
  came = {t.value for step in program.steps for transfers in step.receives.values() for t in transfers}
  return {t.value for step in program.steps for transfers in step.sends.values() for t in transfers} - came


@functools.partial(jax.jit, static_argnames=('codec', 'period'))
def compress(x: jax.Array, buffer: EdgeBuffer, codec: str, period: int) -> tuple[Any, EdgeBuffer]:
  """The message of a gradient with its buffer's past, and the buffer after it.

  NaN and infinity cross as they are, alone.
  """
  key, mine = jax.random.split(buffer.key)
  (past,), drained = drain((buffer.residual,), period, mine)
  most, finite = float(jnp.finfo(jnp.float32).max), jnp.isfinite(x)
  total = jnp.where(finite, jnp.clip(x + past, -most, most), x)
  payload = codecs.encode(total, codec)
  left = total - codecs.decode(payload, codec, jax.typeof(x))
  return payload, EdgeBuffer(jnp.where(jnp.isfinite(left), left, 0), key, buffer.drained + drained,
                             buffer.nonfinite + jnp.sum(~finite, dtype=jnp.uint32))
