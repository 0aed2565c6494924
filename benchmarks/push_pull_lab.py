"""3LC and its rivals over a real shaped network: Table 1 of the 3LC paper, on 4 hosts.

    python benchmarks/push_pull_lab.py                     # the exchange alone: real gradients, no model
    python benchmarks/push_pull_lab.py --part=training     # whole steps of a ResNet, on digits or --data
    python benchmarks/push_pull_lab.py --part=training --save=times.json     # for experiments/resnet_tables.py

Designs take turns in one run. The last line is JSON.
"""

import json
import os
import pathlib
import sys

import jax
import optax
import turns
from absl import app, flags
from jax.sharding import PartitionSpec as P
from timing import finish, table

import dct_jax
from dct_jax import train
from dct_jax.train import experiment

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / 'experiments'))
import resnet_cifar

from shared.resnet.designs import make_optimizer

flags.adopt_module_key_flags(resnet_cifar)
DESIGNS = flags.DEFINE_list('designs', [
    'float32', 'int8', 'ternary', 'one_bit', 'sparse', 'local2', '3lc', '3lc_150', '3lc_175', '3lc_190'],
    'Designs that are the rows of Table 1.')
PART = flags.DEFINE_enum('part', 'exchange', ['exchange', 'training'],
                         'Whether the exchange alone or whole steps of training are timed.')
RATES = flags.DEFINE_list('rates', ['10mbit', '100mbit', '1gbit'], 'Rates of every link, as tc writes them.')
ROUNDS = flags.DEFINE_integer('rounds', 4, 'How often each has its turn.')
TURN = flags.DEFINE_integer('turn', 5, 'Steps of one design before the next; the first is not counted.')
WARM_UP = flags.DEFINE_integer('warm_up', 12, 'Steps of each before anything counts; 2 of float32.')
SAVE = flags.DEFINE_string('save', None, 'File for seconds a step by rate and design; its other rates stay.')
WORKER = flags.DEFINE_bool('worker', False, 'Set in the processes that it starts.')

# Names of the designs in the paper's Table 1, and how much faster than float32 its whole steps are, by rate.
_paper = lambda *speedups: dict(zip(('10mbit', '100mbit', '1gbit'), speedups, strict=True))
TABLE_1 = {
    'float32': ('32-bit float', _paper('1', '1', '1')),
    'int8': ('8-bit int', _paper('3.62', '3.47', '1.51')),
    'ternary': ('stochastic 3-value, base 3^5', _paper('12.3', '7.51', '1.53')),
    'one_bit': ('1-bit, least squares', _paper('14.6', '7.40', '1.30')),
    'sparse': ('5% sparsification', _paper('8.98', '6.62', '1.44')),
    'local2': ('2 local steps', _paper('1.92', '1.87', '1.38')),
    '3lc': ('3LC, s = 1.00', _paper('15.9', '7.97', '1.53')),
    '3lc_150': ('3LC, s = 1.50', _paper('20.9', '8.70', '1.53')),
    '3lc_175': ('3LC, s = 1.75', _paper('22.8', '9.04', '1.53')),
    '3lc_190': ('3LC, s = 1.90', _paper('22.8', '9.22', '1.55'))}


def real_gradients(loss_fn, variables, batches, mesh, count=4):
  """Local gradients of a few batches, a worker's own on its device."""
  def local(variables, batch):
    _, grads = dct_jax.local_value_and_grad(loss_fn, 'data')(variables, batch)
    return jax.tree.map(lambda x: x[None], grads)
  compute = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(P(), P('data')), out_specs=P('data')))
  return [jax.block_until_ready(compute(variables, next(batches))) for _ in range(count)]


def exchange_alone(tx, variables, state, specs, mesh, gradients, period):
  """The optimizer's step with given gradients: compression, two exchanges, SGD."""
  def step(variables, state, grads):
    updates, state = tx.update(jax.tree.map(lambda x: x[0], grads), state, variables)
    return optax.apply_updates(variables, updates), state, train.accounts(state)
  mapped = jax.shard_map(step, mesh=mesh, in_specs=(P(), specs, P('data')), out_specs=(P(), specs, P()))
  compiled = jax.jit(mapped, donate_argnums=(0, 1))
  held, count = [variables, state], [0]

  def advance():
    count[0] += 1
    *held[:], metrics = compiled(*held, gradients[count[0] % len(gradients)])
    return metrics

  return turns.Contender(advance, period=period)


def worker():
  train.start(**train.flag_values())
  config = experiment.config_of('float32')
  data = resnet_cifar.load(config)['train']
  mesh = dct_jax.make_mesh(config.workers)
  transport = dct_jax.connect(mesh, timeout=600.0)  # hosts that share cores compile for minutes
  model = resnet_cifar.make_model(config)
  loss_fn = resnet_cifar.make_loss(model)
  first = model.init(jax.random.PRNGKey(config.seed), data['x'][:1])
  batches = resnet_cifar.make_batches(data, config, mesh, 0)
  gradients, group = None, {}
  for name in DESIGNS.value:
    design = experiment.config_of(name)
    tx = make_optimizer(design, transport)
    variables, state, specs = dct_jax.init(tx, first, mesh)
    if PART.value == 'exchange':
      gradients = gradients or real_gradients(loss_fn, variables, batches, mesh)
      group[name] = exchange_alone(tx, variables, state, specs, mesh, gradients, design.local_steps)
      continue
    step, held = train.make_step(loss_fn, tx, mesh, specs, transport=transport), [variables, state]

    def advance(batch, step=step, held=held):
      *held[:], metrics = step(*held, batch)
      return metrics

    group[name] = turns.Contender(advance, lambda: (next(batches),), design.local_steps)
  turns.take_turns(group, ROUNDS.value, TURN.value, lambda name: 2 if name == 'float32' else WARM_UP.value)
  told = ('sent_bytes', 'push_bytes', 'pull_bytes')
  values = sum(x.size for x in jax.tree.leaves(first))
  turns.tell({name: {k: c.mean(k) for k in told} | c.summary() | {'values': values}
              for name, c in group.items()})


def show(rate, found):
  base, hosts = found[DESIGNS.value[0]]['seconds'], experiment.config_of('float32').workers
  rows = [('', 'ms a step', 'faster', 'paper', 'bits pushed', 'bits pulled', 'sent B', 'interface B', 'network',
           'processors')]
  for name, f in found.items():
    title, paper = TABLE_1.get(name, (name, {}))
    rows.append((title, f'{1e3 * f["seconds"]:.1f}', f'{base / f["seconds"]:.2f}', paper.get(rate, ''),
                 f'{8 * f["push_bytes"] / f["values"]:.3f}', f'{8 * hosts * f["pull_bytes"] / f["values"]:.3f}',
                 f'{f["sent_bytes"]:,.0f}', f'{f["payload_bytes"]:,.0f}',
                 f'{8 * f["rate"] / turns.bits(rate):.0%}', f'{hosts * f["busy"] / (os.cpu_count() or 1):.0%}'))
  values = int(next(iter(found.values()))['values'])
  table(f'{PART.value}_{rate}', f'{PART.value}, {hosts} hosts, {rate}, {values:,} values', rows)
  seconds = {name: f['seconds'] for name, f in found.items()}
  if SAVE.value:
    path = pathlib.Path(SAVE.value)
    saved = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(saved | {rate: seconds}, indent=1))
  return {f'{PART.value}_speedup_{rate}': round(base / seconds.get('3lc_175', base), 2)}


def main(argv):
  if WORKER.value:
    return worker()
  hosts = experiment.config_of('float32').workers
  finish(turns.in_the_lab(__file__, sys.argv[1:], hosts, RATES.value, show), seed=experiment.config_of('float32').seed)


if __name__ == '__main__':
  app.run(main)
