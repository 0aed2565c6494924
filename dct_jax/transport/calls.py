"""Exchanges over a channel, from inside a traced function.

What they return is the same on all workers, and JAX takes it for that.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.typing import ArrayLike

from dct_jax.wire.exchanges import Algorithm, Op, Settings
from dct_jax.wire.format import VALUE_CODES

INFO = 8
BULK_WORDS = 2**15


class Info(NamedTuple):
  """What a reduction of messages tells; uint32 scalars, means over workers where not said otherwise."""

  nonfinite: jax.Array  # workers
  corrupt: jax.Array  # messages
  wanted: jax.Array  # words of the longest message
  encoded: jax.Array  # words
  missing: jax.Array  # words
  entries: jax.Array
  sent: jax.Array  # bytes
  union: jax.Array  # coordinates that somebody sent


# An exchange has side effects, of which XLA is told, so that it leaves out, repeats and swaps none. JAX is not:
# programs with effects of its kind take the slow way through Python at every call, which with some hundred
# arrays takes longer than the exchange. So results must be used; all of them are.
_exchange = Primitive('dct_jax_exchange')
_exchange.multiple_results = True


@functools.cache
def _compiled(**params):
  return jax.jit(functools.partial(_exchange.bind, **params))


_exchange.def_impl(lambda *args, **params: _compiled(**params)(*args))  # outside of any program


@_exchange.def_abstract_eval
def _(*args, results, **_):
  del args
  return [jax.core.ShapedArray(shape, dtype) for shape, dtype in results]


def _lower(context, *args, name, results, attributes):
  del results  # the context knows them
  lower = jax.ffi.ffi_lowering(f'dct_jax_{name}', has_side_effect=True)
  return lower(context, *args, **{k: np.array(v) if isinstance(v, tuple) else v for k, v in attributes})


mlir.register_lowering(_exchange, _lower, platform='cpu')


def _call(name, results, args, **attributes):
  one = hasattr(results, 'shape')
  shapes = tuple((r.shape, np.dtype(r.dtype)) for r in ([results] if one else results))
  hashable = tuple((k, tuple(v) if isinstance(v, np.ndarray) else v) for k, v in attributes.items())
  out = _exchange.bind(*args, name=name, results=shapes, attributes=hashable)
  return out[0] if one else tuple(out)


def _words(count):
  return jax.ShapeDtypeStruct((count,), jnp.uint32)


def gather_messages(message: jax.Array, channel: int, workers: int, bulk: ArrayLike = 0) -> jax.Array:
  """All workers' messages, uint32[workers, capacity]; only the words that are used travel.

  `bulk` says that messages are large (see `is_bulk`); a number that all workers must agree on.
  """
  shape = jax.ShapeDtypeStruct((workers, message.size), jnp.uint32)
  return _call('gather_messages', shape, [_control(bulk), message], channel=np.int64(channel))


def scatter_messages(messages: jax.Array, channel: int) -> jax.Array:
  """Everybody's message to this worker, uint32[workers, capacity]; row p of `messages` goes to worker p."""
  shape = jax.ShapeDtypeStruct(messages.shape, jnp.uint32)
  return _call('scatter_messages', shape, [messages], channel=np.int64(channel))


def is_bulk(words: int | jax.Array) -> jax.Array:
  """Whether messages of so many words should travel around a ring instead of directly."""
  return jnp.asarray(words > BULK_WORDS, jnp.uint32)


def _message_attributes(dense_layers, unit, value_codec):
  return {'dense_layers': np.int64(dense_layers), 'unit': np.int64(unit),
          'value_codec': np.int64(VALUE_CODES[value_codec])}


def _control(*scalars):
  return jnp.stack([jnp.asarray(s).astype(jnp.uint32).reshape(()) for s in scalars])


def _layer_shapes(layers):
  return [jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in layers]


def reduce_messages(message: jax.Array, layers: Sequence, channel: int, settings: Settings, *, algorithm: ArrayLike,
                    seed: ArrayLike = 0, bulk: ArrayLike = 0, started: ArrayLike = 0, pending: Sequence = (),
                    dense_layers: int = 0, unit: int = 1,
                    value_codec: str = 'float32') -> tuple[Info, tuple[jax.Array, ...]]:
  """The sum of all workers' messages, by an algorithm that is chosen at run time.

  Args:
    message: of a sparse stream.
    layers: those that entries were selected from, then those that travel whole; their shapes count.
    channel: from `Transport.open`.
    settings: static choices.
    algorithm: number of a `wire.exchanges.Algorithm`, equal on all workers.
    seed: of QSGD's rounding, equal on all workers.
    bulk: as in `gather_messages`.
    started: 1 takes the result of `start_messages` if there is one for this message.
    pending: what algorithm 'dense' sums instead of messages; float32, like `layers`.
    dense_layers: how many of the layers travel whole.
    unit: values an index.
    value_codec: of the message.

  Returns:
    `Info` and the summed layers.
  """
  control = _control(algorithm, seed, bulk, started)
  info, *sums = _call(
      'reduce_messages', [_words(INFO), *_layer_shapes(layers)], [control, message, *pending],
      channel=np.int64(channel), **_message_attributes(dense_layers, unit, value_codec),
      **settings.attributes())
  return Info(*info), tuple(sums)


def start_messages(message: jax.Array, layers: Sequence, channel: int, settings: Settings, *, algorithm: ArrayLike,
                   seed: ArrayLike = 0, bulk: ArrayLike = 0, pending: Sequence = (), dense_layers: int = 0,
                   unit: int = 1, value_codec: str = 'float32') -> jax.Array:
  """Starts `reduce_messages` in the background and returns a handle for `wait_messages`."""
  sizes = np.array([x.size for x in layers], np.int64)
  return _call(
      'reduce_messages_start', _words(1), [_control(algorithm, seed, bulk), message, *pending],
      channel=np.int64(channel), sizes=sizes, **_message_attributes(dense_layers, unit, value_codec),
      **settings.attributes())


def wait_messages(handle: jax.Array, message: jax.Array, *args: Any,
                  **options: Any) -> tuple[Info, tuple[jax.Array, ...]]:
  """Waits for what was started with the same arguments, in this program or an earlier one.

  If nothing was (this process has just restored a checkpoint), does it now. Returns as `reduce_messages` does.
  """
  # The handle is zero, which XLA does not know: so this cannot come before the start.
  return reduce_messages(message, *args, started=1 + handle[0], **options)


def reduce_stream(indices: jax.Array, value: jax.Array, count: ArrayLike, size: int, channel: int,
                  settings: Settings, *, algorithm: ArrayLike, op: Op = Op.SUM, seed: ArrayLike = 0,
                  capacity: int | None = None) -> tuple[jax.Array, Any]:
  """Reduces one vector a worker, given by its entries.

  Args:
    indices: uint32, the first `count` strictly increasing and below `size`; empty for a dense vector.
    value: float32, float64 or uint32.
    count: entries that mean something.
    size: coordinates.
    channel: from `Transport.open`.
    settings: static choices.
    algorithm: number of a `wire.exchanges.Algorithm`, equal on all workers.
    op: what is done with values of the same coordinate.
    seed: of QSGD's rounding, equal on all workers.
    capacity: entries of the result; None asks for a dense result.

  Returns:
    uint32[2] (entries of the result, mean bytes sent), and the dense result or (indices, values).
  """
  shapes = [_words(2)]
  if capacity is None:
    shapes += [jax.ShapeDtypeStruct((size,), value.dtype)]
  else:
    shapes += [_words(capacity), jax.ShapeDtypeStruct((capacity,), value.dtype)]
  control = _control(count, algorithm, seed, is_bulk(2 * value.size))
  info, *out = _call('reduce_stream', shapes, [control, indices, value], channel=np.int64(channel),
                     size=np.int64(size), op=np.int64(op), **settings.attributes())
  return info, (out[0] if capacity is None else tuple(out))


def mean(x: jax.Array, channel: int, workers: int) -> jax.Array:
  """The mean of a short vector over workers, in one round; for a loss and its like."""
  nothing = jnp.zeros(0, jnp.uint32)  # no indices: the vector is dense
  _, total = reduce_stream(nothing, x, x.size, x.size, channel, Settings(), algorithm=int(Algorithm.ALL_GATHER))
  return total / workers
