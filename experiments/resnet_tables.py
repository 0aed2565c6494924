"""Tables 1 and 2 and Figures 3 to 6 of the 3LC paper: ten designs of a parameter server, a ResNet, real images.

    python experiments/resnet_tables.py --data=cifar10/ --depth=8 --steps=600 --workdir=runs/resnet
    python experiments/resnet_tables.py ... --times=times.json    # of benchmarks/push_pull_lab.py --save

Every number of steps is a run of its own, with its own schedule. Runs that are there are not repeated.
"""

import json
import pathlib
import sys

import resnet_cifar
from absl import app, flags

from dct_jax.train import experiment
from shared.resnet.figures import draw_bits, draw_runtime, draw_times, figure

flags.adopt_module_key_flags(resnet_cifar)
DESIGNS = flags.DEFINE_list('designs', [
    'float32', 'int8', 'ternary', 'one_bit', 'sparse', 'local2', '3lc', '3lc_150', '3lc_175', '3lc_190'],
    'Variants of the configuration that are the rows of Table 1.')
SHARES = flags.DEFINE_list('shares', ['100', '25', '50', '75'],
                           'Lengths of runs in percent of --steps; the tables are of the first.')
TIMES = flags.DEFINE_string('times', None,
                            'Path of a JSON file, rate -> design -> seconds of a step, for the table and for '
                            'accuracy over time.')


def finished(design, percent, workdir):
  """The log of one run; it is made if there is none."""
  config = experiment.config_of(design)
  config.steps = config.steps * int(percent) // 100
  lines = experiment.once(resnet_cifar.train_one, config, workdir / f'{design}-{config.steps}')
  print(f'{design}, {config.steps} steps: {lines[-1]["eval/test_accuracy"]:.4f}', file=sys.stderr)
  return lines


def bits(design, lines):
  """Encoded bits a value, pushed and pulled, step by step: a worker pushes all values, and answers for its share."""
  config = experiment.config_of(design)
  values = lines[-1]['dense_bytes'] / 4 / (1 + 1 / config.workers)
  times = 8 / config.local_steps  # every logged step of several local ones is one with an exchange
  return ([line['step'] for line in lines], [times * line['push_bytes'] / values for line in lines],
          [times * line['pull_bytes'] / (values / config.workers) for line in lines])


def tables(runs, times):
  """Tables 1 and 2 as one, in Markdown."""
  heads = ('design', 'test accuracy %', 'difference', 'test loss', 'encoded bits pushed',
           'encoded bits pulled', 'ratio', *(f'ms a step at {rate} (times faster)' for rate in times))
  rows = ['| ' + ' | '.join(heads) + ' |', '|---' * len(heads) + '|']
  for name, lines in runs.items():
    last, base = lines[-1], runs[DESIGNS.value[0]][-1]
    _, pushed, pulled = (sum(x) / len(x) for x in bits(name, lines))
    accuracy = 100 * last['eval/test_accuracy']
    speeds = (f' {1e3 * t[name]:.0f} ({t[DESIGNS.value[0]] / t[name]:.2f}) |' if name in t else ' |'
              for t in times.values())
    rows.append(f'| {name} | {accuracy:.2f} | {accuracy - 100 * base["eval/test_accuracy"]:+.2f} | '
                f'{last["eval/test_loss"]:.4f} | {pushed:.3f} | {pulled:.3f} | '
                f'{64 / (pushed + pulled):.1f}x |{"".join(speeds)}')
  return '\n'.join(rows)


def main(argv):
  del argv
  experiment.begin(experiment.config_of('float32').workers)
  workdir = pathlib.Path(flags.FLAGS.workdir or 'runs/resnet_tables')
  runs = {(d, s): finished(d, s, workdir) for s in SHARES.value for d in DESIGNS.value}
  full = {d: runs[d, SHARES.value[0]] for d in DESIGNS.value}
  times = json.loads(pathlib.Path(TIMES.value).read_text()) if TIMES.value else {}
  print(tables(full, times))
  figure(workdir / 'figure4.png', 'during a run', 2, draw_runtime(full))
  if sizes := {name: bits(name, full[name]) for name in ('3lc', '3lc_175') if name in full}:
    figure(workdir / 'figure6.png', 'size of messages', len(sizes), draw_bits(sizes))
  if times:
    shares = ', '.join(sorted(SHARES.value, key=int))
    figure(workdir / 'figure3.png', f'runs of {shares}% of the steps', len(times),
           draw_times(runs, times, DESIGNS.value))


if __name__ == '__main__':
  app.run(main)
