"""Which layers to split: those that lower the bottleneck of the plan."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from dct_jax.partition.loads import Estimate
from dct_jax.partition.splits import BOTH, HORIZONTAL, ROWS, VERTICAL, Candidate, Choice

if TYPE_CHECKING:
  from dct_jax.partition.plan import Plan

NEAR = 1.05  # estimates are not so exact that they tell which of two plans with bottlenecks this close is better


def best(make: Callable[[Choice], Plan], candidates: Sequence[Candidate], servers: int, *, first: Choice | None = None,
         seconds: float = 5.0) -> Plan:
  """The plan with about the least bottleneck that was found, and the least traffic of those.

  Nothing is split at first. Then pairs of layers that can be split together are tried, all at once and those of each
  shape; then all layers, into parts of about one size; then the heaviest of what is left, those of one shape at once,
  until that does not pay any more.

  Args:
    make: plans with a choice of splits. It raises ValueError for what does not fit.
    candidates: from `splits.find`.
    servers: that layers may be on.
    first: splits that there must be.
    seconds: after which nothing new is tried.

  Raises:
    ValueError: if nothing fits.
  """
  search = _Search(make, dict(first or {}), time.monotonic() + seconds)
  counts = sorted({2, 3, servers // 2, servers} & set(range(2, servers + 1)), reverse=True)
  pairs = list(_apart(candidates))
  groups = _shapes(pairs)
  search.attempt(_split(group, BOTH, n) for n in counts for group in ([pairs, *groups] if groups[1:] else groups))
  taken = {n for c in candidates if c.name in search.choice for n in (c.name, c.behind)}
  left = [c for c in candidates if ROWS not in c.kinds and c.name not in taken]
  search.attempt(_evenly(left, kind, n) for n in counts for kind in (VERTICAL, HORIZONTAL))
  for group in _shapes([c for c in left if c.name not in search.choice]):
    if not search.attempt(_split(group, kind, n) for n in counts for kind in (VERTICAL, HORIZONTAL)):
      break
  return search.result()


def _split(group: Sequence[Candidate], kind: str, parts: int) -> Choice:
  """All of these layers, but for those that are too narrow."""
  return {c.name: (kind, parts) for c in group if c.shape[0 if kind == HORIZONTAL else 1] >= parts}


def _evenly(candidates: Sequence[Candidate], kind: str, parts: int) -> Choice:
  """The heaviest layer in so many parts, and all others in parts that are not much larger than those."""
  size = max((c.nbytes for c in candidates), default=0) / parts
  wanted = {c.name: min(round(c.nbytes / size), c.shape[0 if kind == HORIZONTAL else 1]) for c in candidates}
  return {name: (kind, n) for name, n in wanted.items() if n > 1}


class _Search:
  """The best choice so far."""

  def __init__(self, make, choice: Choice, end: float):
    self.make, self.end, self.choice = make, end, dict(choice)
    self.error: ValueError | None = None
    self.plan: Plan | None = self._plan(choice)

  def _plan(self, choice: Choice) -> Plan | None:
    try:
      return self.make(choice)
    except ValueError as error:
      self.error = self.error or error  # the one for what the user has asked for
      return None

  def attempt(self, more: Iterable[Choice]) -> bool:
    """Splits more layers in one of several ways, if one of them pays."""
    before, choices = self.plan, [self.choice]
    plans = [self.plan]
    for extra in more:
      if extra and (time.monotonic() < self.end or before is None):
        choices.append({**self.choice, **extra})
        plans.append(self._plan(choices[-1]))
    made = [(p.load.bottleneck, p.load.traffic, i) for i, p in enumerate(plans) if p is not None]
    if made:
      limit = NEAR * min(made)[0]
      _, i = min((traffic, i) for bottleneck, traffic, i in made if bottleneck <= limit)
      self.choice, self.plan = choices[i], plans[i]
    return self.plan is not before

  def result(self) -> Plan:
    if self.plan is None:
      assert self.error is not None
      raise self.error
    return self.plan


def _apart(candidates: Sequence[Candidate]) -> Iterator[Candidate]:
  """Pairs that have no layer in common, the heaviest first."""
  taken: set[str | None] = set()
  for c in candidates:
    if c.pays and not taken & {c.name, c.behind}:
      taken |= {c.name, c.behind}
      yield c


def _shapes(candidates: Sequence[Candidate]) -> list[list[Candidate]]:
  """Layers of each shape, those that have most bytes together first."""
  found: dict[tuple, list[Candidate]] = {}
  for c in candidates:
    found.setdefault((c.shape, c.kinds), []).append(c)
  return sorted(found.values(), key=lambda group: -sum(c.nbytes for c in group))


def shards(estimate: Estimate, candidates: Sequence[Candidate], servers: int) -> Iterator[Choice]:
  """Splits of tables that are too large for a node, the fewest parts first; nothing if all of them fit.

  Args:
    estimate: of the program as it is.
    candidates: from `splits.find`.
    servers: nodes that tables may be on.
  """
  held = {b.name: w + a for b, w, a in zip(estimate.blocks.blocks, estimate.weights, estimate.activations, strict=True)}
  too_large = lambda name: held.get(name, 0.0) > estimate.machine.memory
  module = lambda c: c.name if c.name in held else c.name.rpartition('/')[0]
  tables = {c.name: math.ceil(held[module(c)] / estimate.machine.memory) for c in candidates
            if ROWS in c.kinds and too_large(module(c))}
  for more in range(servers if tables else 0):
    if max(tables.values()) + more > servers:
      return
    yield {name: (ROWS, parts + more) for name, parts in tables.items()}
