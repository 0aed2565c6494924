"""DLRM on one worker, beside the public PyTorch one: `python benchmarks/dlrm.py --rival=DIRECTORY`.

Whole training steps: rows are fetched, forward, backward, SGD on both MLPs and on the rows that the batch has
used. The rival is facebookresearch/dlrm, of which DIRECTORY has a copy (`dlrm_s_pytorch.py`); it is left out
without one. It begins with our weights, sees the same batches, and must come to the same losses. Its optimizer
is its default, SGD with sparse gradients of the tables. Batches are placed before anything counts. Then
the update of tables alone, small and large, for the same batch. `--lab` is for hybrid training on hosts of the
network lab (`dlrm_lab.py`). The last line is JSON.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import itertools
import pathlib
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags
from timing import OUT, Meanwhile, alternate, donated, finish, table

import dct_jax
from dct_jax import tables as embeddings
from dct_jax import train
from dct_jax.data import clicks
from dct_jax.data.clicks import synthetic
from dct_jax.models.dlrm import Dlrm

RIVAL = flags.DEFINE_string('rival', '', 'Directory of the public dlrm_s_pytorch.py.')
BATCHES = flags.DEFINE_list('batches', ['128', '2048'], 'Numbers of examples in a step.')
VOCABULARY = flags.DEFINE_integer('vocabulary', 100_000, 'Number of ids of the largest field of the synthetic clicks.')
BLOCK = flags.DEFINE_integer('block', 4, "Number of steps of one contender before the next one's turn.")
SECONDS = flags.DEFINE_float('seconds', 60, 'Seconds that each comparison takes.')
LAB = flags.DEFINE_bool('lab', False, 'Whether to run hybrid training in the network lab instead, by dlrm_lab.py.')
ROWS = flags.DEFINE_list('rows', ['100_000', '10_000_000'],
                         'Numbers of rows of all tables together, where only tables are updated.')

RATE = 0.1  # of everything, for both
KEPT = 16  # batches that are used in turn
WIDTH = Dlrm.bottom[-1]


def make_batches(sets, batch):
  return list(itertools.islice(clicks.batches(sets.train, batch, seed=0), KEPT))


class Start:
  """The weights that all contenders begin with."""

  def __init__(self, sets):
    key = jax.random.PRNGKey(0)
    self.layout = embeddings.deal(sets.vocabularies)
    self.params = Dlrm().init(key, sets.train.dense[:1], jnp.zeros((1, len(sets.vocabularies), WIDTH)))
    self.tables = embeddings.init_tables(key, self.layout, WIDTH)

  def table(self, field):
    begin = self.layout.begin[field]
    return np.asarray(self.tables[begin:begin + self.layout.vocabularies[field]])

  def mlp(self, name):
    """[(kernel, bias), ...] of the layers of 'bottom' or 'top'."""
    layers = self.params['params']
    names = [f'{name}{i}' for i in range(1, 1 + sum(k.startswith(name) for k in layers))]
    return [(np.asarray(layers[n]['kernel']), np.asarray(layers[n]['bias'])) for n in names]


def our_step(start, batches):
  """Takes the next step; returns its loss."""
  mesh, optimizer = dct_jax.make_mesh(1), embeddings.sgd(RATE)
  tx = optax.chain(dct_jax.dense_mean('data'), optax.sgd(RATE))
  params, state, specs = dct_jax.init(tx, jax.tree.map(jnp.copy, start.params), mesh)
  state, specs = embeddings.init_rows(optimizer, start.tables, state, specs, mesh)

  def loss_fn(params, rows, batch):
    logits = Dlrm().apply(params, batch['dense'], rows)
    return optax.sigmoid_binary_cross_entropy(logits, batch['label']).mean(), {}

  step = embeddings.make_row_step(loss_fn, tx, optimizer, embeddings.RowExchange(start.layout), mesh, specs)
  placed = itertools.cycle([train.shard_batch(b._asdict(), mesh) for b in batches])

  def run():
    nonlocal params, state
    params, state, metrics = step(params, state, next(placed))
    return float(metrics['loss'])  # waits

  return run


def load_rival(directory):
  """The public module. It asks for tensorboard, which nothing here needs, and prints what else it misses."""
  sys.path.insert(0, directory)
  if importlib.util.find_spec('tensorboard') is None:
    stub = types.ModuleType('torch.utils.tensorboard')
    vars(stub)['SummaryWriter'] = None
    sys.modules[stub.__name__] = stub
  with contextlib.redirect_stdout(io.StringIO()):
    return importlib.import_module('dlrm_s_pytorch')


def rival_step(directory, start, batches, threads):
  """The public model's step on so many threads, as its own loop takes it."""
  import torch
  sizes = lambda name: np.array([start.mlp(name)[0][0].shape[0], *(len(bias) for _, bias in start.mlp(name))])
  model = load_rival(directory).DLRM_Net(
      WIDTH, np.array(start.layout.vocabularies), sizes('bottom'), sizes('top'), arch_interaction_op='dot',
      sigmoid_top=len(sizes('top')) - 2)
  with torch.no_grad():
    for field, part in enumerate(model.emb_l):
      part.weight.copy_(torch.tensor(start.table(field)))
    for name, layers in (('bottom', model.bot_l), ('top', model.top_l)):
      for layer, (kernel, bias) in zip(layers[::2], start.mlp(name), strict=True):  # a ReLU behind each
        layer.weight.copy_(torch.tensor(kernel.T))
        layer.bias.copy_(torch.tensor(bias))
  optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
  placed = itertools.cycle([(
      torch.tensor(b.dense), torch.arange(len(b.label)).repeat(b.categories.shape[1], 1),
      torch.tensor(b.categories.T, dtype=torch.int64).contiguous(), torch.tensor(b.label[:, None]))
      for b in batches])

  def run():
    if torch.get_num_threads() != threads:
      torch.set_num_threads(threads)
    dense, offsets, ids, label = next(placed)
    loss = model.loss_fn(model(dense, offsets, ids), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()

  return run


def in_blocks(step, losses):
  """A contender for `alternate`: several steps in a row, whose losses are kept."""
  return lambda: losses.extend(step() for _ in range(BLOCK.value))


def check_losses(losses):
  """All contenders begin alike; a different model would be no rival."""
  first = [run[:BLOCK.value] for run in losses.values()]
  if not np.allclose(first, first[0], rtol=1e-3):
    sys.exit(f'contenders differ in their losses: {dict(zip(losses, first, strict=True))}')


def compare_steps(sets, batch):
  """Seconds a step of every contender."""
  start, batches = Start(sets), make_batches(sets, batch)
  steps = {'ours': our_step(start, batches)}
  if RIVAL.value:
    steps |= {f'public DLRM, {n} thread{"s" * (n > 1)}': rival_step(RIVAL.value, start, batches, n)
              for n in (1, 2)}
  losses = {name: [] for name in steps}
  meanwhile = Meanwhile()
  took = alternate({name: in_blocks(step, losses[name]) for name, step in steps.items()}, seconds=SECONDS.value)
  others = meanwhile.others()
  check_losses(losses)
  took = {name: t / BLOCK.value for name, t in took.items()}
  rows = [('', 'ms a step', 'examples/s', 'last loss')]
  rows += [(name, f'{1e3 * t:.2f}', f'{batch / t:,.0f}', f'{losses[name][-1]:.4f}') for name, t in took.items()]
  table(f'batch_{batch}', f'DLRM, {sum(sets.vocabularies):,} rows, batch {batch} (others had {others:.0%} of the '
        'machine)', rows)
  return took


def speedup(took):
  """Of us over the rival at its best; nothing without one."""
  rivals = [t for name, t in took.items() if name != 'ours']
  return round(min(rivals) / took['ours'], 3) if rivals else None


def update_contender(optimizer, rows, layout, batches, spread):
  """Updates tables of `rows` rows in place, as often the same row whatever their size.

  Args:
    optimizer: a `RowOptimizer`.
    rows: of all tables.
    layout: of the tables that the batches are of.
    batches: used in turn.
    spread: whether ids spread over a larger table, so that caches hold few of their rows, or stay the same.
  """
  rng, times = np.random.default_rng(0), rows // layout.rows
  tables = jnp.zeros((rows, WIDTH))
  gradient = jnp.asarray(1e-3 * rng.standard_normal((batches[0].categories.size, WIDTH)), jnp.float32)
  ids = [jnp.asarray((b.categories * (times if spread else 1) + layout.begin * times).reshape(-1))
         for b in batches]
  return donated(lambda held, ids: (optimizer.update(*held, ids, gradient), ()),
                 (tables, optimizer.init(tables)), ids)


def compare_updates():
  """Medians of the large tables over those of the small ones, the worse of two optimizers: same ids, spread."""
  counts, batch = sorted(map(int, ROWS.value)), max(map(int, BATCHES.value))
  sets = synthetic.generate(KEPT * batch, 1, seed=0, vocabulary=counts[0] // 5)
  layout, batches = embeddings.deal(sets.vocabularies), make_batches(sets, batch)
  rows, ratios, meanwhile = [('', *(f'{n:,} rows, ms' for n in counts), 'ratio')], {}, Meanwhile()
  for name, spread in itertools.product(('sgd', 'adagrad'), (False, True)):
    optimizer = embeddings.make_optimizer(name, RATE)
    took = alternate({n: update_contender(optimizer, n, layout, batches, spread) for n in counts},
                     seconds=SECONDS.value / 4, most=1000)
    ratio = took[counts[-1]] / took[counts[0]]
    ratios[spread] = max(ratio, ratios.get(spread, 0))
    rows.append((f'{name}, ids spread' if spread else name, *(f'{1e3 * t:.3f}' for t in took.values()),
                 f'{ratio:.2f}'))
  table('updates', f'update of tables, batch {batch} (others had {meanwhile.others():.0%} of the machine)', rows)
  return {'update_10m_over_100k': round(ratios[False], 3),
          'spread_update_10m_over_100k': round(ratios[True], 3)}


def main(_):
  if LAB.value:  # another program: it has the experiment's flags
    return subprocess.call([sys.executable, str(pathlib.Path(__file__).with_name('dlrm_lab.py')),
                            f'--out={OUT.value}'])
  train.start()  # as experiments do; it keeps freed memory, for the rival as well
  batches = [int(batch) for batch in BATCHES.value]
  sets = synthetic.generate(KEPT * max(batches), 1, seed=0, vocabulary=VOCABULARY.value)
  speedups = {f'speedup_{batch}': speedup(compare_steps(sets, batch)) for batch in batches}
  found = {name: x for name, x in speedups.items() if x is not None}
  finish(found | compare_updates(), seed=0)
  return 0


if __name__ == '__main__':
  app.run(main)
