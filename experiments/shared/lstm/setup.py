"""The language model's training step for a configuration: rows of words in tables, or tables with dense gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dct_jax
from dct_jax import tables as embeddings
from dct_jax import train
from dct_jax.data import words
from dct_jax.models.language_loss import full_softmax, sampled_softmax
from dct_jax.models.lstm import Lstm
from shared import sparse
from shared.setups import connect, in_one_piece

SOFTMAXES = ('sampled', 'full')
LARGEST = 0.1  # entry of a table at the beginning


def make_setup(config, vocabulary):
  """A `Setup` for so many words; it predicts -log p(word) by the softmax over all words, of every word."""
  if config.softmax not in SOFTMAXES:
    raise ValueError(f'softmax must be one of {SOFTMAXES}, got {config.softmax=}')
  mesh = dct_jax.make_mesh(config.workers)
  transport = connect(mesh)
  key = jax.random.PRNGKey(config.seed)
  model = Lstm(config.width, config.layers, config.dropout)
  tables = first_tables(key, config, vocabulary)
  inside = {name: tables.pop(name) for name in dense_tables(config)}
  params = {'lstm': model.init(key, jnp.zeros((1, 1, config.width))), **inside}
  loss_fn, losses = make_losses(config, model, vocabulary)
  tx = make_optimizer(config, transport)
  params, state, specs = dct_jax.init(tx, params, mesh)
  if tables:
    optimizer = embeddings.make_optimizer(config.row_optimizer, config.row_learning_rate)
    exchange = embeddings.ReplicatedRows(partial(wanted, config), make_reducers(config, transport), 'data')
    state, specs = exchange.init(optimizer, tables, state, specs, mesh)
    step = embeddings.make_row_step(loss_fn, tx, optimizer, exchange, mesh, specs)
  else:
    step = train.make_step(lambda p, batch: loss_fn(p, {}, batch), tx, mesh, specs, has_aux=True, transport=transport)
  predict = train.make_predictor(losses, mesh)
  both = lambda p, s: {**p, **s.tables} if tables else p
  return in_one_piece(step, lambda p, s, batch: predict(both(p, s), batch), (params, state, specs), mesh)


def first_tables(key, config, vocabulary):
  """Rows of words by table, with entries uniform in [-LARGEST, LARGEST); one table, where both are tied."""
  names = ('input',) if config.tied else ('input', 'output')
  return {name: jax.random.uniform(jax.random.fold_in(key, i), (vocabulary, config.width), minval=-LARGEST,
                                   maxval=LARGEST) for i, name in enumerate(names)}


def dense_tables(config):
  """Names of tables whose gradients are dense: of the full softmax all words have one. They are parameters."""
  if config.softmax == 'sampled':
    return ()
  return ('input',) if config.tied else ('output',)


def wanted(config, batch):
  """Which rows of which table a step uses."""
  inputs, outputs = {'tokens': batch['tokens']}, {}
  if config.softmax == 'sampled':
    outputs = {'targets': batch['targets'], 'negatives': batch['negatives']}
  ids = {'input': inputs | outputs} if config.tied else {'input': inputs, 'output': outputs}
  return {name: ids[name] for name in ids if ids[name] and name not in dense_tables(config)}


def make_losses(config, model, vocabulary):
  """The loss of a worker's windows from rows, for training, and those of all words from whole tables, to judge."""
  log_expected = np.log(words.expected_counts(config.negatives, vocabulary)).astype(np.float32)
  last = 'input' if config.tied else 'output'

  def loss_fn(params, rows, batch):
    found = {name: x for table in rows.values() for name, x in table.items()}
    entering = found['tokens'] if 'tokens' in found else params['input'][batch['tokens']]
    hidden = model.apply(params['lstm'], entering, train=True, rngs={'dropout': jax.random.key(batch['seed'][0])})
    if config.softmax == 'full':
      return jnp.mean(full_softmax(hidden, params[last], batch['targets'])), {}
    return jnp.mean(sampled_softmax(hidden, found['targets'], found['negatives'], batch['targets'],
                                    batch['negatives'], jnp.asarray(log_expected))), {}

  def losses(variables, batch):
    hidden = model.apply(variables['lstm'], variables['input'][batch['tokens']])
    return full_softmax(hidden, variables[last], batch['targets'])

  return loss_fn, losses


def make_reducers(config, transport):
  """How gradients of rows are added up over workers, by table."""
  settings = {'input': 'rows'} if config.tied else {'input': 'rows', 'output': 'output_rows'}
  return {table: sparse.make_reducer(config, transport, name) for table, name in settings.items()
          if table not in dense_tables(config)}


def make_optimizer(config, transport):
  """Adam of the mean of gradients, clipped, with a learning rate that falls to 0 along a cosine."""
  rate = optax.cosine_decay_schedule(config.learning_rate, config.steps)
  return optax.chain(make_mean(config, transport), optax.clip_by_global_norm(config.clip), optax.adam(rate))


def make_mean(config, transport):
  """How gradients of layers are averaged over workers: `config.compressor`, through `config.collective`."""
  sparse.check_feed_back(config)
  fed_back = lambda make: lambda: dct_jax.compressed_mean(
      dct_jax.error_feedback(make()), sparse.make_collective(config, transport), axis_name='data')
  known = {'dense': lambda: dct_jax.dense_mean('data'),
           **{name: fed_back(make) for name, make in sparse.selections(config).items()}}
  return sparse.chosen('compressor', config, known)
