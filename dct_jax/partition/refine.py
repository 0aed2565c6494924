"""Greedy refinement: blocks leave the busiest node while that helps."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dct_jax.partition.loads import RESOURCES, Estimate, Load


class Move(NamedTuple):
  """A step of the refinement, and why it was taken."""

  blocks: tuple[int, ...]
  nodes: tuple[int, ...]
  before: float
  after: float
  why: str


def refine(estimate: Estimate, at: np.ndarray, may: Sequence[tuple[int, ...]], *, seconds: float = 5.0,
           swaps: bool = True) -> tuple[np.ndarray, list[Move]]:
  """Moves blocks away from the bottleneck until that does not help any more, or time is up.

  Args:
    estimate: of the program.
    at: the placement to begin with.
    may: nodes that each block may be on.
    seconds: after which the best placement so far is taken.
    swaps: ours. Two blocks may also change places; the paper moves single ones.

  Returns:
    A placement, and the moves that led to it.
  """
  at, moves, end = at.copy(), [], time.monotonic() + seconds
  load = estimate.load(at)
  while time.monotonic() < end:
    node, resource = np.unravel_index(load.seconds.argmax(), load.seconds.shape)
    best, chosen = load, None
    for blocks, nodes in _candidates(at, may, int(node), swaps):
      if time.monotonic() > end:
        break
      tried = at.copy()
      tried[list(blocks)] = nodes
      found = estimate.load(tried)
      if found.key < best.key and _fits(estimate, found):
        best, chosen = found, (blocks, nodes)
    if chosen is None:
      break
    moves.append(Move(*chosen, load.bottleneck, best.bottleneck,
                      _why(estimate, *chosen, int(node), RESOURCES[resource], load, best)))
    at[list(chosen[0])] = chosen[1]
    load = best
  return at, moves


def _candidates(at: np.ndarray, may, node: int, swaps: bool) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
  """Moves of blocks that are on a node, then of all others; and swaps of the former with the latter.

  Blocks of other nodes count as well: what two servers have for each other goes through the trainer, so that it is
  relieved when they come together.
  """
  here = [b for b in range(len(at)) if at[b] == node and len(may[b]) > 1]
  others = [b for b in range(len(at)) if at[b] != node and len(may[b]) > 1]
  for b in (*here, *others):
    yield from (((b,), (n,)) for n in may[b] if n != at[b])
  if swaps:
    for a, b in itertools.product(here, others):
      if at[b] in may[a] and node in may[b]:
        yield (a, b), (int(at[b]), node)


def _fits(estimate: Estimate, load: Load) -> bool:
  return bool((load.memory <= estimate.machine.memory).all())


def _why(estimate, blocks, nodes, node, resource, before, after) -> str:
  names, of = estimate.nodes.names, estimate.blocks.blocks
  moved = ' and '.join(f'{of[b].name} to {names[n]}' for b, n in zip(blocks, nodes, strict=True))
  return (f'{names[node]} was the bottleneck ({resource}, {before.bottleneck * 1e3:.2f} ms): {moved} makes it '
          f'{after.bottleneck * 1e3:.2f} ms')
