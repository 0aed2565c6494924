"""A dry run, nothing is trained: `python -m dct_jax.partition plan dlrm --group 3 --rate 1gbit --svg plan.svg`,
`python -m dct_jax.partition plan configs/dlrm_criteo.py:wide --group 3`: a file with `get_net()`, which gives a
`dct_jax.partition.ready.Net`; what follows the colon is passed to it, as to `get_config`."""

from __future__ import annotations

import argparse
import inspect
import math
import pathlib
import runpy
import sys
from collections.abc import Callable, Sequence
from typing import Any

from dct_jax import commands
from dct_jax.partition import Codecs, Machine, Nodes, Plan, codecs, draw, files, measure_machine, plan, ready, report
from dct_jax.partition.plan import METHODS
from dct_jax.partition.precision import FCS
from dct_jax.wire.units import bits_per_second, number_of_bytes

SHAPES = ('batch', 'layers', 'width', 'rows', 'optimizer')  # flags that a net's function may have
ROWS = 10_000  # of a table of DLRM, if there are sparse servers, which are for tables


def main(arguments: Sequence[str] | None = None) -> int:
  parser = commands.Parser('dct_jax.partition', description=__doc__)
  command = parser.add_subparsers(dest='command', required=True).add_parser(
      'plan', help='place a program on the nodes of a group, and say how that will be',
      formatter_class=argparse.ArgumentDefaultsHelpFormatter)
  _add_net(command)
  _add_group(command)
  _add_results(command)
  flags = parser.parse_args(arguments)
  return commands.attempt(command.prog, lambda: _plan(flags))


def _add_net(command):
  command.add_argument('config', help=f'{", ".join(ready.NETS)}, or a Python file with get_net()')
  shown = argparse.SUPPRESS  # the net's own defaults are not known here
  command.add_argument('--batch', type=int, default=shown, help='examples of a step, if not as the net has it')
  command.add_argument('--layers', type=int, default=shown, help='likewise, number of layers')
  command.add_argument('--width', type=int, default=shown, help='likewise, width of layers')
  command.add_argument('--rows', type=int, default=shown, help='likewise, rows of every table')
  command.add_argument('--optimizer', choices=list(ready.OPTIMIZERS), default=shown, help='likewise')


def _add_group(command):
  command.add_argument('--group', type=int, default=3, help='group parameter servers')
  command.add_argument('--sparse', type=int, default=0, help='sparse parameter servers')
  command.add_argument('--trainers', type=int, default=1, help='that share these servers')
  command.add_argument('--forward', type=_codec, default=codecs.EXACT, help=f'codec of activations: {codecs.SPELLED}')
  command.add_argument('--backward', type=_codec, default=codecs.EXACT, help='codec of their gradients, likewise')
  command.add_argument('--feedback', type=int, help='batches until what gradients have lost is forgotten, on average; '
                       'it is not kept unless given')
  command.add_argument('--fc', choices=FCS, default=FCS[0], help='in which FCs compute their products forward')
  command.add_argument('--rate', default='10gbit', help="of every link, each way: '100mbit', '1gbit'")
  command.add_argument('--latency', type=float, default=1e3 * report.LATENCY, help='of a message, in milliseconds')
  command.add_argument('--memory', help="of every node: '8GB'; without limit unless given")
  command.add_argument('--machine', help='file with costs of a machine (JSON); this one is measured if there is none')
  command.add_argument('--method', choices=METHODS, default='greedy', help='of placing')
  command.add_argument('--seconds', type=float, default=5.0, help='that the search may take')
  command.add_argument('--splits', choices=('auto', 'none'), default='auto', help='of layers: if they pay, or never')


def _codec(name: str) -> str:
  try:
    return codecs.check(name)
  except ValueError as error:
    raise argparse.ArgumentTypeError(str(error)) from None


def _add_results(command):
  command.add_argument('--out', help='where the plan goes (JSON)')
  command.add_argument('--svg', help='where the picture goes')
  command.add_argument('--moves', type=int, default=10, help='of the refinement that are printed, at most')
  command.add_argument('--parts', type=int, default=report.LONGEST, help='of the critical path that are printed')


def _plan(flags) -> int:
  if flags.latency < 0 or flags.seconds <= 0:
    raise ValueError(f'a latency is not below 0 and a search takes time, got {flags.latency=} {flags.seconds=}')
  nodes = Nodes(flags.group, flags.sparse, flags.trainers)
  codec = Codecs(flags.forward, flags.backward, flags.feedback)
  net = _net(flags)
  made = plan(net.loss, net.optimizer, net.params, *net.batch, nodes=nodes, has_aux=net.has_aux, rule=net.rule,
              codec=codec, machine=_machine(flags), method=flags.method, seconds=flags.seconds, fc=flags.fc,
              splits=None if flags.splits == 'none' else flags.splits)
  _write(made, flags)
  print(f'{flags.config}: {len(made.graph.operators):,} operators in {len(made.blocks.blocks)} blocks, '
        f'{flags.forward} forward and {flags.backward} back, links of {flags.rate}\n')
  print(report.explain(made, latency=flags.latency / 1e3, moves=flags.moves, parts=flags.parts))
  return 0


def _write(made: Plan, flags) -> None:
  if flags.out:
    files.save(made, flags.out)
  if flags.svg:
    pathlib.Path(flags.svg).write_text(draw.svg(made))


def _machine(flags) -> Machine:
  rate = bits_per_second(flags.rate) / 8
  memory = number_of_bytes(flags.memory) if flags.memory else math.inf
  return (measure_machine(flags.machine, rate=rate, memory=memory) if flags.machine else
          Machine(rate=rate, memory=memory))


def _net(flags) -> ready.Net:
  """The net of a name or of a file, in the shape that flags ask for."""
  given = {name: getattr(flags, name) for name in SHAPES if hasattr(flags, name)}
  for name, value in given.items():
    if isinstance(value, int) and value < (name != 'rows'):
      raise ValueError(f'--{name} must be above 0, got {value}')
  function, variant = _function(flags.config)
  if flags.config == 'dlrm' and flags.sparse:
    given.setdefault('rows', ROWS)
  try:
    inspect.signature(function).bind(*variant, **given)
  except TypeError as error:
    raise ValueError(f'the net of {flags.config}: {error}') from None
  net = function(*variant, **given)
  if not isinstance(net, ready.Net):
    raise ValueError(f'get_net() of {flags.config} gives a dct_jax.partition.ready.Net, got {type(net).__name__}')
  return net


def _function(config: str) -> tuple[Callable[..., Any], list[str]]:
  if config in ready.NETS:
    return ready.NETS[config], []
  path, _, variant = config.partition(':')
  if not pathlib.Path(path).is_file():
    raise ValueError(f'{config!r} is none of {", ".join(ready.NETS)}, and no file')
  found = runpy.run_path(path).get('get_net')
  if not callable(found):
    raise ValueError(f'{path} has no get_net()')
  return found, [variant] if variant else []


if __name__ == '__main__':
  sys.exit(main())
