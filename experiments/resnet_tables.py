"""Tables 1 and 2 and Figures 3 to 6 of the 3LC paper: ten designs of a parameter server, a ResNet, real images.

    python experiments/resnet_tables.py --data=cifar10/ --depth=8 --steps=600 --workdir=runs/resnet
    python experiments/resnet_tables.py ... --times=times.json    # of benchmarks/push_pull_lab.py --save

Every number of steps is a run of its own, with its own schedule. Runs that are there are not repeated. With
--results=FILE tables go to that file, too.
"""

import json
import pathlib
import sys

import resnet_cifar
from absl import app, flags

from dct_jax.train import experiment, report, results
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


# The paper's Table 1: times faster at 10, 100 and 1,000 Mbit, accuracy and its difference; Table 2: bits of kernels.
PAPER = {
    'float32': '1, 1, 1; 93.37', 'int8': '3.62, 3.47, 1.51; 93.33 (-0.04)',
    'ternary': '12.3, 7.51, 1.53; 92.06 (-1.31)',
    'one_bit': '14.6, 7.40, 1.30; 93.21 (-0.16)', 'sparse': '8.98, 6.62, 1.44; 92.87 (-0.50)',
    'local2': '1.92, 1.87, 1.38; 93.03 (-0.34)', '3lc': '15.9, 7.97, 1.53; 93.32 (-0.05); 0.812',
    '3lc_150': '20.9, 8.70, 1.53; 93.29 (-0.08); 0.451', '3lc_175': '22.8, 9.04, 1.53; 93.51 (+0.14); 0.298',
    '3lc_190': '22.8, 9.22, 1.55; 93.10 (-0.27); 0.200', '3lc_no_zero_runs': 'not told; 1.6'}


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


def designs(runs, times):
  """Tables 1 and 2 as one: accuracies of every number of steps; bits and times, of the first of --shares."""
  first, shares = SHARES.value[0], sorted(SHARES.value, key=int)
  steps = {share: runs[DESIGNS.value[0], share][-1]['step'] for share in shares}
  heads = ['design', *(f'%, {steps[share]:,} steps' for share in shares), 'difference', 'bits pushed', 'pulled',
           *(f'{rate}, ms' for rate in times), 'paper']
  accuracy = lambda name, share: 100 * runs[name, share][-1]['eval/test_accuracy']
  rows = []
  for name in DESIGNS.value:
    _, pushed, pulled = (sum(x) / len(x) for x in bits(name, runs[name, first]))
    rows.append([name, *(f'{accuracy(name, share):.2f}' for share in shares),
                 f'{accuracy(name, first) - accuracy(DESIGNS.value[0], first):+.2f}', f'{pushed:.3f}', f'{pulled:.3f}',
                 *(f'{1e3 * t[name]:.0f} ({t[DESIGNS.value[0]] / t[name]:.2f})' if name in t else ''
                   for t in times.values()), PAPER.get(name, '')])
  return report.lines(results.table(heads, rows))


def losses(runs):
  """Of both sets, after the first of --shares."""
  last = {name: runs[name, SHARES.value[0]][-1] for name in DESIGNS.value}
  return report.lines(results.table(['design', 'train loss', 'test loss'], [
      [name, *(f'{line[f"eval/{which}_loss"]:.4f}' for which in ('train', 'test'))] for name, line in last.items()]))


def main(argv):
  del argv
  experiment.begin(experiment.config_of('float32').workers)
  workdir = pathlib.Path(flags.FLAGS.workdir or 'runs/resnet_tables')
  runs = {(d, s): finished(d, s, workdir) for s in SHARES.value for d in DESIGNS.value}
  full = {d: runs[d, SHARES.value[0]] for d in DESIGNS.value}
  times = json.loads(pathlib.Path(TIMES.value).read_text()) if TIMES.value else {}
  experiment.show({'designs': designs(runs, times), 'losses': losses(runs)}, experiment.config_of('float32').seed)
  figure(workdir / 'figure4.png', 'during a run', 2, draw_runtime(full))
  if sizes := {name: bits(name, full[name]) for name in ('3lc', '3lc_175') if name in full}:
    figure(workdir / 'figure6.png', 'size of messages', len(sizes), draw_bits(sizes))
  if times:
    shares = ', '.join(sorted(SHARES.value, key=int))
    figure(workdir / 'figure3.png', f'runs of {shares}% of the steps', len(times),
           draw_times(runs, times, DESIGNS.value))


if __name__ == '__main__':
  app.run(experiment.guarded(main))
