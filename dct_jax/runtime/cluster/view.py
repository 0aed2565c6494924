"""How a cluster is, while it trains: a table in a terminal, and curves in TensorBoard."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorboardX
from rich.live import Live
from rich.table import Table

from dct_jax.runtime import staleness
from dct_jax.runtime.cluster.driver import Look


def table(look: Look, batch_size: int) -> Table:
  """What all nodes do."""
  title = (f'{look.done:,} of {look.batches:,} batches, {look.rate * batch_size:,.0f} examples/s, '
           f'loss {look.loss:.5f}, {look.seconds:.0f} s')
  made = Table(title=title)
  for column in ('node', 'process', 'asked', 'updates', 'staleness', 'synchronized', 'nets', 'waiting'):
    made.add_column(column, justify='left' if column == 'node' else 'right')
  for name, told in look.nodes.items():
    made.add_row(name, *_row(told, look.seconds))
  return made


def _row(told: Mapping[str, Any], seconds: float) -> list[str]:
  nets = told.get('working')
  waiting = told['waited'] / max(seconds * nets, 1e-9) if nets else None
  cells = (told['pid'], told.get('asked', told.get('exchanges', told.get('done'))), told.get('writes'),
           staleness.mean([told.get('staleness', {})]), told.get('synchronized'), nets)
  shown = ['' if c is None else f'{c:.1f}' if isinstance(c, float) else f'{c:,}' for c in cells]
  return [*shown, '' if waiting is None else f'{100 * min(waiting, 1):.0f}%']


@contextlib.contextmanager
def showing(batch_size: int, *, terminal: bool = True, logdir: str | os.PathLike | None = None
            ) -> Iterator[Callable[[Look], None]]:
  """Something to show every look with: `with view.showing(128) as show: on_ray.train(..., watch=Watch(show=show))`.

  Args:
    batch_size: examples of a batch.
    terminal: whether a table is drawn.
    logdir: directory for TensorBoard, if curves are wanted.
  """
  with contextlib.ExitStack() as stack:
    live = stack.enter_context(Live(refresh_per_second=2, transient=False)) if terminal else None
    writer = tensorboardX.SummaryWriter(str(logdir)) if logdir else None
    if writer:
      stack.callback(writer.close)

    def show(look: Look) -> None:
      if live:
        live.update(table(look, batch_size))
      if writer:
        for name, value in scalars(look, batch_size).items():
          writer.add_scalar(name, value, look.done)

    yield show


def scalars(look: Look, batch_size: int) -> dict[str, float]:
  """Numbers for curves."""
  found = {'loss': look.loss, 'examples_per_second': look.rate * batch_size}
  for name, told in look.nodes.items():
    stale = staleness.mean([told.get('staleness', {})])
    if stale is not None:
      found[f'staleness/{name}'] = stale
    if told.get('working'):
      found[f'waiting/{name}'] = told['waited'] / max(look.seconds * told['working'], 1e-9)
  return {k: v for k, v in found.items() if v == v}  # no loss yet
