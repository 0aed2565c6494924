"""In which order a stage does its part of a step, and the parts that a batch is cut into."""

from __future__ import annotations

from typing import Any

import jax

FORWARD, BACKWARD = 'forward', 'backward'


def schedule(stage: int, stages: int, microbatches: int) -> list[tuple[str, int]]:
  """What a stage does, in order: one forward, one backward in turn, so that few activations are kept.

  >>> schedule(0, 2, 3)
  [('forward', 0), ('forward', 1), ('backward', 0), ('forward', 2), ('backward', 1), ('backward', 2)]
  """
  ahead = min(stages - 1 - stage, microbatches)
  out = [(FORWARD, m) for m in range(ahead)]
  for m in range(microbatches - ahead):
    out += [(FORWARD, m + ahead), (BACKWARD, m)]
  return out + [(BACKWARD, m) for m in range(microbatches - ahead, microbatches)]


def split_batch(batch: Any, parts: int) -> list[Any]:
  """Equal parts of every array, along its first dimension: workers' shares, or microbatches.

  Raises:
    ValueError: if there are no equal parts.
  """
  for x in jax.tree.leaves(batch):
    if len(x) % parts:
      raise ValueError(f'{len(x)} examples do not divide into {parts} workers or microbatches')
  cut = lambda m: jax.tree.map(lambda x: x[m * (len(x) // parts):(m + 1) * (len(x) // parts)], batch)
  return [cut(m) for m in range(parts)]
