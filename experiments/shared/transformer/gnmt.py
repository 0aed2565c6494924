"""The LSTM translator's training step: embeddings in the model, or in tables whose rows travel apart."""


import jax
import jax.numpy as jnp

import dct_jax
from dct_jax import tables
from dct_jax.models.gnmt import Gnmt, embedding_init
from dct_jax.models.translation_loss import sentence_losses, smoothed_loss
from shared import sparse
from shared.setups import connect, in_one_piece
from shared.transformer.optimizer import make_optimizer
from shared.transformer.whole import dropout_key, make_whole


def make_model(config, vocabularies):
  """The model of a configuration, which must not ask for what only a Transformer has."""
  if config.splits or config.stages > 1:
    raise ValueError(f'only a Transformer is cut, got {config.model=}, {config.splits=} and {config.stages=}')
  return Gnmt(*vocabularies, config.width, config.layers, config.dropout)


def make_setup(config, model):
  """A `Setup`, with `config.rows` for the tables or without."""
  def loss_fn(params, rows, batch):
    logits = model.apply(params, batch['source'], batch['target_in'], True, rows, rngs=dropout_key(batch))
    return smoothed_loss(logits, batch, config.label_smoothing)

  def losses(params, rows, batch):
    logits = model.apply(params, batch['source'], batch['target_in'], rows=rows)
    return sentence_losses(logits, batch, config.label_smoothing)

  key, nothing = jax.random.PRNGKey(config.seed), jnp.ones((1, 1), jnp.int32)
  if config.rows:
    rows = jnp.zeros((1, 1, config.width))
    params = model.init(key, nothing, nothing, rows={'source': rows, 'target': rows})
    return with_tables(config, model, params, loss_fn, losses)
  params = model.init(key, nothing, nothing)
  return make_whole(config, params, lambda p, b: loss_fn(p, None, b), lambda p, b: losses(p, None, b))


def wanted(batch):
  """Words whose rows a batch needs."""
  return {'source': batch['source'], 'target': batch['target_in']}


def init_tables(config, model):
  """Rows of all words, by table."""
  sizes = {'source': model.source_vocab, 'target': model.target_vocab}
  keys = dict(zip(sizes, jax.random.split(jax.random.PRNGKey(config.seed + 1), len(sizes)), strict=True))
  return {name: embedding_init(keys[name], (size, config.width)) for name, size in sizes.items()}


def with_tables(config, model, params, loss_fn, losses):
  """Every worker has all tables, and the gradients of their rows are added up by `config.rows`."""
  if config.average != 1:
    raise ValueError(f'the mean of checkpoints has no tables: --rows wants --average=1, got {config.average=}')
  mesh = dct_jax.make_mesh(config.workers)
  transport, first = connect(mesh), init_tables(config, model)
  tx = make_optimizer(config, transport)
  optimizer = tables.make_optimizer(config.row_optimizer, config.row_learning_rate)
  exchange = tables.ReplicatedRows(wanted, {name: sparse.make_reducer(config, transport) for name in first}, 'data')
  params, state, specs = dct_jax.init(tx, params, mesh)
  state, specs = exchange.init(optimizer, first, state, specs, mesh)
  step = tables.make_row_step(loss_fn, tx, optimizer, exchange, mesh, specs)
  predict = tables.make_row_predictor(losses, exchange, mesh)
  return in_one_piece(step, predict, (params, state, specs), mesh, whole=put_tables)


def put_tables(params, state):
  """Parameters as the model has them whose embeddings are its own."""
  embeddings = {f'{name}_embedding': {'embedding': table} for name, table in state.tables.items()}
  return {'params': params['params'] | embeddings}
