"""How values travel on edges of a plan."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dct_jax.compressors import fraction
from dct_jax.wire import values

EXACT, SPARSE = 'exact', 'sparse'
CODECS = (EXACT, 'bfloat16', 'float16', 'int8', 'int4', SPARSE)
SPARSITY = 0.9  # of 'sparse' alone; 'sparse:0.95' says another one
SPELLED = f'{", ".join(CODECS[:-1])}, or {SPARSE}:{SPARSITY} (the share of a row that is left out)'


def check(codec: str) -> str:
  """The codec, or a ValueError."""
  if kind(codec) not in CODECS or (':' in codec and kind(codec) != SPARSE):
    raise ValueError(f'values travel as one of {SPELLED}, got {codec!r}')
  if kind(codec) == SPARSE:
    fraction.check(SPARSE, _sparsity(codec), zero=True)
  return codec


def kind(codec: str) -> str:
  """A codec without its number: one of `CODECS`."""
  return codec.partition(':')[0]


def _sparsity(codec: str) -> float:
  try:
    return float(codec.partition(':')[2]) if ':' in codec else SPARSITY
  except ValueError:
    raise ValueError(f'a sparsity is a number, as in {SPARSE}:{SPARSITY}, got {codec!r}') from None


def kept(width: int, codec: str) -> int:
  """Entries of a row that a sparse codec sends: those from the threshold of DCT-MP on, at floor(width * sparsity)."""
  return width - max(fraction.floor_once(width, _sparsity(codec)), 1) + 1


def fits(aval: Any, codec: str) -> bool:
  """Whether values of this shape and type can travel in a codec; what cannot goes exact.

  What is sparse has rows, one for each example, which are shorter that way.
  """
  if codec == EXACT:
    return True
  if aval.dtype != jnp.float32 or not aval.ndim:
    return False
  return kind(codec) != SPARSE or (aval.ndim > 1 and encoded_bytes(aval, codec) < 4 * aval.size)


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
  if kind(codec) == SPARSE:
    return _largest(x, kept(x.shape[-1], codec))
  rows = {'int8': values.int8_rows, 'int4': values.int4_rows}
  return rows[codec](x) if codec in rows else values.narrow(x, codec)


def _largest(x, count):
  """Where the largest entries of each row are, and what they are; of equal ones the first. NaN is the largest.

  Algorithm 2 of the DCT paper would send all that equal the threshold. Messages of a plan have one length, so that
  those beyond it stay behind.
  """
  _, at = lax.top_k(jnp.where(jnp.isnan(x), jnp.inf, jnp.abs(x)), count)
  narrow = next(kind for kind in (jnp.uint8, jnp.uint16, jnp.uint32) if x.shape[-1] <= jnp.iinfo(kind).max + 1)
  return at.astype(narrow), jnp.take_along_axis(x, at, axis=-1)


def decode(payload: Any, codec: str, aval: Any) -> jax.Array:
  """The value that arrives."""
  if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
    return jax.random.wrap_key_data(payload, impl=_key_kind(aval.dtype))
  if codec == EXACT:
    return payload
  return _widen(payload, codec, tuple(aval.shape))


@functools.lru_cache(64)
def _key_kind(dtype):
  """What `wrap_key_data` wants to know. JAX tells it of keys alone, not of their types."""
  found: list[Any] = []
  jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), jax.ShapeDtypeStruct((), dtype))
  return found[0]


@functools.partial(jax.jit, static_argnames=('codec', 'shape'))
def _widen(payload, codec, shape):
  if codec in ('bfloat16', 'float16'):
    return payload.astype(jnp.float32)
  first, second = payload
  if kind(codec) == SPARSE:
    return jnp.put_along_axis(jnp.zeros(shape), first.astype(jnp.int32), second, axis=-1, inplace=False)
  return values.from_int4_rows(first, second, shape[-1]) if codec == 'int4' else first.astype(jnp.float32) * second
