"""Fingerprints: equal for equal programs, in every process. Numbers that a program computes with may differ.

Kinds, settings and order of operators count, and shapes and types of all values. Values of constants, as a learning
rate, do not: a plan says where operators run, and that is as good with another rate.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.extend import core

if TYPE_CHECKING:
  from dct_jax.partition.graph import Graph

ADDRESS = re.compile(r' at 0x[0-9a-f]+')
UNSEEN = {'name', 'debug_info'}  # settings that compute nothing


def of(graph: Graph) -> str:
  """A program's fingerprint."""
  lines = [f'{_equation(op.equation)} {_read(op.inputs)} {op.outputs} {op.phase}' for op in graph.operators]
  lines += [f'{s.kind} {s.path} {graph.avals[s.value]}' for s in graph.slots]
  lines += [f'{o.kind} {_read([o.source])} {o.slot}' for o in graph.outputs]
  lines += [f'constant {v} {graph.avals[v]}' for v in graph.constants]
  return hashlib.sha256('\n'.join(lines).encode()).hexdigest()[:16]


def _equation(equation: core.JaxprEqn) -> str:
  settings = {k: _setting(v) for k, v in sorted(equation.params.items()) if k not in UNSEEN}
  return f'{equation.primitive.name} {settings} {[str(v.aval) for v in equation.outvars]}'


def _read(inputs: Iterable[Any]) -> list[Any]:
  """Numbers of values; of a literal its type alone."""
  return [str(x.aval) if isinstance(x, core.Literal) else x for x in inputs]


def _setting(x: Any) -> Any:
  """A parameter of an operator, as something that every process writes alike."""
  if isinstance(x, core.ClosedJaxpr):
    return _setting(x.jaxpr)
  if isinstance(x, core.Jaxpr):
    return list(_lines(x))
  if isinstance(x, (tuple, list)):
    return [_setting(y) for y in x]
  if isinstance(x, dict):
    return sorted((str(k), str(_setting(v))) for k, v in x.items())
  if isinstance(x, (set, frozenset)):
    return sorted(str(_setting(y)) for y in x)
  if isinstance(x, np.ndarray):
    return x.shape, str(x.dtype), x.tobytes()
  return 'function' if callable(x) and not isinstance(x, type) else ADDRESS.sub('', repr(x))


def _lines(jaxpr: core.Jaxpr) -> Iterator[str]:
  """What a loop or a branch does."""
  number: dict[Any, int] = {}
  new = lambda variables: [number.setdefault(v, len(number)) for v in variables]
  read = lambda inputs: _read(x if isinstance(x, core.Literal) else number[x] for x in inputs)
  yield f'{[str(v.aval) for v in (*jaxpr.constvars, *jaxpr.invars)]} {new((*jaxpr.constvars, *jaxpr.invars))}'
  for equation in jaxpr.eqns:
    yield f'{_equation(equation)} {read(equation.invars)} {new(equation.outvars)}'
  yield f'{read(jaxpr.outvars)}'
