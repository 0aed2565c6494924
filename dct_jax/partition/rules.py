"""Rules: on which nodes a block may be, and where it is put first."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Sequence

import numpy as np

from dct_jax.partition.blocks import LAYER, TABLE, Blocks, OperatorBlock
from dct_jax.partition.loads import Estimate
from dct_jax.partition.placement import GROUP, SPARSE, TRAINER, Nodes

# Nodes that are allowed; None leaves it to the next rule.
Rule = Callable[[OperatorBlock, Nodes], 'tuple[str, ...] | None']


def by_tag(block: OperatorBlock, nodes: Nodes) -> tuple[str, ...] | None:
  """What the user has tagged is there."""
  return nodes.matching(block.tag) if block.tag else None


def tables_on_sparse_servers(block: OperatorBlock, nodes: Nodes) -> tuple[str, ...] | None:
  """Look-ups and updates of rows are where the table is."""
  return nodes.of_kind(SPARSE) or None if block.kind == TABLE else None


def layers_on_group_servers(block: OperatorBlock, nodes: Nodes) -> tuple[str, ...] | None:
  """A group has one copy of each parameter, so that it is not on trainers."""
  return nodes.of_kind(GROUP) or None if block.kind in (LAYER, TABLE) else None


def losses_on_trainers(block: OperatorBlock, nodes: Nodes) -> tuple[str, ...] | None:
  """The trainer has the labels, and tells the loss."""
  del nodes
  return (TRAINER,) if block.has_loss else None


def anywhere_in_the_group(block: OperatorBlock, nodes: Nodes) -> tuple[str, ...] | None:
  """Whatever has no parameters may be on the trainer, where it is first, or on a group server."""
  return (TRAINER, *nodes.of_kind(GROUP)) if not block.slots else (TRAINER,)


RULES: tuple[Rule, ...] = (by_tag, tables_on_sparse_servers, layers_on_group_servers, losses_on_trainers,
                           anywhere_in_the_group)


def named(pattern: str, tag: str) -> Rule:
  """A rule for blocks by their names, as in `named('top*', 'group0')`. A pattern that fits no block is an error."""
  return _ByName(pattern, tag)


@dataclasses.dataclass(frozen=True)
class _ByName:
  pattern: str
  tag: str

  def __call__(self, block: OperatorBlock, nodes: Nodes) -> tuple[str, ...] | None:
    return nodes.matching(self.tag) if self.fits(block) else None

  def fits(self, block: OperatorBlock) -> bool:
    return fnmatch.fnmatchcase(block.name, self.pattern)


def check(blocks: Blocks, rules: Sequence[Rule]) -> None:
  """Raises for what is no list of rules, and for a name that no block has."""
  if callable(rules) or not all(map(callable, rules)):
    raise ValueError(f'rules are a list of functions of a block and nodes, got {rules!r}')
  for rule in rules:
    if isinstance(rule, _ByName) and not any(map(rule.fits, blocks.blocks)):
      names = ', '.join(sorted({b.name for b in blocks.blocks}))
      raise ValueError(f'no block has a name like {rule.pattern!r}: there are {names}')


def allowed(blocks: Blocks, nodes: Nodes, rules: Sequence[Rule] = RULES) -> list[tuple[int, ...]]:
  """Numbers of the nodes that each block may be on; the first one is where it is put without a reason.

  Raises:
    ValueError: for a block that no rule speaks of, or a tag that names no node.
  """
  found = []
  for block in blocks.blocks:
    nodes_of = next((n for n in (rule(block, nodes) for rule in rules) if n is not None), None)
    if not nodes_of:
      raise ValueError(f'no rule says where {block.name!r} ({block.kind}) may be')
    if isinstance(nodes_of, str) or not set(nodes_of) <= set(nodes.names):
      raise ValueError(f'a rule gives a tuple of nodes, for {block.name!r} got {nodes_of!r}: there are '
                       f'{", ".join(nodes.names)}')
    found.append(tuple(nodes.names.index(n) for n in nodes_of))
  return found


def components(estimate: Estimate, may: Sequence[tuple[int, ...]]) -> list[list[int]]:
  """Blocks of servers that are connected: one sends to the other without a block of the trainer in between."""
  free = [b for b, nodes in enumerate(may) if 0 not in nodes]
  group = {b: b for b in free}

  def root(b):
    while group[b] != b:
      b = group[b]
    return b

  for k, reader in estimate.pairs:
    maker = int(estimate.makers[k])
    if maker in group and int(reader) in group and may[maker] == may[int(reader)]:
      group[root(int(reader))] = root(maker)
  found: dict[int, list[int]] = {}
  for b in free:
    found.setdefault(root(b), []).append(b)
  return list(found.values())


def place(estimate: Estimate, may: Sequence[tuple[int, ...]]) -> np.ndarray:
  """The paper's placement by rules: components dealt out so that servers have about as many bytes of weights."""
  at = np.array([nodes[0] for nodes in may], int)
  held = np.zeros(len(estimate.nodes.names))
  weight = lambda c: float(estimate.weights[c].sum())
  for component in sorted(components(estimate, may), key=weight, reverse=True):
    node = min(may[component[0]], key=lambda n: held[n])
    held[node] += weight(component)
    at[component] = node
  return at


def scattered(may: Sequence[tuple[int, ...]], seed: int = 0) -> np.ndarray:
  """A placement at random, to compare with."""
  draw = np.random.default_rng(seed)
  return np.array([nodes[draw.integers(len(nodes))] for nodes in may], int)
