"""Pictures that can be read: markers on points, plain numbers on logarithmic axes, legends that cover nothing.

matplotlib is optional, and so it is imported where something is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sized
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from matplotlib.axes import Axes
  from matplotlib.figure import Figure

MANY = 60  # points of a curve from which markers would hide it


def points(values: Sized) -> dict[str, Any]:
  """Markers for a curve, as arguments of `plot`: a line through a single point would be invisible."""
  return {'marker': 'o', 'markersize': 3} if len(values) < MANY else {}


def number(x: float) -> str:
  """A tick's number as people write it: 0.01, 20, 1,000."""
  return f'{x:,.10f}'.rstrip('0').rstrip('.')


def plain_ticks(*panels: Axes) -> None:
  """Writes 0.1, 1 and 10 on logarithmic axes where matplotlib writes powers; call it when all is drawn."""
  from matplotlib import ticker

  for axis in (axis for panel in panels for axis in (panel.xaxis, panel.yaxis) if axis.get_scale() == 'log'):
    low, high = sorted(axis.get_view_interval())
    decades = math.log10(high / low)
    axis.set_major_locator(ticker.MaxNLocator(6) if decades < 1 else
                           ticker.LogLocator(subs=(1, 2, 5) if decades < 2.5 else (1,)))
    axis.set_major_formatter(ticker.FuncFormatter(lambda x, _: number(x)))
    axis.set_minor_formatter(ticker.NullFormatter())


def legend_beside(figure: Figure, **options: Any) -> None:
  """Puts one legend to the right of all panels, each label once; the figure's layout has to be 'constrained'."""
  found: dict[str, Any] = {}
  for panel in figure.axes:
    for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
      found.setdefault(label, handle)
  figure.legend(list(found.values()), list(found), loc='outside right upper', **options)
