"""What operators and edges cost: seconds of a processor, bytes on the line, bytes of memory.

Seconds come from a sweep on this machine: products by their multiplications, everything else by the bytes it moves.
The codec of an edge costs processor time on both ends, which the paper's tagging left out.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dct_jax.partition import codecs, tags
from dct_jax.partition.graph import Graph, Operator, nbytes
from dct_jax.partition.segments import bind

REPEATS = 5
INT8 = 'int8_product'
FREE = {'reshape', 'squeeze', 'expand_dims', 'stop_gradient', 'copy_p'}  # no data is moved


@dataclasses.dataclass(frozen=True)
class Machine:
  """What a node can do.

  Attributes:
    flop: seconds of one multiplication or addition in a product of matrices.
    flop8: likewise in a product of 8-bit numbers (`plan(fc='int8')`); as long as `flop` unless given.
    byte: seconds of one byte that an elementwise operator reads or writes.
    row: seconds of one entry that is gathered or scattered.
    call: seconds of one segment, whatever is in it.
    encode, decode: codec -> seconds of a byte before encoding; 'sparse' for whatever share is left out.
    rate: bytes a second of the network, in each direction.
    memory: bytes of a node; infinite unless given.
    cores: of a node. Times above are one core's; nets keep all of them busy, which is what placements are weighed by.
  """

  flop: float = 2.5e-11
  byte: float = 1.5e-10
  row: float = 1.0e-9
  call: float = 3.0e-5
  encode: dict[str, float] = dataclasses.field(default_factory=lambda: {
      'exact': 0.0, 'bfloat16': 1.5e-10, 'float16': 1.5e-10, 'int8': 4e-10, 'int4': 4e-10, 'sparse': 6e-9})
  decode: dict[str, float] = dataclasses.field(default_factory=lambda: {
      'exact': 0.0, 'bfloat16': 1e-10, 'float16': 1e-10, 'int8': 1e-10, 'int4': 2e-10, 'sparse': 2e-10})
  rate: float = 1.25e9
  memory: float = math.inf
  cores: int = 1
  flop8: float | None = None

  def __post_init__(self):
    for name in ('flop', 'flop8', 'byte', 'row', 'call', 'rate', 'memory', 'cores'):
      if getattr(self, name) is not None and not getattr(self, name) > 0:
        raise ValueError(f'{name} of a machine must be above 0, got {getattr(self, name)}')
    for name in ('encode', 'decode'):
      for codec, seconds in getattr(self, name).items():
        if not 0 <= seconds < math.inf:
          raise ValueError(f'{name} of a machine has seconds of a byte, got {seconds} for {codec}')

  def seconds(self, graph: Graph, op: Operator) -> float:
    """Processor time of an operator."""
    if op.kind in FREE:
      return 0.0
    moved = sum(nbytes(graph.avals[v]) for v in (*op.reads, *op.outputs))
    if op.kind in ('gather', 'scatter-add', 'scatter_add', 'scatter', 'dynamic_slice'):
      rows = min(graph.avals[op.outputs[0]].size, *(graph.avals[v].size for v in op.reads)) if op.reads else 0
      return self.row * max(rows, 1)
    flop = self.flop8 or self.flop if op.kind == INT8 else self.flop
    return flop * flops(op) + self.byte * moved


def flops(op: Operator) -> float:
  """Multiplications and additions of an operator's products; 0 for what is bound by memory."""
  return _product(op.equation) or _body(op.equation)


def _product(equation: Any) -> float:
  """Of a product of matrices or a convolution."""
  kind, params = equation.primitive.name, equation.params
  if kind not in ('dot_general', INT8, 'conv_general_dilated'):
    return 0.0
  left, right = (x.aval.shape for x in equation.invars[:2])
  if kind != 'conv_general_dilated':
    (contracted, _), _ = params['dimension_numbers']
    summed = math.prod(left[d] for d in contracted)
  else:
    summed = math.prod(right) // right[params['dimension_numbers'].rhs_spec[0]]
  return 2.0 * equation.outvars[0].aval.size * summed


def _body(equation: Any) -> float:
  """Of a loop or a branch: products, and a multiplication for each entry of everything else; the longest branch."""
  of = [sum(_product(e) or _body(e) or sum(getattr(v.aval, 'size', 1) for v in e.outvars) for e in jaxpr.eqns)
        for jaxpr in tags.inner(equation)]
  most = max if equation.primitive.name == 'cond' else sum
  return float(equation.params.get('length', 1) * most(of)) if of else 0.0


def measure_machine(path: str | os.PathLike | None = None, *, rate: float = 1.25e9,
                    memory: float = math.inf) -> Machine:
  """Measures this machine in a few seconds.

  Args:
    path: where the result is kept (JSON); it is read from there if it exists.
    rate: bytes a second of the network, which is not measured here.
    memory: bytes of a node.
  """
  if path is not None and os.path.exists(path):
    return dataclasses.replace(load(path), rate=rate, memory=memory)
  x, w = jnp.ones((256, 1024)), jnp.ones((1024, 1024))
  long = jnp.ones(2**20)
  table, ids = jnp.ones((2**16, 64)), jnp.arange(2**12) * 7 % 2**16
  call = _seconds(lambda x: x + 1, jnp.ones(8))
  more = lambda function, *arguments: max(_seconds(function, *arguments) - call, 1e-9)  # on a busy machine also less
  codec = {c: _codec_seconds(c) for c in codecs.CODECS}
  whole = functools.partial(jnp.dot, preferred_element_type=jnp.int32)
  machine = Machine(
      flop=more(jnp.dot, x, w) / (2.0 * x.shape[0] * w.size),
      flop8=more(whole, x.astype(jnp.int8), w.astype(jnp.int8)) / (2.0 * x.shape[0] * w.size),
      byte=more(lambda x: jnp.maximum(x, 0) * 2, long) / (2 * long.nbytes),
      row=more(lambda t, i: t[i], table, ids) / (ids.size * table.shape[1]), call=call,
      encode={c: s[0] for c, s in codec.items()}, decode={c: s[1] for c, s in codec.items()}, rate=rate, memory=memory)
  if path is not None:
    save(machine, path)
  return machine


def _seconds(function: Callable, *arguments) -> float:
  compiled = jax.jit(function)
  jax.block_until_ready(compiled(*arguments))
  times = []
  for _ in range(REPEATS):
    begin = time.perf_counter()
    for _ in range(4):
      out = compiled(*arguments)
    jax.block_until_ready(out)
    times.append((time.perf_counter() - begin) / 4)
  return float(np.median(times))


def _codec_seconds(codec: str) -> tuple[float, float]:
  """Seconds of a byte, to encode and to decode."""
  if codec == codecs.EXACT:
    return 0.0, 0.0
  x = jax.random.normal(jax.random.key(0), (256, 1024))
  payload = codecs.encode(x, codec)
  return (_seconds(lambda x: codecs.encode(x, codec), x) / x.nbytes,
          _seconds(lambda p: codecs.decode(p, codec, x.aval), payload) / x.nbytes)


def save(machine: Machine, path: str | os.PathLike) -> None:
  """Writes a machine as JSON."""
  known = {k: v for k, v in dataclasses.asdict(machine).items() if k not in ('rate', 'memory')}
  pathlib.Path(path).write_text(json.dumps(known, indent=1))


def load(path: str | os.PathLike) -> Machine:
  """Reads what `save` has written."""
  try:
    return Machine(**json.loads(pathlib.Path(path).read_text()))
  except (TypeError, ValueError, AttributeError, RecursionError) as error:
    raise ValueError(f'{path} does not have the costs of a machine: {error}') from None


def measure(graph: Graph, op: Operator) -> float:
  """Seconds that an operator really takes here, alone: for tests of the model."""
  known = {v: jnp.ones(graph.avals[v].shape, graph.avals[v].dtype) for v in op.reads}
  order = list(known)
  return _seconds(lambda *xs: bind(op, dict(zip(order, xs, strict=True))), *(known[v] for v in order))
