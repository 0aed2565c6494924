"""`python -m dct_jax.netlab run --hosts 4 --rate 100mbit --delay 1ms -- python program.py --flags`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from dct_jax.netlab import Lab, end_on_sigterm


def main(arguments: Sequence[str] | None = None) -> int:
  parser = argparse.ArgumentParser('dct_jax.netlab', description=__doc__)
  commands = parser.add_subparsers(dest='command', required=True)
  run = commands.add_parser('run', help='run a program on every host of a lab')
  run.add_argument('--hosts', type=int, default=4)
  run.add_argument('--rate', help="of every link, each way: '100mbit', '1gbit'; unshaped unless given")
  run.add_argument('--delay', help="one way: '1ms'")
  run.add_argument('--loss', help="of packets: '0.1%%'")
  run.add_argument('--burst', help='bytes that may pass at line speed')
  run.add_argument('--timeout', type=float, help='seconds after which all are ended')
  run.add_argument('program', nargs='+', help='after --: program and arguments')
  flags = parser.parse_args(arguments)
  end_on_sigterm()
  with Lab(flags.hosts, rate=flags.rate, delay=flags.delay, loss=flags.loss, burst=flags.burst) as lab:
    result = lab.run(flags.program, timeout=flags.timeout)
    for i, c in enumerate(result.counters or ()):
      print(f'host {i}: sent {c.sent_bytes:,} bytes in {c.sent_packets:,} packets, '
            f'received {c.received_bytes:,} bytes')
  return result.code


if __name__ == '__main__':
  sys.exit(main())
