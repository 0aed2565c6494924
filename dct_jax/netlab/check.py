"""Does a lab deliver what it was asked for? Rates with all hosts at work, and what a small message takes."""

from __future__ import annotations

import io
import json
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dct_jax.netlab.namespaces import FRAME, PAYLOAD

MESSAGE = 16_384  # bytes
ENOUGH = 0.9  # of the rate; 0.956 is what TCP's and Ethernet's headers leave of it
BUSY = 0.95  # of the processors: then they are what was measured


class Check(NamedTuple):
  """What a lab delivers. Rates are in bits of payload a second, times in seconds."""

  rate: float  # that was asked for
  ring: tuple[float, ...]  # what every host received while each one sent to the next
  flow: float  # from host 0 to 1 while all others were silent
  one_way: float  # of a message of 16 KB on idle links
  there_and_back: float  # half of it, for the same message
  gather: float  # until host 0 has such messages from all others, sent at once
  busy: float  # share of the processors' time during the ring

  @property
  def delivered(self) -> float:
    """The share of the rate that the slowest host of the ring got."""
    return min(self.ring) / self.rate

  @property
  def line(self) -> float:
    """Seconds that 16 KB and their headers take at the rate."""
    return 8 * MESSAGE * FRAME / PAYLOAD / self.rate


def check(run: Callable, addresses: Sequence[str], rate: float, seconds: float) -> Check:
  """Measures; `run(argv, timeout=, output=)` runs a program on every host.

  Raises:
    RuntimeError: if it cannot be measured.
  """
  settings = {'addresses': list(addresses), 'seconds': seconds, 'message': MESSAGE}
  script = pathlib.Path(__file__).with_name('traffic.py')
  output = io.StringIO()
  code = run([sys.executable, str(script), json.dumps(settings)], timeout=60 + 10 * seconds, output=output).code
  if code:
    raise RuntimeError(f'the links could not be measured (exit code {code}):\n{output.getvalue()}')
  found = {}
  for line in output.getvalue().splitlines():
    host, _, said = line.partition('] TRAFFIC ')
    if said:
      found[int(host.removeprefix('['))] = json.loads(said)
  first = found[0]
  return Check(rate, tuple(found[i]['ring'] for i in sorted(found)), found[1]['flow'], first['one_way'],
               first['there_and_back'], first['gather'], first['busy'])


def warning(found: Check) -> str | None:
  """What is wrong with a lab, in a sentence, or None."""
  if found.delivered >= ENOUGH:
    return None
  why = (f'its processors were {found.busy:.0%} busy: other programs run, or it is too slow for so many hosts'
         if found.busy > BUSY else 'its processors had time left: the shaping, or a loss of packets, is the cause')
  return (f'this lab delivers {found.delivered:.0%} of the rate that it was asked for, with all hosts sending '
          f'({min(found.ring) / 1e6:,.1f} of {found.rate / 1e6:,.1f} Mbit/s); {why}')


def explain(found: Check) -> str:
  """A table."""
  hosts = len(found.ring)
  lines = [f'{"":34}{"Mbit/s":>10}{"of the rate":>13}']
  row = lambda name, rate: lines.append(f'{name:34}{rate / 1e6:>10,.1f}{rate / found.rate:>13.1%}')
  for i, rate in enumerate(found.ring):
    row(f'ring, {(i - 1) % hosts} to {i}', rate)
  row('ring, the slowest', min(found.ring))
  row('one flow alone, 0 to 1', found.flow)
  lines += ['', f'{"":34}{"ms":>10}{"of line time":>13}']
  time = lambda name, took, line: lines.append(f'{name:34}{1e3 * took:>10,.3f}{took / line:>13.2f}')
  time(f'{MESSAGE:,} bytes, one way', found.one_way, found.line)
  time('there and back, halved', found.there_and_back, found.line)
  time(f'from {hosts - 1} hosts to one, at once', found.gather, found.line * (hosts - 1))
  lines += ['', f'processors {found.busy:.0%} busy during the ring; payload can be {PAYLOAD / FRAME:.1%} of a rate']
  return '\n'.join(lines)


def summary(found: Check) -> dict[str, float]:
  """Shares of the rate and of line times, for machines."""
  hosts = len(found.ring)
  shares = {
      'ring_min': found.delivered, 'ring_mean': sum(found.ring) / hosts / found.rate,
      'flow': found.flow / found.rate, 'one_way_over_line': found.one_way / found.line,
      'there_and_back_over_line': found.there_and_back / found.line,
      'gather_over_line': found.gather / found.line / (hosts - 1), 'busy': found.busy}
  return {'hosts': hosts, 'rate': found.rate} | {name: round(x, 4) for name, x in shares.items()}
