"""How values travel on edges of a plan."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from dct_jax.wire import values

EXACT = 'exact'
CODECS = (EXACT, 'bfloat16', 'float16', 'int8')


def check(codec: str) -> str:
  """The codec, or a ValueError."""
  if codec not in CODECS:
    raise ValueError(f'values travel as one of {CODECS}, got {codec!r}')
  return codec


def fits(aval: Any, codec: str) -> bool:
  """Whether values of this shape and type can travel in a codec; what cannot goes exact."""
  return codec == EXACT or (aval.dtype == jnp.float32 and aval.ndim > 0)


def encoded_bytes(aval: Any, codec: str) -> int:
  """Bytes of a value on an edge."""
  return _encoded_bytes(aval.shape, aval.dtype, codec)


@functools.lru_cache(4096)
def _encoded_bytes(shape, dtype, codec):
  made = jax.eval_shape(functools.partial(encode, codec=codec), jax.ShapeDtypeStruct(shape, dtype))
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(made))


@functools.partial(jax.jit, static_argnames='codec')
def encode(x: jax.Array, codec: str) -> Any:
  """Arrays that stand for `x`. Keys travel as their words."""
  if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
    return jax.random.key_data(x)
  if codec == EXACT:
    return x
  return values.int8_rows(x) if codec == 'int8' else values.narrow(x, codec)


def decode(payload: Any, codec: str, aval: Any) -> jax.Array:
  """The value that arrives."""
  if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
    return jax.random.wrap_key_data(payload, impl=_key_kind(aval.dtype))
  if codec == EXACT:
    return payload
  return _widen(payload, codec)


@functools.lru_cache(64)
def _key_kind(dtype):
  """What `wrap_key_data` wants to know. JAX tells it of keys alone, not of their types."""
  found: list[Any] = []
  jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), jax.ShapeDtypeStruct((), dtype))
  return found[0]


@functools.partial(jax.jit, static_argnames='codec')
def _widen(payload, codec):
  return payload[0].astype(jnp.float32) * payload[1] if codec == 'int8' else payload.astype(jnp.float32)
