"""A model in stages: what each computes, and what crosses between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dct_jax.boundaries import Cut


class Stage(NamedTuple):
  """One section of a model.

  Attributes:
    apply: (params, own, inputs, batch) -> outputs. `inputs` is what crosses the cut before this stage, a tuple
      of float32 arrays, () for the first; `own` is what else is differentiated and differs by example (rows of
      its embedding tables, or ()). The last stage returns (loss, dict of scalars), means over examples.
    predict: the same when nothing is learnt: without dropout, and with answers (a row for each example) instead
      of the loss from the last stage. Other stages may leave it out if there is no difference.
    cuts: one for each output; () for the last stage.
  """

  apply: Callable
  cuts: tuple[Cut, ...] = ()
  predict: Callable | None = None

  def check(self) -> Stage:
    """Itself, or a ValueError."""
    for cut in self.cuts:
      cut.check()
    return self


def chain(sections: Sequence[Callable], cut: Cut, loss: Callable) -> list[Stage]:
  """Stages of a model through which one array passes.

  Args:
    sections: (params, own, x, batch) -> x, in order; x is None for the first.
    cut: between any two of them.
    loss: (answers, batch) -> (loss, dict of scalars), means over examples.
  """
  one = lambda section: lambda params, own, inputs, batch: section(params, own, (*inputs, None)[0], batch)
  *others, last = map(one, sections)
  end = Stage(lambda *args: loss(last(*args), args[-1]), (), last)
  return [*(Stage(lambda *args, f=f: (f(*args),), (cut,)) for f in others), end]
