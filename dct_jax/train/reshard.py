"""Per-worker state for another number of workers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
import optax

from dct_jax.train.rows import RowsState
from dct_jax.transforms import (
    AccumulateState,
    CompressedMeanState,
    PerWorkerState,
    PushPullState,
    StaleMeanState,
)

SUM, COPY, RANK, MEAN, MERGE, NEVER = 'sum', 'copy', 'rank', 'mean', 'merge', 'never'
_BY_FIELD = {'compressor': COPY, 'worker': RANK}  # of a CompressedMeanState
CONSERVE = ('sum', 'mean')


def rules(opt_state: Any) -> list[str]:
  """How each leaf of an optimizer state is re-sharded, in the order of the leaves.

  Thresholds and other state of compressors are copied; residuals, and everything else that a worker
  has of its own, are amounts that are still to be added somewhere, so that their sum matters.
  Integers are never amounts here (counters, random keys). Accumulated local gradients are means, to
  which the next ones are averaged in: their mean over workers matters. Moments of a worker's own optimizer
  (`per_worker`) are of one worker, however many there are.
  """
  special = (CompressedMeanState, PushPullState, StaleMeanState, AccumulateState, PerWorkerState,
             optax.MultiStepsState, RowsState)
  out = []
  for node in jax.tree.leaves(opt_state, is_leaf=lambda x: isinstance(x, special)):
    if isinstance(node, CompressedMeanState):
      for name, part in node._asdict().items():
        out += [_BY_FIELD.get(name) or _by_type(x) for x in jax.tree.leaves(part)]
    elif isinstance(node, PushPullState):
      out += [NEVER] * len(jax.tree.leaves(node))
    elif isinstance(node, PerWorkerState):
      out += [MERGE if _by_type(x) == SUM else COPY for x in jax.tree.leaves(node)]
    elif isinstance(node, StaleMeanState | RowsState):
      out += rules(node[0]) + [NEVER] * len(jax.tree.leaves(node[1:]))
    elif isinstance(node, special):
      for name, part in node._asdict().items():
        mean = name in ('pending', 'acc_grads')
        out += [MEAN] * len(jax.tree.leaves(part)) if mean else rules(part)
    else:
      out.append(_by_type(node))
  return out


def _by_type(leaf):
  return SUM if np.issubdtype(leaf.dtype, np.inexact) or leaf.dtype.name == 'bfloat16' else COPY


def check(rules: Iterable[str], old: int, new: int) -> None:
  """Refuses what only as many workers as made it can go on with."""
  if old != new and NEVER in rules:
    raise ValueError('tables and the slices of push_pull are dealt out over workers, and stale_mean holds a '
                     'message that is on its way, for as many workers as made it: they cannot be restored onto '
                     f'another number, got {old=} and {new=}')


def reshard(array: np.ndarray, old: int, new: int, worker: int, rule: str,
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
