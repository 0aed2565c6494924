"""Will compression pay off here? What the cost model says of a model, a number of workers and a network."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dct_jax.collectives.algorithms import ALGORITHMS
from dct_jax.collectives.costs import Costs, Instance, features, random_union

TERMS = ('latency', 'bandwidth', 'work on entries', 'work on coordinates')
NAMES = ('all-gather of messages', 'SSAR_Recursive_Double', 'SSAR_Split_AllGather', 'DSAR_Split_AllGather',
         'dense allreduce', 'union, then a plain sum')


class Advice(NamedTuple):
  """What is expected of each algorithm, in the order of `ALGORITHMS`."""

  exchange: np.ndarray  # seconds
  terms: np.ndarray  # seconds by `TERMS`, [algorithms, 4]
  bytes: np.ndarray  # sent by a worker
  step: np.ndarray  # seconds with computation
  best: str
  speedup: float  # of the step, over dense


def advise(costs: Costs, *, parameters: int, sparsity: float, value_bits: int = 16, compute: float = 0.0,
           overlap: float = 0.0, bits: int = 0) -> Advice:
  """Expected times of one step's exchange.

  Args:
    costs: from `calibrate`, or `Costs.of_network` for a guess.
    parameters: of the model.
    sparsity: share of the gradient that stays behind.
    value_bits: of a value in a message.
    compute: seconds of forward, backward and update.
    overlap: how alike workers' choices are: 0 means independent, 1 identical.
    bits: of QSGD in DSAR's second half.

  Raises:
    ValueError: for numbers that make no sense.
  """
  if costs.workers < 2:
    raise ValueError(f'a worker alone exchanges nothing: advice is for 2 workers or more, got workers={costs.workers}')
  if parameters < 1:
    raise ValueError(f'parameters must be at least 1, got {parameters=}')
  if not 1 <= value_bits <= 32:
    raise ValueError(f'a value in a message has 1 to 32 bits, got {value_bits=}')
  if not 0 <= compute < np.inf:
    raise ValueError(f'compute is a time and not below 0, got {compute=}')
  for name, x in [('sparsity', sparsity), ('overlap', overlap)]:
    if not 0 <= x <= 1:
      raise ValueError(f'{name} must be between 0 and 1, got {name}={x}')
  density = max(1 - sparsity, 1 / parameters)
  entries = parameters * density
  independent = random_union(parameters, density, costs.workers)
  message = entries * (value_bits + np.log2(1 / density) + 1.6) / 8
  instance = Instance(costs.workers, parameters, entries, overlap * entries + (1 - overlap) * independent,
                      message, bits)
  found = features(instance)
  terms = found * np.array(costs.table)
  exchange = terms.sum(axis=1)
  best = int(np.argmin(exchange))
  dense = ALGORITHMS.index('dense')
  step = exchange + compute
  return Advice(exchange, terms, found[:, 1], step, ALGORITHMS[best], float(step[dense] / step[best]))


def explain(advice: Advice, compute: float = 0.0) -> str:
  """A table, a verdict, and why."""
  head = f'{"":24}{"sent":>12}{"exchange":>12}{"step":>12}  mostly'
  lines = [head]
  for i, name in enumerate(NAMES):
    mark = ' <- best' if ALGORITHMS[i] == advice.best else ''
    lines.append(f'{name:24}{advice.bytes[i] / 1e3:>9,.1f} KB{1e3 * advice.exchange[i]:>9,.1f} ms'
                 f'{1e3 * advice.step[i]:>9,.1f} ms  {TERMS[int(np.argmax(advice.terms[i]))]}{mark}')
  dense = ALGORITHMS.index('dense')
  share = advice.exchange[dense] / advice.step[dense] if advice.step[dense] else 0.0
  lines.append('')
  if advice.best == 'dense' or advice.speedup < 1.05:
    lines.append('Compression will not pay off: a dense exchange takes '
                 f'{1e3 * advice.exchange[dense]:,.1f} ms, {share:.0%} of a step.')
  else:
    lines.append(f'Compression pays off: a step is {advice.speedup:.1f} times faster with '
                 f"'{advice.best}'. Dense, the network takes {share:.0%} of a step"
                 + (f'; no exchange can make it more than {advice.step[dense] / compute:.1f} times faster.'
                    if compute else '.'))
  return '\n'.join(lines)
