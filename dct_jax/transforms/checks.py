"""Gradients in and out of their tree, and what is refused on the way."""

from __future__ import annotations

import zlib

import jax
import jax.numpy as jnp
import numpy as np

from dct_jax import axes

SUPPORTED = (jnp.float32, jnp.bfloat16, jnp.float16)


def _mask_leaves(tree, mask):
  leaves, structure = jax.tree.flatten(tree)
  if mask is None:
    return leaves, structure, [True] * len(leaves)
  flags = mask(tree) if callable(mask) else mask
  given = jax.tree.structure(flags)
  if str(given) != str(structure):
    raise ValueError(f'mask must be a tree like the parameters, {structure}, got {given}')
  return leaves, structure, [bool(f) for f in jax.tree.leaves(flags)]


def split_layers(tree, mask):
  """The leaves to compress and those that the mask leaves out. Scalars get one axis."""
  leaves, _, flags = _mask_leaves(tree, mask)
  if not leaves:
    return (), ()
  named = [jnp.asarray(x).reshape(jnp.shape(x) or (1,)) for x in leaves]
  chosen = tuple(x for x, f in zip(named, flags, strict=True) if f)
  return chosen, tuple(x for x, f in zip(named, flags, strict=True) if not f)


def group_of(tree, mask=None) -> np.uint32:
  """A number for random choices, by the places that the layers to compress have in the tree.

  Groups of `optax.multi_transform` and buckets have other layers, and so other choices.
  """
  _, _, flags = _mask_leaves(tree, mask)
  paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
  return np.uint32(zlib.crc32('\n'.join(p for p, f in zip(paths, flags, strict=True) if f).encode()))


def merge_layers(tree, mask, compressed, exact):
  """The inverse of `split_layers`, in the shapes and types of `tree`."""
  leaves, structure, flags = _mask_leaves(tree, mask)
  a, b = iter(compressed), iter(exact)
  out = [_cast(next(a) if f else next(b), x) for x, f in zip(leaves, flags, strict=True)]
  return jax.tree.unflatten(structure, out)


def _cast(mean, like):
  """In the type of the gradient. What has piled up in a residual may exceed a narrow one: its largest then."""
  dtype = jnp.asarray(like).dtype  # of a Python number, too
  if dtype != mean.dtype:
    most = float(jnp.finfo(dtype).max)
    mean = jnp.clip(mean, -most, most)  # NaN stays NaN
  return mean.reshape(jnp.shape(like)).astype(dtype)


def check_layers(layers, what):
  """Only real floating point of at most 32 bits: anything else is a mistake further up."""
  if not layers:
    raise ValueError(f'there are no {what} to compress: the tree is empty or the mask leaves out all')
  for i, x in enumerate(layers):
    if x.dtype not in [jnp.dtype(d) for d in SUPPORTED]:
      raise ValueError(f'{what} must be float32, bfloat16 or float16, got dtype={x.dtype} with '
                       f'shape={x.shape} in leaf {i}')


def check_local(layers, worker, axis_name):
  """Returns the layers, known to differ by worker; refuses those that were already summed.

  Gradients of replicated parameters come out of jax.grad summed, and that cannot be undone. It shows when a
  gradient is known to be equal on all workers while the state is not. (Where the state is not either, as
  inside jax.eval_shape, nothing is known and nothing is wrong.)
  """
  if axis_name is None:
    return layers
  axes.axis_size(axis_name)
  if not axes.tracked(axis_name):
    return layers
  everyone = axes.names(axis_name)
  for i, x in enumerate(jax.tree.leaves(layers)):
    if everyone <= axes.varying_axes(worker) and not everyone <= axes.varying_axes(x):
      raise ValueError(
          f'leaf {i} of the gradients is the same on all workers of {axis_name=}: it was summed '
          'already (jax.grad does that for replicated parameters). Use '
          'dct_jax.local_value_and_grad, or cast the parameters to varying before jax.grad')
  return jax.tree.map(lambda x: axes.make_varying(x, everyone), layers)


def check_residual(layers, residual):
  got, had = [x.shape for x in layers], [e.shape for e in residual]
  if got != had:
    raise ValueError('the gradients have changed since init: the residual was made for '
                     f'shapes={had}, got shapes={got}')
