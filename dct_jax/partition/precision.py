"""Fully connected layers that compute their products forward in 8 bits, as the paper's Model-B does.

A rewrite of a loss before it is differentiated, after its layers were split. Rows of activations and columns of weights
are whole multiples of scales of their own; these whole numbers are multiplied, and added up without rounding. Gradients
are those of the product in float32, as if nothing had been rounded, and so are weights and updates.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core
from jax.interpreters import batching, mlir

from dct_jax.partition import rewrite
from dct_jax.partition.fcs import Fc, layers_of
from dct_jax.partition.graph import Graph, forward_net
from dct_jax.wire import values

FCS = ('float32', 'int8')


def fcs_in(function: Callable, fc: str) -> Callable:
  """The function with products of its FCs in 'int8', or as it is.

  Args:
    function: `(params, *batch)` -> anything.
    fc: one of `FCS`.

  Examples:
    >>> import jax, jax.numpy as jnp
    >>> product = lambda p, x: x @ p['w']
    >>> params, x = {'w': jnp.array([[1.0], [0.5]])}, jnp.array([[1.0, 0.3]])
    >>> exact, whole = float(product(params, x)[0, 0]), float(fcs_in(product, 'int8')(params, x)[0, 0])
    >>> f'{exact:.4f} {whole:.4f} {(127 * 127 + 38 * 64) / 127**2:.4f}'
    '1.1500 1.1508 1.1508'
  """
  if fc not in FCS:
    raise ValueError(f'FCs compute forward in one of {FCS}, got {fc=}')
  return function if fc == 'float32' else functools.partial(_rewritten, function)


def _rewritten(function, params, *batch):
  graph = forward_net(function, params, *batch)
  known = dict(graph.constants)
  known.update((s.value, x) for s, x in zip(graph.slots, jax.tree.leaves((params, *batch)), strict=True))
  products = [rewrite.Rewrite(frozenset([fc.dot]), functools.partial(_replace, graph, fc))
              for fc in layers_of(graph).fcs.values() if _is_float32(graph, fc)]
  return rewrite.call(graph, products, known, {})


def _is_float32(graph: Graph, fc: Fc) -> bool:
  op = graph.operators[fc.dot]
  return all(graph.avals[v].dtype == jnp.float32 for v in (*op.reads, *op.outputs))


def _replace(graph: Graph, fc: Fc, known: rewrite.Known, parts: Any) -> tuple[int, Any]:
  del parts
  op = graph.operators[fc.dot]
  left, right = (known[v] for v in op.reads)
  with rewrite.scope(op.name):
    return op.outputs[0], product(left, right, op.equation.params['dimension_numbers'])


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def product(left: jax.Array, right: jax.Array, numbers: Any) -> jax.Array:
  """A product of matrices in whole numbers; `numbers` are those of `lax.dot_general`, without axes of a batch."""
  return _int8_product.bind(left, right, dimension_numbers=numbers)


def _multiply(left, right, *, dimension_numbers):
  ((a,), (b,)), _ = dimension_numbers
  (one, rows), (two, columns) = _whole(left, a), _whole(right, b)
  summed = lax.dot_general(one, two, dimension_numbers, preferred_element_type=jnp.int32).astype(jnp.float32)
  return summed * rows.reshape(*rows.shape, *[1] * columns.ndim) * columns


def _shape(left, right, *, dimension_numbers):
  ((a,), (b,)), _ = dimension_numbers
  return left.update(shape=(*np.delete(left.shape, a).tolist(), *np.delete(right.shape, b).tolist()))


def _batch(given, axes, **numbers):
  return jax.vmap(functools.partial(_multiply, **numbers), axes)(*given), 0


# One operator of a plan: nothing of it may be on another node than the weights.
_int8_product = core.Primitive('int8_product')
_int8_product.def_impl(jax.jit(_multiply, static_argnames='dimension_numbers'))
_int8_product.def_abstract_eval(_shape)
mlir.register_lowering(_int8_product, mlir.lower_fun(_multiply, multiple_results=False))
batching.primitive_batchers[_int8_product] = _batch


def _whole(x, axis):
  """int8 numbers, and a scale for each row along an axis."""
  numbers, scale = values.int8_rows(jnp.moveaxis(x, axis, -1))
  return jnp.moveaxis(numbers, -1, axis), scale[..., 0]


def _backward(numbers, kept, gradient):
  left, right = kept
  dot = functools.partial(lax.dot_general, dimension_numbers=numbers)
  of_left, = jax.linear_transpose(lambda x: dot(x, right), left)(gradient)
  of_right, = jax.linear_transpose(lambda x: dot(left, x), right)(gradient)
  return of_left, of_right


product.defvjp(lambda left, right, numbers: (product(left, right, numbers), (left, right)), _backward)
