"""Layers in parts, so that several servers share one: a rewrite of the loss before it is differentiated.

A fully connected layer is split by columns ('vertical': parts of the result are put side by side), by rows
('horizontal': partial sums are added), or together with the one behind it ('both': each part has columns of the first
and rows of the second, and what is between them stays where it is). A table is split into ranges of rows ('rows').
Every part is a module of its own: 'top1' becomes 'top1_0', 'top1_1', ...; with 'both', 'top1' and 'top2' become
'top1+top2_0', ... with parameters 'top1.kernel', 'top2.kernel', ...
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dct_jax.partition import rewrite
from dct_jax.partition.fcs import Fc, Layers, layers_of
from dct_jax.partition.graph import Graph, forward_net, nbytes, shapes

VERTICAL, HORIZONTAL, BOTH, ROWS = KINDS = ('vertical', 'horizontal', 'both', 'rows')
Key = tuple[str, ...]  # a path in a tree
Choice = Mapping[str, tuple[str, int]]  # name of a layer -> how, and into how many parts


class Candidate(NamedTuple):
  """A layer that can be split.

  Attributes:
    name: of the layer.
    kinds: how it can be split.
    shape: rows and columns of its matrix.
    nbytes: of its matrix.
    behind: the layer that 'both' splits with it.
    pays: whether that one narrows what this one has widened, so that 'both' sends less than two splits.
  """

  name: str
  kinds: tuple[str, ...]
  shape: tuple[int, int]
  nbytes: int
  behind: str | None = None
  pays: bool = False


def find(loss: Callable, params: Any, *batch: Any) -> list[Candidate]:
  """Layers of a loss function that can be split, the largest first.

  Examples:
    >>> import jax.numpy as jnp
    >>> loss = lambda p, x: jnp.mean((jnp.tanh(x @ p['a']['w']) @ p['b']['w']) ** 2)
    >>> params = {'a': {'w': jnp.ones((4, 8))}, 'b': {'w': jnp.ones((8, 2))}}
    >>> [(c.name, c.kinds, c.behind) for c in find(loss, params, jnp.ones((16, 4)))]
    [('a', ('vertical', 'horizontal', 'both'), 'b'), ('b', ('vertical', 'horizontal'), None)]
  """
  graph = forward_net(loss, params, *batch)
  return candidates_of(graph, layers_of(graph))


def candidates_of(graph: Graph, layers: Layers) -> list[Candidate]:
  """The same for what has been traced and found."""
  found = []
  for fc in layers.fcs.values():
    behind = layers.between[fc.name][0] if fc.name in layers.between else None
    pays = behind is not None and fc.rows < fc.columns > layers.fcs[behind].columns
    kinds = (VERTICAL, HORIZONTAL, BOTH) if behind else (VERTICAL, HORIZONTAL)
    found.append(Candidate(fc.name, kinds, (fc.rows, fc.columns), _bytes(graph, fc.kernel), behind, pays))
  for table in layers.tables.values():
    aval = graph.avals[graph.slots[table.table].value]
    found.append(Candidate(table.name, (ROWS,), (table.rows, aval.size // table.rows), _bytes(graph, table.table)))
  return sorted(found, key=lambda c: -c.nbytes)


def _bytes(graph: Graph, slot: int) -> int:
  return nbytes(graph.avals[graph.slots[slot].value])


def apply(loss: Callable, params: Any, batch: tuple[Any, ...], choice: Choice) -> Split:
  """Splits layers of a loss function.

  Args:
    loss: `(params, *batch)` -> anything.
    params: arrays, or their shapes and types.
    batch: likewise, all other arguments.
    choice: name of a layer -> ('vertical' | 'horizontal' | 'both' | 'rows', number of parts). `find` tells names.

  Returns:
    The new loss with what splits and joins its parameters.

  Raises:
    ValueError: for a layer that there is not, or that cannot be split that way.

  Examples:
    >>> import jax, jax.numpy as jnp
    >>> loss = lambda p, x: jnp.mean((jnp.tanh(x @ p['a']['w']) @ p['b']['w']) ** 2)
    >>> params = {'a': {'w': jnp.ones((4, 8))}, 'b': {'w': jnp.ones((8, 2))}}
    >>> made = apply(loss, params, (jnp.ones((16, 4)),), {'a': ('both', 2)})
    >>> parts = made.split(params)
    >>> jax.tree.map(jnp.shape, parts)
    {'a+b_0': {'a.w': (4, 4), 'b.w': (4, 2)}, 'a+b_1': {'a.w': (4, 4), 'b.w': (4, 2)}}
    >>> bool(jnp.allclose(made.loss(parts, jnp.ones((16, 4))), loss(params, jnp.ones((16, 4)))))
    True
  """
  params = shapes(params)
  graph = forward_net(loss, params, *batch)
  layers = layers_of(graph)
  check(layers, choice)
  keys = tuple(tuple(jax.tree_util.keystr((k,), simple=True) for k in path) or ('w',)
               for path, _ in jax.tree_util.tree_leaves_with_path(params))
  pieces = _pieces(graph, layers, choice, keys)
  _check_names(keys, pieces)
  return Split(loss, dict(choice), params, keys, pieces)


def check(layers: Layers, choice: Choice) -> None:
  """Raises for what cannot be split."""
  taken: dict[str, str] = {}
  for name, how in choice.items():
    if not isinstance(how, tuple) or len(how) != 2 or how[0] not in KINDS:
      raise ValueError(f'{name!r} is split by a pair of one of {KINDS} and a number of parts, got {how!r}')
    kind, parts = how
    _check_one(layers, name, kind, parts)
    for layer in (name, layers.between[name][0]) if kind == BOTH else (name,):
      if layer in taken:
        raise ValueError(f'{layer!r} is split twice: by {taken[layer]!r} and by {name!r}')
      taken[layer] = name


def _check_one(layers: Layers, name: str, kind: str, parts: int) -> None:
  known = layers.tables if kind == ROWS else layers.fcs
  if name not in known:
    what = 'table' if kind == ROWS else 'FC'
    raise ValueError(f'{name!r} is no {what} that can be split: there are {", ".join(sorted(known)) or "none"}; '
                     'what has a tag stays whole')
  if kind == BOTH and name not in layers.between:
    raise ValueError(f'{name!r} has no FC behind it with elementwise operators between alone, so {BOTH!r} is not for '
                     f'it but for {", ".join(sorted(layers.between)) or "none"}')
  layer: Any = known[name]
  width = layer.columns if kind in (VERTICAL, BOTH) else layer.rows
  if not isinstance(parts, int) or isinstance(parts, bool) or not 1 <= parts <= width:
    raise ValueError(f'{name!r} is split into 1 to {width} parts ({kind}), got {parts!r}')


class Piece(NamedTuple):
  """How a parameter is split.

  Attributes:
    axis: along which it is; None for what the first part has all of.
    sizes: of the parts.
    keys: path of each part in the tree of split parameters.
  """

  axis: int | None
  sizes: tuple[int, ...]
  keys: tuple[Key, ...]


def _pieces(graph: Graph, layers: Layers, choice: Choice, keys: Sequence[Key]) -> dict[int, Piece]:
  """Slot -> how that parameter is split."""
  found: dict[int, Piece] = {}

  def add(fc: Fc, axis: int, sizes: tuple[int, ...], home: Key, label: str):
    put(fc.kernel, axis, sizes, home, label)
    if fc.bias is not None:
      shape = graph.avals[graph.slots[fc.bias].value].shape
      along = next((d for d, n in enumerate(shape) if n != 1), len(shape) - 1)
      put(fc.bias, along if axis == fc.outputs else None, sizes, home, label)

  def put(slot: int, axis: int | None, sizes: tuple[int, ...], home: Key, label: str):
    paths = tuple((*home[:-1], f'{home[-1]}_{i}', label + keys[slot][-1]) for i in range(len(sizes)))
    found[slot] = Piece(axis, sizes, paths if axis is not None else paths[:1])

  for name, (kind, parts) in choice.items():
    if kind == ROWS:
      table = layers.tables[name]
      put(table.table, 0, even(table.rows, parts), _home(keys[table.table], name), '')
      continue
    fc = layers.fcs[name]
    sizes, home = even(fc.rows if kind == HORIZONTAL else fc.columns, parts), _home(keys[fc.kernel], name)
    if kind != BOTH:
      add(fc, fc.inputs if kind == HORIZONTAL else fc.outputs, sizes, home, '')
      continue
    behind = layers.fcs[layers.between[name][0]]
    above, one, two = _apart(home, _home(keys[behind.kernel], behind.name))
    both = (*above, f'{one}+{two}')  # one module, so that nothing is sent between the two
    add(fc, fc.outputs, sizes, both, f'{one}.')
    add(behind, behind.inputs, sizes, both, f'{two}.')
  return found


def even(width: int, parts: int) -> tuple[int, ...]:
  """Sizes of parts that differ by one at most."""
  return tuple(len(x) for x in np.array_split(np.arange(width), parts))


def _home(key: Key, layer: str) -> Key:
  """What parts are named after: the module, or the matrix if it is not all that is in there."""
  module = '/'.join(key[:-1]).removeprefix('params').removeprefix('/')
  return key[:-1] if module and module == layer else key


def _apart(one: Key, two: Key) -> tuple[Key, str, str]:
  """What two paths have in common, and the rest of each."""
  common = 0
  while common < min(len(one), len(two)) - 1 and one[common] == two[common]:
    common += 1
  return one[:common], '.'.join(one[common:]), '.'.join(two[common:])


def _check_names(keys: Sequence[Key], pieces: dict[int, Piece]) -> None:
  stay = [k for i, k in enumerate(keys) if i not in pieces]
  new = {k[:-1] for piece in pieces.values() for k in piece.keys}
  taken = sorted('/'.join(k[:n]) for k in stay for n in range(len(k) + 1) if k[:n] in new)
  every = [k for piece in pieces.values() for k in piece.keys]
  taken += sorted({'/'.join(k) for k in every if every.count(k) > 1})
  if taken:
    raise ValueError(f'parts would have names that are taken: {", ".join(taken)}')


@dataclasses.dataclass(frozen=True)
class Split:
  """A loss function of split parameters.

  Attributes:
    whole: the function as it was.
    choice: what was split, and how.
    params: shapes of its parameters.
    keys: path of each.
    pieces: how parameters are split, by their numbers.
  """

  whole: Callable
  choice: dict[str, tuple[str, int]]
  params: Any
  keys: tuple[Key, ...]
  pieces: dict[int, Piece]

  @property
  def parts(self) -> tuple[str, ...]:
    """Paths of all parts."""
    return tuple(dict.fromkeys('/'.join(k[:-1]) for piece in self.pieces.values() for k in piece.keys))

  def loss(self, params: Any, *batch: Any) -> Any:
    """What the whole function gives for the joined parameters, to rounding, computed in parts."""
    return _rewritten(self, params, *batch)

  def split(self, tree: Any) -> Any:
    """Parameters in parts, in nested dicts; in an optimizer's state whatever has the shapes of parameters."""
    return _each(tree, self.params, self._split)

  def join(self, tree: Any) -> Any:
    """The whole parameters again, to the bit, for checkpoints and evaluation; of an optimizer's state likewise."""
    return _each(tree, self._split_shapes, self._join)

  @functools.cached_property
  def _split_shapes(self):
    return jax.eval_shape(self._split, self.params)

  def _split(self, params):
    tree: dict[str, Any] = {}
    for i, leaf in enumerate(jax.tree.leaves(params)):
      for key, part in self._parts_of(i, leaf):
        _put(tree, key, part)
    return tree

  def _parts_of(self, i, leaf):
    if i not in self.pieces:
      return [(self.keys[i], leaf)]
    axis, sizes, keys = self.pieces[i]
    if axis is None:
      return [(keys[0], leaf)]
    ends = list(itertools.accumulate(sizes))
    return [(key, jax.lax.slice_in_dim(jnp.asarray(leaf), end - n, end, axis=axis))
            for key, n, end in zip(keys, sizes, ends, strict=True)]

  def _join(self, tree):
    leaves = [_get(tree, self.keys[i]) if i not in self.pieces else
              _joined([_get(tree, k) for k in self.pieces[i].keys], self.pieces[i].axis) for i in range(len(self.keys))]
    return jax.tree.unflatten(jax.tree.structure(self.params), leaves)


def _joined(parts, axis):
  return parts[0] if axis is None else jnp.concatenate(parts, axis)


def _put(tree, key, leaf):
  for k in key[:-1]:
    tree = tree.setdefault(k, {})
  tree[key[-1]] = leaf


def _get(tree, key):
  return functools.reduce(lambda t, k: t[k], key, tree)


def _each(tree: Any, like: Any, change: Callable) -> Any:
  """Changes all subtrees that have the structure and the shapes of `like`; numbers beside them stay."""
  structure: Any = jax.tree.structure(like)
  wanted = [x.shape for x in jax.tree.leaves(like)]

  def alike(x):
    return structure == jax.tree.structure(x) and [jnp.shape(leaf) for leaf in jax.tree.leaves(x)] == wanted

  def changed(x):
    if alike(x):
      return change(x)
    if jnp.ndim(x):
      raise ValueError(f'an array of shape {jnp.shape(x)} belongs to no tree with the shapes of these parameters')
    return x

  return jax.tree.map(changed, tree, is_leaf=alike)


def _rewritten(split: Split, params: Any, *batch: Any) -> Any:
  """Traces the whole function for these shapes, and runs it with layers in parts."""
  graph = forward_net(split.whole, split.params, *batch)
  layers = layers_of(graph)
  known = dict(graph.constants)
  known.update((s.value, x) for s, x in zip(graph.slots[len(split.keys):], jax.tree.leaves(batch), strict=True))
  parts: dict[int, rewrite.Parts] = {}
  for i, slot in enumerate(graph.slots[:len(split.keys)]):
    if i in split.pieces:
      keys = split.pieces[i].keys
      modules = ['/'.join(k[:-1]).removeprefix('params/') for k in keys]
      parts[i] = rewrite.Parts([_get(params, k) for k in keys], modules)
    else:
      known[slot.value] = _get(params, split.keys[i])
  return rewrite.call(graph, rewrite.steps(graph, layers, split.choice), known, parts)
