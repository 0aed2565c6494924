"""Where numbers go: one JSON object a line, and TensorBoard."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from typing import IO, Any

import jax
import tensorboardX


class MetricsWriter:
  """Writes scalars to `metrics.jsonl` and to TensorBoard event files, on process 0 only.

  An existing file is appended to, so that a resumed run goes on in it. NaN and infinities are
  `null` in JSON, which has no word for them.

  Args:
    directory: made if it does not exist.

  Examples:
    with MetricsWriter('runs/a') as writer:
      writer.write(1, {'loss': 0.5})
  """

  def __init__(self, directory: str | os.PathLike):
    self._lines: IO[str] | None = None
    self._board: Any = None
    if jax.process_index():
      return
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, 'metrics.jsonl')
    torn = _ends_inside_a_line(path)
    self._lines = open(path, 'a', encoding='utf-8')
    if torn:
      self._lines.write('\n')
    # Its files are named by the second: a run that is resumed within one would write over the first file.
    self._board = tensorboardX.SummaryWriter(os.fspath(directory), filename_suffix=f'.{time.time_ns()}')

  def write(self, step: int, scalars: Mapping[str, float | None]) -> None:
    """Writes the scalars of a step, and flushes: a crash loses nothing that was logged."""
    if self._lines is None:
      return
    numbers = {k: math.nan if v is None else v for k, v in scalars.items()}  # None is what was read of such
    finite = {k: v if math.isfinite(v) else None for k, v in numbers.items()}
    self._lines.write(json.dumps(finite | {'step': step}, allow_nan=False) + '\n')
    self._lines.flush()
    for name, value in numbers.items():
      self._board.add_scalar(name, value, step)
    self._board.flush()

  def close(self) -> None:
    if self._lines is not None:
      self._lines.close()
      self._board.close()
      self._lines = self._board = None

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.close()


def _ends_inside_a_line(path):
  """Whether an earlier run was killed while it wrote."""
  if not os.path.exists(path) or not os.path.getsize(path):
    return False
  with open(path, 'rb') as file:
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b'\n'


def read_metrics(directory: str | os.PathLike) -> list[dict[str, float]]:
  """What a `MetricsWriter` has written, by step; of a step that was repeated, the last line."""
  lines = {}
  with open(os.path.join(directory, 'metrics.jsonl'), encoding='utf-8') as file:
    for text in file:
      try:
        line = json.loads(text)
      except json.JSONDecodeError:
        continue  # a run was killed while it wrote this
      lines[line['step']] = line
  return [lines[step] for step in sorted(lines)]
