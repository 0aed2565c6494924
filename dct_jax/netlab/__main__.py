"""A lab, and advice: `python -m dct_jax.netlab run --hosts 4 --rate 100mbit -- python program.py --flags`,
`python -m dct_jax.netlab check --hosts 4 --rate 100mbit`,
`python -m dct_jax.netlab advise --parameters 500000 --sparsity 0.99 --workers 4 --rate 100mbit`,
`python -m dct_jax.netlab calibrate --save costs.json` (on every host, or in a lab),
`python -m dct_jax.netlab chaos --faults kill:3,cut -- python program.py '{workdir}'`."""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import shlex
import sys
import tempfile
from collections.abc import Sequence

from dct_jax import commands, train
from dct_jax.collectives.costs import Costs
from dct_jax.netlab import Lab, advise, bits_per_second, calibrate, chaos, check, end_on_sigterm
from dct_jax.train import report, results
from dct_jax.transforms import make_mesh
from dct_jax.transport import connect


def main(arguments: Sequence[str] | None = None) -> int:
  parser = commands.Parser('dct_jax.netlab', description=__doc__)
  known = parser.add_subparsers(dest='command', required=True)
  for add in (_add_run, _add_check, _add_advise, _add_calibrate, _add_chaos):
    add(known)
  flags = parser.parse_args(arguments)
  return commands.attempt(f'{parser.prog} {flags.command}', lambda: flags.action(flags))


def _add_run(known):
  run = known.add_parser('run', help='run a program on every host of a lab')
  run.add_argument('--rate', help="of every link, each way: '100mbit', '1gbit'; unshaped unless given")
  _add_lab(run)
  run.add_argument('--timeout', type=float, help='seconds after which all are ended')
  run.add_argument('program', nargs='+', help='after --: program and arguments')
  run.set_defaults(action=_run)


def _add_check(known):
  command = known.add_parser('check', help='what do the links of a lab deliver?')
  command.add_argument('--rate', required=True, help="of every link, each way: '100mbit', '1gbit'")
  _add_lab(command)
  command.add_argument('--seconds', type=float, default=2.0, help='of each of two measurements of rates')
  command.add_argument('--strict', action='store_true', help='fail below 90%% of the rate')
  command.set_defaults(action=_check)


def _add_lab(parser):
  parser.add_argument('--hosts', type=int, default=4, help='of the lab')
  parser.add_argument('--delay', help="one way: '1ms'")
  parser.add_argument('--loss', help="of packets: '0.1%%'")
  parser.add_argument('--burst', help='bytes that may pass at once after a rest')
  parser.add_argument('--no-pin', dest='pin', action='store_false', help='hosts may run on every core')


def _lab(flags):
  end_on_sigterm()
  return Lab(flags.hosts, rate=flags.rate, delay=flags.delay, loss=flags.loss, burst=flags.burst, pin=flags.pin)


def _run(flags):
  typed = {results.COMMAND: shlex.join(['python', '-m', 'dct_jax.netlab', *sys.argv[1:]])}
  with _lab(flags) as lab:
    result = lab.run(flags.program, timeout=flags.timeout, environment=typed)
    for i, c in enumerate(result.counters or ()):
      print(f'host {i}: sent {c.sent_bytes:,} bytes in {c.sent_packets:,} packets, '
            f'received {c.received_bytes:,} bytes')
  return result.code


def _check(flags):
  with _lab(flags) as lab:
    found = lab.check(flags.seconds)
  if found is None:
    print('there is nothing to check: it takes a lab, and at least two hosts', file=sys.stderr)
    return 1
  print(f'{flags.hosts} hosts, {flags.rate} links\n\n{check.explain(found)}')
  wrong = check.warning(found)
  if wrong:
    print(f'\nwarning: {wrong}')
  print(json.dumps(check.summary(found)))
  return 1 if wrong and flags.strict else 0


def _add_advise(known):
  advise = known.add_parser('advise', help='will compression pay off here?',
                               formatter_class=argparse.ArgumentDefaultsHelpFormatter)
  advise.add_argument('--parameters', type=float, required=True, help='of the model: 20000000, or 20e6')
  advise.add_argument('--sparsity', type=float, default=0.99, help='share of the gradient that stays behind')
  advise.add_argument('--workers', type=int, default=4, help='that exchange gradients')
  advise.add_argument('--rate', default='1gbit', help='of every link')
  advise.add_argument('--latency', type=float, default=1.0, help='of a round, in milliseconds')
  advise.add_argument('--costs', help='file of `calibrate`, instead of workers, rate and latency')
  advise.add_argument('--compute', type=float, default=0.0,
                      help='milliseconds of a step without exchange; 0 compares exchanges alone')
  advise.add_argument('--value-bits', type=int, default=16, help='of a value in a message; 32 for float32')
  advise.add_argument('--overlap', type=float, default=0.0, help="how alike workers' choices are, 0 to 1")
  advise.set_defaults(action=_advise)


def _advise(flags):
  if not 1 <= flags.parameters < math.inf:
    raise ValueError(f'--parameters must be at least 1, got {flags.parameters:g}')
  parameters = int(flags.parameters)
  costs = calibrate.load(flags.costs) if flags.costs else Costs.of_network(
      flags.workers, bits_per_second(flags.rate) / 8, flags.latency / 1e3)
  advice = advise.advise(
      costs, parameters=parameters, sparsity=flags.sparsity, value_bits=flags.value_bits,
      compute=flags.compute / 1e3, overlap=flags.overlap)
  network = f'costs of {flags.costs}' if flags.costs else f'{flags.rate} links, {flags.latency:g} ms a round'
  print(f'{parameters:,} parameters, {1 - flags.sparsity:.2%} of them sent with {flags.value_bits}-bit '
        f'values; {costs.workers} workers, {network}; {flags.compute:g} ms of computation\n')
  print(advise.explain(advice, flags.compute / 1e3))
  return 0


def _add_calibrate(known):
  command = known.add_parser('calibrate', help='measure this mesh; run it on every host')
  command.add_argument('--save', required=True, help='where the costs go (JSON)')
  command.add_argument('--seconds', type=float, default=60.0, help='that the measurement may take, about')
  command.set_defaults(action=_calibrate)


def _calibrate(flags):
  train.start()
  with connect(make_mesh()) as transport:
    costs = calibrate.calibrate(transport, seconds=flags.seconds, path=flags.save, progress=True)
    if transport.rank == 0:
      print(f'{flags.save}: costs of {costs.workers} workers')
  return 0


def _add_chaos(known):
  command = known.add_parser('chaos', help='disturb a run at random times; does it end as it should?')
  command.add_argument('--rate', help='of every link, each way; unshaped unless given')
  _add_lab(command)
  command.add_argument('--faults', default='kill,stop,cut,slow,disk,flip',
                       help=f'{", ".join(chaos.MEANING)}; kill:3 tries it three times')
  command.add_argument('--seed', type=int, default=0, help='of order, hosts, times and bits')
  command.add_argument('--every', type=float, default=5.0, help='seconds between two faults, at most')
  command.add_argument('--hold', type=float, default=3.0, help='seconds until what can be mended is mended')
  command.add_argument('--timeout', type=float, default=600.0, help='seconds of a run')
  command.add_argument('--min_workers', type=int, help='workers that it may go on with; all of them unless given')
  command.add_argument('--workdir', help='where runs are; a new directory unless given, which is removed')
  command.add_argument('--results', help='JSON file that the table is put into')
  command.add_argument('program', nargs='+', help='after --: a program that goes on from its checkpoints when it is '
                       'started again; {workdir} is a directory for each run, {workers} the number of hosts')
  command.set_defaults(action=_chaos)


def _chaos(flags):
  with tempfile.TemporaryDirectory() as new, _lab(flags) as lab:
    verdict = chaos.chaos(
        lab, flags.program, chaos.parse(flags.faults), pathlib.Path(flags.workdir or new).absolute(), seed=flags.seed,
        every=flags.every, hold=flags.hold, timeout=flags.timeout, min_workers=flags.min_workers)
  made, numbers = chaos.table(verdict), chaos.values(verdict)
  print(report.lines(made))
  if flags.results:
    typed = shlex.join(['python', '-m', 'dct_jax.netlab', *sys.argv[1:]])
    results.write(flags.results, values=numbers, tables={'faults': made}, seed=flags.seed, command=typed,
                  tried=[list(one) for one in verdict.tried])
  for kind in verdict.left:
    print(f'not tried: {kind}', file=sys.stderr)
  print(f'{"as it should be" if verdict.good else "NOT as it should be"}: exit codes {verdict.codes}, '
        f'{verdict.different} of {verdict.compared} losses differ from those of the undisturbed run')
  print(json.dumps(numbers))
  return 0 if verdict.good else 1


if __name__ == '__main__':
  sys.exit(main())
