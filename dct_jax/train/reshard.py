"""Per-worker state for another number of workers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from dct_jax.state import COPY, MEAN, MERGE, NEVER, RANK, SUM, Dealt, Rule, of_amounts, visit

CONSERVE = ('sum', 'mean')


def rules(opt_state: Any) -> list[Rule]:
  """How each leaf of an optimizer state is re-sharded, in the order of the leaves.

  State classes say it themselves (`dct_jax.state`). What nobody has declared and yet differs by worker is an
  amount that is still to be added somewhere, so that its sum matters; integers are copied.
  """
  usual = lambda x: SUM if of_amounts(x) else COPY
  return [leaf.rule or usual(x) for leaf, x in zip(visit(opt_state), jax.tree.leaves(opt_state), strict=True)]


def between_groups(rule: Rule) -> Rule:
  """How a leaf goes to another number of groups, if `rule` says how it goes to another number of workers.

  Groups that join have the mean of their parameters, and so of what is still to be added to them; a group that is new
  is a copy. A worker's number is its number inside the group.
  """
  known: dict[Rule, Rule] = {SUM: MERGE, MEAN: MERGE, RANK: COPY}
  return known.get(rule, rule)


def check(rules: Iterable[Rule], old: int, new: int) -> None:
  """Refuses what only as many workers as made it can go on with."""
  if old != new and NEVER in rules:
    raise ValueError('stale_mean holds a message that is on its way, for as many workers as made it, and tables say '
                     'where their rows lie only if init_rows was given their layout: they cannot be restored onto '
                     f'another number, got {old=} and {new=}')


def shape(new_shape: Sequence[int], old: int, new: int, rule: Rule) -> list[int]:
  """The shape that an array has with `old` workers."""
  first, *rest = new_shape
  return list(rule.shape((first, *rest), old)) if isinstance(rule, Dealt) else [first // new * old, *rest]


def reshard(array: np.ndarray, old: int, new: int, worker: int, rule: Rule,
            conserve: str = 'sum') -> np.ndarray:
  """One new worker's part of what `old` workers had.

  With `SUM`, new worker j gets the sum of the old workers i with i % new == j, and zeros if there
  is none: the sum over workers stays (to rounding; exactly when workers are added). With `COPY`, it
  gets a copy of old worker j % old's part; with `MERGE`, the mean instead of the sum, or such a copy.

  Args:
    array: [old * d0, ...], all workers' parts one after the other.
    old: number of workers that made it.
    new: number of workers now.
    worker: j.
    rule: `SUM`, `COPY`, `MERGE`, `MEAN` (as a sum with conserve='mean'), or `RANK`: the worker's own number.
    conserve: what a sum keeps: 'sum', or 'mean', which scales by new / old so that the mean over
      workers, which is what an update applies, stays.
  """
  if isinstance(rule, Dealt):
    raise ValueError('what is dealt out moves as a whole, by its rule')
  parts = array.reshape(old, array.shape[0] // old, *array.shape[1:])
  mine = parts[worker::new]
  if rule == COPY or (rule == MERGE and not len(mine)):
    return parts[worker % old]
  if rule == RANK:
    return np.full_like(parts[0], worker)
  scale = new / old if conserve == 'mean' or rule == MEAN else 1.0
  scale = 1 / len(mine) if rule == MERGE else scale
  if len(mine) == 1 and scale == 1:
    return mine[0]  # as it is, NaN payloads and negative zeros included
  return (np.sum(mine, axis=0, dtype=np.float64) * scale).astype(array.dtype)
