"""What a step of a run would take on other networks: its own bytes and computation, and the cost model's time of both.

The time of a step is computation + rounds x latency + bytes sent / rate. Bytes are those of the run. Computation is
the run's own, measured with all workers as devices of one machine, and told for a worker that has one core of such a
machine to itself. Of the lines of the log a tenth has quicker steps than the one that counts, so that other load on the
machine matters little. What compression computes is in it, and so is adding up in memory, which a network would not
need. Activations at cuts inside of a worker do not travel, and are not counted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dct_jax.collectives.costs import Costs
from dct_jax.train import results
from dct_jax.wire.units import bits_per_second

RATES = ('10mbit', '100mbit', '1gbit', '10gbit')
LATENCY = 1e-3  # seconds of a round of messages, as `dct_jax.netlab advise` has them
ROUNDS = 2  # of a dense sum. An all-gather of messages has one: compression is a little better than this says
ROW_ROUNDS = 3  # of rows of tables: their numbers, they themselves, their gradients
KEY = 'network_seconds'
History = Sequence[Mapping[str, Any]]


def applies(histories: Mapping[str, History], workers: Mapping[str, int]) -> bool:
  """Whether runs have what is needed: several workers, and lines of the loop of `train.run` with bytes."""
  return all(workers[name] > 1 and lines and 'total_sent_bytes' in lines[-1]
             and any(line.get('step_seconds') for line in lines) for name, lines in histories.items())


def computation(history: History, workers: int, cores: int | None = None) -> float:
  """Seconds that a worker computes in a step if it has a core to itself.

  Args:
    history: of a run with all workers in one process.
    workers: of that run.
    cores: that the run had; those of this process unless given.
  """
  cores = available_cores() if cores is None else cores
  seconds = sorted(line['step_seconds'] for line in history if line.get('step_seconds'))
  return seconds[len(seconds) // 10] * min(cores, workers) / workers


def available_cores() -> int:
  """Cores that this process may run on."""
  return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def exchange(line: Mapping[str, Any], workers: int, rate: str, latency: float = LATENCY) -> float:
  """Seconds of all exchanges until a line of a log.

  Args:
    line: with `step` and `total_sent_bytes`; with `total_row_bytes` if there are tables.
    workers: of the run.
    rate: of every link, as in '100mbit'.
    latency: seconds of a round.
  """
  round_seconds, byte_seconds, *_ = Costs.of_network(workers, bits_per_second(rate) / 8, latency).table[0]
  return line['step'] * rounds(line) * round_seconds + sent_bytes(line) * byte_seconds


def rounds(line: Mapping[str, Any]) -> int:
  """Rounds of messages in a step."""
  return ROUNDS + (ROW_ROUNDS if line.get('total_row_bytes') else 0)


def sent_bytes(line: Mapping[str, Any]) -> float:
  """What a worker has sent until a line, of gradients and of rows."""
  return line['total_sent_bytes'] + line.get('total_row_bytes', 0)


def timed(history: History, workers: int, rate: str, latency: float = LATENCY,
          cores: int | None = None) -> list[dict[str, Any]]:
  """The lines of a log with `network_seconds`: when they would have been reached on a network."""
  compute = computation(history, workers, cores)
  return [{**line, KEY: line['step'] * compute + exchange(line, workers, rate, latency)}
          for line in history if 'total_sent_bytes' in line]


def step_seconds(history: History, workers: int, rates: Sequence[str] = RATES, latency: float = LATENCY,
                 cores: int | None = None) -> dict[str, float]:
  """Mean seconds of a step by rate."""
  ends = {rate: timed(history, workers, rate, latency, cores)[-1] for rate in rates}
  return {rate: end[KEY] / end['step'] for rate, end in ends.items()}


def table(histories: Mapping[str, History], workers: Mapping[str, int], rates: Sequence[str] = RATES,
          latency: float = LATENCY, cores: int | None = None) -> dict[str, Any]:
  """What a step takes by run and rate, in ms; of all runs but the first, how many times faster it is than the first.

  Args:
    histories: by the name of the run; `applies` to them.
    workers: of each run.
    rates: of links, as in '100mbit'.
    latency: seconds of a round.
    cores: that the runs had; those of this process unless given.

  Returns:
    A table as `results.table` makes it.
  """
  rows: list[list[str]] = []
  first: dict[str, float] = {}
  for name, lines in histories.items():
    found = step_seconds(lines, workers[name], rates, latency, cores)
    last = lines[-1]
    faster = {rate: f' ({first[rate] / x:.1f}x)' if first else '' for rate, x in found.items()}
    rows.append([name, f'{1e3 * computation(lines, workers[name], cores):.1f}',
                 f'{sent_bytes(last) / last["step"]:,.0f}',
                 *(f'{1e3 * x:,.1f}{faster[rate]}' for rate, x in found.items())])
    first = first or found
  with_rows = any(lines[-1].get('total_row_bytes') for lines in histories.values())
  sent = 'sent B/step, rows too' if with_rows else 'sent B/step'
  return results.table(['ms a step', 'computation', sent, *map(rate_text, rates)], rows)


def explained(line: Mapping[str, Any], workers: int, latency: float = LATENCY, cores: int | None = None) -> str:
  """The sentence below a table: how its numbers came about.

  Args:
    line: the last one of a run.
    workers: of the run.
    latency: as of `table`.
    cores: likewise.
  """
  cores = available_cores() if cores is None else cores
  return (f'A step is computation + {rounds(line)} rounds of {1e3 * latency:g} ms + bytes sent / rate. Computation is '
          f"measured in the run (its quickest tenth), {workers} workers on {cores} core{'s'[:cores - 1]} here, and "
          'told for a worker with a core to itself.')


def rate_text(rate: str) -> str:
  """A rate as people read it.

  Examples:
    >>> rate_text('100mbit')
    '100 Mbit/s'
  """
  bits_per_second(rate)  # or a ValueError
  number, prefix = re.fullmatch(r'([\d.]+)(\w?)bit', rate.lower()).groups()  # type: ignore[union-attr]
  return f'{number} {prefix.upper().replace("K", "k")}bit/s'
