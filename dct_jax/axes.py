"""Mesh axes as seen from inside a mapped function. JAX renames things here; we follow in one place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from dct_jax import arrays

AxisName = str | tuple[str, ...]
Tree = TypeVar('Tree')


def varying_axes(x: Any) -> frozenset[str]:
  """Axes over which JAX knows `x` to differ; empty when it does not track that."""
  kind = jax.typeof(x)
  if hasattr(kind, 'mat'):
    return kind.mat.varying
  return getattr(kind, 'vma', frozenset())


def tracked(axis_name: AxisName) -> bool:
  """Whether this function runs where JAX tracks varying axes (shard_map, by default)."""
  return bool(varying_axes(lax.axis_index(axis_name)))


def make_varying(x: Any, axes: Iterable[str]) -> jax.Array:
  """Marks `x` as different on each worker of `axes`; no data moves."""
  missing = tuple(sorted(frozenset(axes) - varying_axes(x)))
  return lax.pcast(x, missing, to='varying') if missing else x


def vary_as(tree: Tree, inputs: Iterable[Any]) -> Tree:
  """Marks every array of `tree` as different on each worker over which one of `inputs` differs."""
  varying = frozenset().union(*(varying_axes(x) for x in inputs))
  return jax.tree.map(lambda x: make_varying(x, varying), tree)


def names(axis_name: AxisName) -> frozenset[str]:
  """The single axes that a name stands for."""
  return frozenset((axis_name,) if isinstance(axis_name, str) else axis_name)


def axis_size(axis_name: AxisName | None) -> int:
  """Number of workers, static; 1 without an axis.

  Raises:
    ValueError: if no such axis is mapped here.
  """
  if axis_name is None:
    return 1
  try:
    return lax.axis_size(axis_name)
  except NameError:
    raise ValueError(
        f'no mapped axis is called {axis_name=} here; call update() inside shard_map, pmap or '
        'vmap with that axis, or use axis_name=None to run on one worker') from None


def worker(axis_name: AxisName | None) -> jax.Array:
  """uint32: which worker this is; 0 without an axis."""
  return jnp.uint32(0) if axis_name is None else lax.axis_index(axis_name).astype(jnp.uint32)


def sum_together(parts: Sequence[jax.Array], axis_name: AxisName) -> tuple[jax.Array, ...]:
  """Sums of several float32 arrays over the workers, in one collective: each costs a round trip."""
  flat = lax.psum(jnp.concatenate([x.reshape(-1) for x in parts]), axis_name)
  return arrays.cut(flat, parts)


def gather(x: jax.Array, axis_name: AxisName) -> jax.Array:
  """All workers' `x` in their order, [workers, ...], known to be equal everywhere if that is tracked."""
  to = 'invarying' if tracked(axis_name) else 'varying'
  return lax.all_gather(x, axis_name, to=to)
