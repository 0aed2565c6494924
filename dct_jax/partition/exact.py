"""The best placement that there is, by mixed-integer programming: a yardstick for small programs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.optimize
import scipy.sparse

from dct_jax.partition.loads import Estimate


def solve(estimate: Estimate, may: Sequence[tuple[int, ...]], *, seconds: float = 60.0) -> tuple[np.ndarray, bool]:
  """The placement with the least bottleneck.

  Variables: where each block is; for every value and server, whether the value goes in or out there; the bottleneck.

  Args:
    estimate: of the program.
    may: nodes that each block may be on.
    seconds: that the solver may take.

  Returns:
    A placement, and whether it is known to be the best.

  Raises:
    ValueError: if nothing fits, or nothing was found in time.
  """
  problem = _Problem(estimate, may)
  result = scipy.optimize.milp(problem.cost, constraints=problem.constraints(), integrality=problem.integral,
                               bounds=scipy.optimize.Bounds(problem.low, problem.high),
                               options={'time_limit': seconds, 'mip_rel_gap': 1e-6})
  if result.x is None:
    raise ValueError(f'no placement was found: {result.message}')
  at = result.x[:problem.places].reshape(len(may), -1).argmax(1)
  return at, result.status == 0


class _Problem:
  """Numbers of variables and rows of the program."""

  def __init__(self, estimate: Estimate, may):
    self.e, self.blocks, self.nodes = estimate, len(may), len(estimate.nodes.names)
    many = len(estimate.values)
    self.places = self.blocks * self.nodes
    self.gets = self.places  # value x node: it is used there and made elsewhere
    self.goes = self.gets + many * self.nodes  # value x node: it is made there and used elsewhere
    self.top = self.goes + many * self.nodes
    self.size = self.top + 1
    self.low, self.high = np.zeros(self.size), np.ones(self.size)
    self.high[self.top] = np.inf
    for b, nodes in enumerate(may):
      self.high[[self.place(b, n) for n in range(self.nodes) if n not in nodes]] = 0
    self.integral = np.zeros(self.size)
    self.integral[:self.places] = 1
    self.cost = np.zeros(self.size)
    self.cost[self.top] = 1 / max(estimate.load(np.array([n[0] for n in may])).bottleneck, 1e-12)
    self.rows: list[tuple[dict[int, float], float, float]] = []

  def place(self, b: int, n: int) -> int:
    return b * self.nodes + n

  def constraints(self):
    for b in range(self.blocks):
      self.rows.append(({self.place(b, n): 1.0 for n in range(self.nodes)}, 1, 1))
    for k, reader in self.e.pairs:
      self._crossing(int(k), int(self.e.makers[k]), int(reader))
    for n in range(self.nodes):
      self._busy(n)
    table = scipy.sparse.lil_matrix((len(self.rows), self.size))
    for i, (row, _, _) in enumerate(self.rows):
      for j, x in row.items():
        table[i, j] = x
    return scipy.optimize.LinearConstraint(table.tocsr(), [r[1] for r in self.rows], [r[2] for r in self.rows])

  def _crossing(self, k, maker, reader):
    """A value comes in where it is read and not made, and goes out where it is made and not read."""
    for n in range(self.nodes):
      there = lambda b, sign, n=n: ({self.place(b, n): sign}, 0.0) if b >= 0 else ({}, sign * float(n == 0))
      made, fixed_made = there(maker, 1.0)
      read, fixed_read = there(reader, -1.0)
      row = {self.gets + k * self.nodes + n: 1.0} | made | read
      self.rows.append((row, -fixed_made - fixed_read, np.inf))  # gets >= read - made
      made, fixed_made = there(maker, -1.0)
      read, fixed_read = there(reader, 1.0)
      row = {self.goes + k * self.nodes + n: 1.0} | made | read
      self.rows.append((row, -fixed_made - fixed_read, np.inf))  # goes >= made - read

  def _busy(self, n):
    e, times = self.e, self.e.nodes.trainers if n else 1  # a server works for all trainers
    get = lambda k, n: self.gets + k * self.nodes + n
    go = lambda k, n: self.goes + k * self.nodes + n
    many = range(len(e.values))
    work = {self.place(b, n): times * e.seconds[b] for b in range(self.blocks)}
    work |= {get(k, n): times * e.decode[k] for k in many} | {go(k, n): times * e.encode[k] for k in many}
    if n:
      into = {get(k, n): times * e.bytes[k] / e.machine.rate for k in many}
      out = {go(k, n): times * e.bytes[k] / e.machine.rate for k in many}
    else:  # every server's other end is the trainer
      into = {go(k, m): e.bytes[k] / e.machine.rate for k in many for m in range(1, self.nodes)}
      out = {get(k, m): e.bytes[k] / e.machine.rate for k in many for m in range(1, self.nodes)}
    for used in (work, into, out):
      self.rows.append((used | {self.top: -1.0}, -np.inf, 0))
    if np.isfinite(e.machine.memory):
      held = {self.place(b, n): e.weights[b] + times * e.activations[b] for b in range(self.blocks)}
      held |= {go(k, n): e.bytes[k] for k in many}
      held |= {go(k, m): e.bytes[k] for k in many for m in range(1, self.nodes)} if not n else {
          get(k, n): e.bytes[k] for k in many}
      self.rows.append((held, -np.inf, e.machine.memory))
