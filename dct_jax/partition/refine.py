"""Greedy refinement: blocks leave the busiest node while that helps."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dct_jax.partition.loads import RESOURCES, Estimate, Load

KICKS = 30  # more do not pay, in the programs of benchmarks/partition.py
NAMED = 4  # blocks that a reason names


class Move(NamedTuple):
  """A step of the refinement, and why it was taken."""

  blocks: tuple[int, ...]
  nodes: tuple[int, ...]
  before: float
  after: float
  why: str


def refine(estimate: Estimate, at: np.ndarray, may: Sequence[tuple[int, ...]], *, seconds: float = 5.0,
           swaps: bool = True, kicks: int = KICKS) -> tuple[np.ndarray, list[Move]]:
  """Moves blocks away from the bottleneck until that does not help any more.

  Then, ours: all blocks go to one server, or some that are connected move together, at random, and single blocks
  settle around them. What is better in the end is kept. That leaves places where every single move makes things worse.

  Args:
    estimate: of the program.
    at: the placement to begin with.
    may: nodes that each block may be on.
    seconds: after which the best placement so far is taken. A search that ends before is the same each time.
    swaps: ours. Two blocks may also change places; the paper moves single ones.
    kicks: number of such moves that are tried in a row without success before the search ends; 0 for none.

  Returns:
    A placement, and the moves that led to it.
  """
  end = time.monotonic() + seconds
  at, moves = _descend(estimate, at, may, end, swaps)
  failed = 0
  for start in _starts(lambda: at, may, _neighbours(estimate)):
    if failed >= kicks or time.monotonic() > end:
      break
    failed += 1
    settled, _ = _descend(estimate, start, may, end, swaps=False)  # swaps take long
    before, after = estimate.load(at), estimate.load(settled)
    if after.key < before.key and _fits(estimate, after):
      moves.append(_move(estimate, tuple(np.flatnonzero(settled != at).tolist()), settled, before, after))
      at, failed = settled, 0
  at, last = _descend(estimate, at, may, end, swaps)
  return at, moves + last


def _descend(estimate: Estimate, at: np.ndarray, may, end: float, swaps: bool) -> tuple[np.ndarray, list[Move]]:
  """The best of all moves, again and again, until none helps or time is up."""
  at, moves = at.copy(), []
  load = estimate.load(at)
  while time.monotonic() < end:
    best, chosen = load, None
    for blocks, nodes in _candidates(at, may, _bottleneck(load)[0], swaps):
      if time.monotonic() > end:
        break
      tried = at.copy()
      tried[list(blocks)] = nodes
      found = estimate.load(tried)
      if found.key < best.key and _fits(estimate, found):
        best, chosen = found, (blocks, tried)
    if chosen is None:
      break
    moves.append(_move(estimate, *chosen, load, best))
    at, load = chosen[1], best
  return at, moves


def _starts(current: Callable[[], np.ndarray], may, near: dict[int, set[int]]) -> Iterator[np.ndarray]:
  """Placements to begin anew with: all on one node that can be there, then what `_kick` makes of the best so far."""
  free = [b for b, nodes in enumerate(may) if len(nodes) > 1]
  for node in sorted({n for b in free for n in may[b]}):
    yield np.array([node if node in may[b] else at for b, at in enumerate(current())], int)
  draw = np.random.default_rng(0)
  while free:
    yield _kick(current(), may, free, near, draw)


def _kick(at: np.ndarray, may, free: list[int], near: dict[int, set[int]], draw: np.random.Generator) -> np.ndarray:
  """A block and some that are connected with it, all of them to one node."""
  first = free[draw.integers(len(free))]
  node = may[first][draw.integers(len(may[first]))]
  together, size = [first], draw.integers(2, max(3, len(free) // 2 + 1))
  for b in together:
    if len(together) >= size:
      break
    together += [n for n in sorted(near.get(b, ())) if n not in together and node in may[n]]
  at = at.copy()
  at[together[:size]] = node
  return at


def _neighbours(estimate: Estimate) -> dict[int, set[int]]:
  """Block -> blocks that it sends to or gets from."""
  found: dict[int, set[int]] = {}
  for k, reader in estimate.pairs:
    maker = int(estimate.makers[k])
    if maker >= 0 and reader >= 0:
      found.setdefault(maker, set()).add(int(reader))
      found.setdefault(int(reader), set()).add(maker)
  return found


def _bottleneck(load: Load) -> tuple[int, int]:
  """Number of a node, and of a resource."""
  node, resource = np.unravel_index(load.seconds.argmax(), load.seconds.shape)
  return int(node), int(resource)


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


def _move(estimate: Estimate, blocks: tuple[int, ...], at: np.ndarray, before: Load, after: Load) -> Move:
  """With its reason."""
  names, of = estimate.nodes.names, estimate.blocks.blocks
  node, resource = _bottleneck(before)
  moved = [f'{of[b].name} to {names[int(at[b])]}' for b in blocks]
  more = f' and {len(moved) - NAMED} more, together,' if len(moved) > NAMED else ''
  said = ', '.join(moved[:NAMED]) if more else ' and '.join(moved)
  why = (f'{names[node]} was the bottleneck ({RESOURCES[resource]}, {before.bottleneck * 1e3:.2f} ms): {said}{more} '
         f'makes it {after.bottleneck * 1e3:.2f} ms')
  return Move(blocks, tuple(int(at[b]) for b in blocks), before.bottleneck, after.bottleneck, why)
