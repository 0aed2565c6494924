"""Side-by-side timing: contenders alternate in one run and are compared by medians.

The machine is shared and noisy; a time by itself means little, a ratio of two medians taken in turns does.
What a benchmark has shown by `table` and told by `finish` goes to a file of results where `--out` says so.
"""

from __future__ import annotations

import collections
import io
import itertools
import json
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from dct_jax.train import results

OUT = flags.DEFINE_string('out', '', 'File for all tables and numbers, as results/kernels.json; none unless given.')
flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS['out'])  # so that --help of any script lists it
_shown: dict[str, dict] = {}  # tables of this run; a process is one benchmark



def alternate(contenders: dict[str, Callable[[], object]], *, seconds: float = 2.0,
              least: int = 7, most: int = 200) -> dict[str, float]:
  """Calls every contender in turn until the time is over; returns median seconds of each.

  A contender is a function without arguments that returns JAX arrays; it is called once before anything counts.
  """
  for call in contenders.values():
    jax.block_until_ready(call())
  times: dict[str, list[float]] = {name: [] for name in contenders}
  end = time.perf_counter() + seconds
  rounds = 0
  while rounds < least or (time.perf_counter() < end and rounds < most):
    for name, call in contenders.items():
      start = time.perf_counter()
      jax.block_until_ready(call())
      times[name].append(time.perf_counter() - start)
    rounds += 1
  return {name: statistics.median(t) for name, t in times.items()}


def donated(function, e, gradients):
  """A contender that gives its residual away and gets it back as its result, as a training step does.

  Args:
    function: (residual, gradient) -> (residual, anything).
    e: the first residual, an array or a tree of them.
    gradients: used in turn. What is never sent of them grows from call to call, unless they add up to zero.
  """
  compiled = jax.jit(function, donate_argnums=(0,))
  held, turns = [jax.tree.map(jnp.copy, e)], itertools.cycle(gradients)

  def call():
    held[0], rest = compiled(held[0], next(turns))
    return held[0], rest

  return call


def table(name: str, title: str, rows: list[tuple]) -> None:
  """Prints rows of (name, value, ...) in columns, the head first; `finish` writes them under this name."""
  _shown[name] = {'title': title} | results.table(rows[0], rows[1:])
  print(f'\n{title}')
  widths = [max(len(str(r[i])) for r in rows) for i in range(len(rows[0]))]
  for row in rows:
    print('  ' + '  '.join(str(c).ljust(w) if i == 0 else str(c).rjust(w)
                           for i, (c, w) in enumerate(zip(row, widths, strict=True))))


def finish(values: Mapping[str, Any], seed: int | Sequence[int] | None = None) -> None:
  """Ends a benchmark: prints its numbers as the last line, in JSON, and writes the file of results that was asked for.

  Args:
    values: name -> number.
    seed: of what was random, or several.
  """
  if OUT.value:
    results.write(OUT.value, values=values, tables=_shown, seed=seed)
  print(json.dumps(dict(values)), flush=True)


def cpu_ticks() -> tuple[int, int, int]:
  """(all, idle, taken by other virtual machines) since the start of this one; zeros where nobody says."""
  try:
    with open('/proc/stat') as file:
      ticks = [int(x) for x in file.readline().split()[1:9]]
  except OSError:
    return 0, 0, 0
  return sum(ticks), ticks[3] + ticks[4], ticks[7]


class Meanwhile:
  """Looks at what else the machine does from now on."""

  def __init__(self):
    self._ticks, self._own = cpu_ticks(), time.process_time()

  def others(self) -> float:
    """Share of the machine that other processes and other virtual machines had."""
    every, idle, _ = (b - a for a, b in zip(self._ticks, cpu_ticks(), strict=True))
    own = (time.process_time() - self._own) * os.sysconf('SC_CLK_TCK')
    return max(every - idle - own, 0) / max(every, 1)


PACKET = 66  # bytes of a packet's headers: Ethernet, IP, TCP with time stamps


def interface_sent() -> np.ndarray:
  """Bytes that this host of a lab has sent so far, with packets' headers and without; zeros outside of one."""
  counters = pathlib.Path('/sys/class/net/eth0/statistics')
  if not counters.exists():
    return np.zeros(2)
  sent, packets = (int((counters / name).read_text()) for name in ('tx_bytes', 'tx_packets'))
  return np.array([sent, sent - PACKET * packets])


def last_words(output, each=12):
  """The last lines of every process, and the launcher's: who failed first is not who says most."""
  lines = collections.defaultdict(list)
  for line in output.splitlines():
    lines[line.split(' ')[0] if line.startswith('[') else ''].append(line)
  return '\n'.join(line for _, some in sorted(lines.items(), reverse=True) for line in some[-each:])


def result_in_lab(lab, command):
  """Runs a benchmark's workers on all hosts; see `result_of`."""
  return result_of(lambda output: lab.run(command, output=output).code)


def result_of(run: Callable[[TextIO], int]) -> dict:
  """What worker 0 of a benchmark printed as `RESULT` and JSON.

  It also says how much of the machine others had meanwhile (`stolen`): beyond a few percent, times mean little.

  Args:
    run: runs all workers with a place for their output; returns 0, or the exit code of one that failed.
  """
  lines = io.StringIO()
  before = cpu_ticks()
  if run(lines):
    sys.exit(f'a worker failed:\n{last_words(lines.getvalue())}')
  found = [x for x in lines.getvalue().splitlines() if x.startswith('[0] RESULT ')]
  every, _, stolen = (b - a for a, b in zip(before, cpu_ticks(), strict=True))
  return json.loads(found[-1].removeprefix('[0] RESULT ')) | {'stolen': round(stolen / max(every, 1), 3)}
