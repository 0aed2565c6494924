"""DLRM's training step for a configuration: every worker with the whole model, or a pipeline of stages."""

from functools import partial

import jax
import jax.numpy as jnp
import optax

import dct_jax
from dct_jax import runtime
from dct_jax import tables as embeddings
from dct_jax.boundaries import Cut
from dct_jax.models.dlrm import Dlrm, sections
from shared import setups, sparse
from shared.setups import Setup, connect, stage_share, traffic

# Of the variant 'wide': after every layer but the one that is as narrow as a row.
WIDE_CUTS = ','.join(f'{part}{i}' for part in ('bottom', 'top') for i in range(1, 7))


def make_setup(config, features, vocabularies):
  """A `Setup` for rows of a data set with so many dense features and such vocabularies."""
  optimizer = embeddings.make_optimizer(config.row_optimizer, config.row_learning_rate or config.learning_rate)
  key, width = jax.random.PRNGKey(config.seed), config.bottom[-1]
  homes = {'dealt': config.workers, 'replicated': 1}
  if config.placement not in homes or (config.placement == 'replicated' and config.stages > 1):
    raise ValueError(f'placement must be one of {tuple(homes)}, and dealt with stages, got {config.placement=} and '
                     f'{config.stages=}')
  layout = embeddings.deal(vocabularies, homes[config.placement])
  nothing = jnp.zeros((1, features)), jnp.zeros((1, len(vocabularies), width))
  params = {'params': Dlrm(config.bottom, config.top).init(key, *nothing)['params']}
  first_tables = lambda: embeddings.init_tables(key, layout, width)
  if config.placement == 'replicated':
    return replicated(config, params, optimizer, first_tables, layout)
  tables = runtime.Tables(embeddings.RowExchange(layout, 'data', codec=config.row_codec), optimizer)
  if config.stages == 1:
    return dealt(config, params, tables, first_tables)
  parts = sections(config.splits, config.bottom if features else (), config.top)
  return in_stages(config, params, tables, first_tables, parts)


def make_optimizer(config, transport):
  """SGD of the mean of gradients, dense or by DCT-DP."""
  if not config.dp_sparsity:
    mean = dct_jax.dense_mean('data')
  else:
    collective = None if transport is None else dct_jax.all_gather(transport=transport)
    mean = dct_jax.dct_dp(config.dp_sparsity, config.lifespan, 'data', tracking=config.tracking,
                          selection=config.selection, value_codec=config.value_codec, collective=collective)
  return optax.chain(mean, optax.sgd(config.learning_rate))


def click_loss(logits, batch):
  return optax.sigmoid_binary_cross_entropy(logits, batch['label']).mean()


def dealt(config, params, tables, first_tables):
  """Every worker has the whole model and some of the tables."""
  mesh = dct_jax.make_mesh(config.workers)
  place = lambda state, specs: embeddings.init_rows(tables.optimizer, first_tables(), state, specs, mesh,
                                                            layout=tables.exchange.layout)
  return with_cuts(config, params, mesh, connect(mesh), tables.optimizer, tables.exchange, place, lambda rows: rows)


def replicated(config, params, optimizer, first_tables, layout):
  """Every worker has the whole model and all tables, laid end to end; `config.row_sum` adds up gradients of rows."""
  mesh = dct_jax.make_mesh(config.workers)
  transport = connect(mesh)
  exchange = embeddings.ReplicatedRows(lambda batch: {'all': batch['categories'] + layout.begin},
                                       {'all': sparse.make_reducer(config, transport, 'row_sum')}, 'data')
  place = lambda state, specs: exchange.init(optimizer, {'all': first_tables()}, state, specs, mesh)
  return with_cuts(config, params, mesh, transport, optimizer, exchange, place, lambda rows: rows['all'])


def with_cuts(config, params, mesh, transport, optimizer, exchange, place, found):
  """Every worker has the whole model, and cuts are inside of it; `found` are the rows of what an exchange brings."""
  cut = lambda: dct_jax.SparseBoundary(config.mp_sparsity, config.activation_codec, config.masks)
  model = Dlrm(config.bottom, config.top, {name: cut() for name in config.splits.split(',') if name})

  def loss_fn(params, rows, batch):
    logits, state = model.apply(params, batch['dense'], found(rows), mutable=['traffic'])
    return click_loss(logits, batch), traffic(state)

  tx = make_optimizer(config, transport)
  params, state, specs = dct_jax.init(tx, params, mesh)
  state, specs = place(state, specs)
  step = embeddings.make_row_step(loss_fn, tx, optimizer, exchange, mesh, specs)
  predict = embeddings.make_row_predictor(lambda p, rows, b: model.apply(p, b['dense'], found(rows)), exchange, mesh)
  return setups.in_one_piece(step, predict, (params, state, specs), mesh)


def in_stages(config, params, tables, first_tables, parts):
  """Every worker of the mesh's axis 'data' has several along 'stage', with one section of the model each."""
  if len(parts) != config.stages or config.masks != 'one':
    raise ValueError(f'--stages={config.stages} wants {config.stages - 1} splits and one mask for both passes, '
                     f'got {config.splits=} and {config.masks=}')
  mesh, model = dct_jax.make_mesh(config.workers, stages=config.stages), Dlrm(config.bottom, config.top)
  transport = connect(mesh)
  section = lambda part: lambda p, rows, x, b: model.apply(p, b['dense'] if x is None else x, rows, part)
  stages = runtime.chain([section(part) for part in parts], Cut(config.mp_sparsity, config.activation_codec),
                         lambda logits, batch: (click_loss(logits, batch), {}))
  home = [part.has_rows for part in parts].index(True)
  pipeline = runtime.Pipeline(stages, mesh, lambda s: make_optimizer(config, transport), {home: tables},
                              microbatches=config.microbatches, transport=transport)
  placed = pipeline.init(lambda s: parts[s].params(params), lambda s: first_tables())
  return Setup(pipeline.step, pipeline.predict, placed, pipeline.meshes,
               partial(runtime.StageCheckpoints, meshes=pipeline.meshes), stage_share(pipeline))
