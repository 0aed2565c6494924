"""DLRM in the network lab: whole steps of several configurations in turns, with what they move and use.

    python benchmarks/dlrm_lab.py                                    # hybrid on 2 x 2 hosts, 10 and 100 Mbit
    python benchmarks/dlrm_lab.py --suite=lifespan --rates=100mbit   # Figure 7a of the DCT paper
    python benchmarks/dlrm_lab.py --suite=sparsity --rates=100mbit   # Figure 7c
    python benchmarks/dlrm_lab.py --suite=wide --rates=100mbit       # times for Table 5: 13 stages on 13 hosts

`benchmarks/dlrm.py --lab` runs the first of these.
"""

import os
import pathlib
import sys

import turns
from absl import app, flags
from timing import finish, table

from dct_jax import train
from dct_jax.data import clicks
from dct_jax.train import experiment

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / 'experiments'))
import dlrm_criteo

from shared.dlrm.setup import WIDE_CUTS, make_setup

flags.adopt_module_key_flags(dlrm_criteo)
SUITE = flags.DEFINE_enum('suite', 'hybrid', ['hybrid', 'headline', 'wide', 'lifespan', 'sparsity'],
                          'Which configurations are compared.')
CONTENDERS = flags.DEFINE_list('contenders', None,
                               'Names of the configurations of the suite to compare; all unless given.')
RATES = flags.DEFINE_list('rates', ['10mbit', '100mbit'], 'Rates of every link, as tc writes them.')
BLOCK = flags.DEFINE_integer('block', 4, "Steps of one contender before it is the next one's turn; the first "
                             'of them is not counted.')
ROUNDS = flags.DEFINE_integer('rounds', 6, 'How often each has its turn.')
WARM_UP = flags.DEFINE_integer('warm_up', 12, 'Steps of each before anything counts: residuals have to fill.')
WORKER = flags.DEFINE_bool('worker', False, 'Set in the processes that it starts.')
COMPRESSED = {'dp_sparsity': 0.99, 'mp_sparsity': 0.9, 'activation_codec': 'float16', 'row_codec': 'float16'}


def suite():
  """Name -> settings that differ from the baseline of the DLRM experiment; workers and stages are alike."""
  stages = {'workers': 2, 'stages': 2, 'splits': 'bottom2'}
  wide = {'method': 'wide', 'workers': 1, 'stages': 13, 'splits': WIDE_CUTS, 'microbatches': 4}
  workers = {'workers': 4}
  dct = {'dp_sparsity': 0.95, 'tracking': 0.0, 'value_codec': 'float32'}
  every = {
      'hybrid': {'dense': stages, 'DCT': stages | COMPRESSED,
                 'DCT, int8 rows': stages | COMPRESSED | {'row_codec': 'int8'}},
      'headline': {'dense': stages, 'DCT-DP 99%': stages | {'dp_sparsity': 0.99, 'row_codec': 'float16'},
                   'DCT-MP 90%': stages | {'mp_sparsity': 0.9}, 'both': stages | COMPRESSED},
      'wide': {'dense': wide} | {f'{s:.0%}': wide | {'mp_sparsity': s} for s in (0.75, 0.9, 0.95)},
      'lifespan': {'dense': workers}
                  | {'L = 1, copy and sort': workers | dct | {'lifespan': 1, 'selection': 'sort'}}
                  | {f'L = {n}': workers | dct | {'lifespan': n} for n in (1, 10, 100, 1000, 10000)},
      'sparsity': {'dense': workers} | {f'{s:.1%}': workers | dct | {'dp_sparsity': s}
                                        for s in (0.75, 0.9, 0.95, 0.99, 0.995)}}
  chosen = every[SUITE.value]
  return {name: chosen[name] for name in CONTENDERS.value or chosen}


def make(changes, sets):
  """A contender for one configuration."""
  config = experiment.changed(changes)
  setup = make_setup(config, sets.test.dense.shape[1], sets.vocabularies)
  held = list(setup.state[:2])
  mine, parts = setup.share
  batches = clicks.batches(sets.train, config.batch, 0, process=mine, processes=parts)

  def advance(batch):
    *held[:], metrics = setup.step(*held, batch)
    return metrics

  return turns.Contender(advance, lambda: (next(batches)._asdict(),))


def summary(contender, stages):
  told = {k: contender.mean(k) for k in (
      'sent_bytes', 'row_bytes', 'activation_forward_bytes', 'encoded_bytes', 'loss',
      'activation_backward_bytes', 'activation_dense_bytes')}
  moved = ('sent_bytes', 'row_bytes', 'activation_forward_bytes', 'activation_backward_bytes')
  # Metrics are of all stages of a worker; inside a device nothing crosses.
  accounted = sum(told[k] for k in (moved if stages > 1 else moved[:2])) / stages
  return told | contender.summary() | {'accounted_bytes': accounted}


def worker():
  train.start(**train.flag_values())
  sets = clicks.load('', None, rows=40_000, test_rows=1_000)
  group = {name: make(changes, sets) for name, changes in suite().items()}
  turns.take_turns(group, ROUNDS.value, BLOCK.value,
                   lambda name: 2 if name.startswith('dense') else WARM_UP.value)
  turns.tell({name: summary(contender, suite()[name].get('stages', 1)) for name, contender in group.items()})


def show(rate, found, hosts):
  """Prints the table; returns how much faster the compressed configuration is."""
  cores = os.cpu_count() or 1
  first = next(iter(found.values()))['seconds']
  rows = [('', 'ms a step', 'faster', 'gradients B', 'rows B', 'forward B', 'backward B', 'a host B',
           'interface B', 'network', 'processors', 'loss')]
  for name, f in found.items():
    rows.append((name, f'{1e3 * f["seconds"]:.1f}', f'{first / f["seconds"]:.2f}', f'{f["sent_bytes"]:,.0f}',
                 f'{f["row_bytes"]:,.0f}', f'{f["activation_forward_bytes"]:,.0f}',
                 f'{f["activation_backward_bytes"]:,.0f}', f'{f["accounted_bytes"]:,.0f}',
                 f'{f["payload_bytes"]:,.0f}',
                 f'{8 * f["rate"] / turns.bits(rate):.0%}', f'{hosts * f["busy"] / cores:.0%}',
                 f'{f["loss"]:.4f}'))
  table(rate, f'DLRM, {hosts} hosts, {rate}; bytes a step; interface: as the system counts, without headers', rows)
  seconds = {name: f['seconds'] for name, f in found.items()}
  dense = seconds.pop('dense')
  best = 'DCT' if 'DCT' in seconds else min(seconds, key=seconds.get)
  return {f'{SUITE.value}_speedup_{rate}': round(dense / seconds[best], 2),
          f'{SUITE.value}_saved_{rate}': round(1 - seconds[best] / dense, 3)}


def in_the_lab(argv):
  """All rates in one lab; returns what to print last."""
  settings = next(iter(suite().values()))
  hosts = settings['workers'] * settings.get('stages', 1)
  return turns.in_the_lab(__file__, argv, hosts, RATES.value, lambda rate, found: show(rate, found, hosts))


def main(argv):
  if WORKER.value:
    return worker()
  finish(in_the_lab(sys.argv[1:]), seed=experiment.changed({}).seed)


if __name__ == '__main__':
  app.run(main)
