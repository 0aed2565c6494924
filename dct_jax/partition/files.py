"""Plans in files: JSON that says where every block of a program is. A plan is refused for any other program."""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Callable
from typing import Any

import optax

from dct_jax.partition.blocks import Blocks, blocks_of
from dct_jax.partition.costs import Machine
from dct_jax.partition.graph import Graph
from dct_jax.partition.loads import Codecs, Estimate
from dct_jax.partition.placement import Nodes
from dct_jax.partition.plan import Plan, check_memory, split_net
from dct_jax.partition.refine import Move

FORMAT = 2  # 1 had fingerprints without settings of operators


def save(plan: Plan, path: str | os.PathLike) -> None:
  """Writes a plan as JSON, for `load` and for people."""
  pathlib.Path(path).write_text(json.dumps(_content(plan), indent=1) + '\n')


def load(path: str | os.PathLike, graph: Graph, nodes: Nodes | None = None) -> Plan:
  """Reads what `save` has written.

  Args:
    path: of the file.
    graph: of the program that the plan is for, from `train_net`.
    nodes: that there are, if that is to be checked.

  Raises:
    ValueError: for a file that has no plan, and for a plan of another program or of other nodes.
  """
  found = read(path)
  if found['program'] != graph.fingerprint:
    raise ValueError(f'{path} is a plan of another program ({found["program"]}, this one is {graph.fingerprint}): '
                     'its layers, batch, optimizer or splits differ; make a new plan')
  _choice(path, found)
  try:
    return _plan(found, graph, nodes)
  except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
    raise ValueError(f'{path} is no plan that fits: {_said(error)}') from None


def restore(path: str | os.PathLike, loss: Callable, optimizer: optax.GradientTransformation, params: Any, *batch: Any,
            nodes: Nodes | None = None, has_aux: bool = False) -> Plan:
  """Reads a plan for a loss function, whose layers are split as they were: arguments are those of `plan`.

  Raises:
    ValueError: as `load` does.
  """
  fc = str(read(path).get('fc', 'float32'))
  net, parts = split_net(loss, optimizer, params, *batch, choice=splits(path), has_aux=has_aux, fc=fc)
  return dataclasses.replace(load(path, net, nodes), parts=parts, fc=fc)


def read(path: str | os.PathLike) -> dict[str, Any]:
  """A plan's content without its program, for looking at it.

  Raises:
    ValueError: for a file that has no plan.
  """
  try:
    found = json.loads(pathlib.Path(path).read_text())
  except (ValueError, RecursionError) as error:
    raise ValueError(f'{path} is no plan, nor any JSON: {error}') from None
  if not isinstance(found, dict) or not {'format', 'program', 'nodes', 'placement'} <= set(found):
    raise ValueError(f'{path} is JSON, but no plan')
  if found['format'] != FORMAT:
    raise ValueError(f'{path} is a plan of format {found["format"]!r}, this version reads {FORMAT}')
  return found


def splits(path: str | os.PathLike) -> dict[str, tuple[str, int]]:
  """Layers that a saved plan splits: how, and into how many parts. Its program is that of the split function."""
  return _choice(path, read(path))


def _choice(path: str | os.PathLike, content: dict[str, Any]) -> dict[str, tuple[str, int]]:
  found = content.get('splits', {})
  try:
    return {layer: (how, _whole(parts)) for layer, (how, parts) in found.items()}
  except (AttributeError, TypeError, ValueError):
    raise ValueError(f'{path} has splits that are none: {found!r}') from None


def splits_of(plan: Plan) -> dict[str, tuple[str, int]]:
  """Layers that a plan splits, likewise."""
  return dict(getattr(getattr(plan, 'parts', None), 'choice', {}))


def block_names(blocks: Blocks) -> list[str]:
  """A name of its own for every block: the second one of a name has '#2' behind it."""
  seen = collections.Counter[str]()
  names = []
  for block in blocks.blocks:
    seen[block.name] += 1
    names.append(block.name if seen[block.name] == 1 else f'{block.name}#{seen[block.name]}')
  return names


def _content(plan: Plan) -> dict[str, Any]:
  names, nodes, estimate = block_names(plan.blocks), plan.nodes.names, plan.estimate
  machine = dataclasses.asdict(estimate.machine)
  machine['memory'] = None if math.isinf(machine['memory']) else machine['memory']  # JSON has no infinity
  moves = [{'blocks': [names[b] for b in m.blocks], 'nodes': [nodes[n] for n in m.nodes], 'before': m.before,
            'after': m.after, 'why': m.why} for m in plan.moves]
  return {'format': FORMAT, 'program': plan.graph.fingerprint, 'nodes': dataclasses.asdict(plan.nodes),
          'codecs': dataclasses.asdict(estimate.codec), 'machine': machine, 'nets': estimate.nets,
          'optimal': plan.optimal, 'splits': splits_of(plan), 'fc': plan.fc,
          'placement': {name: nodes[n] for name, n in zip(names, plan.at, strict=True)}, 'moves': moves}


def _plan(found: dict[str, Any], graph: Graph, nodes: Nodes | None) -> Plan:
  placed = Nodes(**found['nodes'])
  if nodes is not None and nodes != placed:
    raise ValueError(f'it is for {placed}, and there are {nodes}')
  blocks = blocks_of(graph)
  names = block_names(blocks)
  if set(names) != set(found['placement']):
    raise ValueError(f'it places other blocks: {_some(set(names) ^ set(found["placement"]))}')
  machine: dict[str, Any] = {k: math.inf if k == 'memory' and v is None else v for k, v in found['machine'].items()}
  estimate = Estimate(blocks, placed, Machine(**machine), Codecs(**found['codecs']), _whole(found['nets']))
  number = {name: i for i, name in enumerate(names)}
  node = lambda name: _number(name, placed)
  moves = tuple(Move(tuple(number[b] for b in m['blocks']), tuple(node(n) for n in m['nodes']), float(m['before']),
                     float(m['after']), str(m['why'])) for m in found['moves'])
  made = Plan(estimate, tuple(node(found['placement'][name]) for name in names), moves, found['optimal'] is True)
  _check_tags(made)
  check_memory(made)
  return made


def _check_tags(plan: Plan) -> None:
  """Tags may have changed since the plan was made."""
  for block, n in zip(plan.blocks.blocks, plan.at, strict=True):
    node = plan.nodes.names[n]
    if block.tag and node not in plan.nodes.matching(block.tag):
      raise ValueError(f'it has {block.name!r} on {node}, which has a tag for {block.tag}')


def _whole(number: Any) -> int:
  if type(number) is not int or number < 1:
    raise ValueError(f'{number!r} is no number of parts or nets')
  return number


def _number(name: Any, nodes: Nodes) -> int:
  if name not in nodes.names:
    raise ValueError(f'{name!r} is no node: there are {", ".join(nodes.names)}')
  return nodes.names.index(name)


def _some(names: set[str], most: int = 3) -> str:
  shown = ', '.join(repr(n) for n in sorted(names)[:most])
  return shown if len(names) <= most else f'{shown} and {len(names) - most} more'


def _said(error: Exception) -> str:
  return f'{error} is missing' if isinstance(error, KeyError) else str(error)
