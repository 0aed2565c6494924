"""How stale what nets write is: counts of others' updates between a net's read and the write that goes with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def mean(found: Iterable[Mapping[int, int]]) -> float | None:
  """Averages over all writes of all nodes.

  Args:
    found: of every node {updates of others: how many writes had so many}.

  Returns:
    The mean number of others' updates; None if nothing was written.
  """
  counts = [(stale, writes) for node in found for stale, writes in node.items()]
  total = sum(writes for _, writes in counts)
  return sum(stale * writes for stale, writes in counts) / total if total else None
