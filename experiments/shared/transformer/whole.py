"""A translation model that every worker has whole, whichever it is."""


import jax

import dct_jax
from dct_jax import train
from shared.setups import connect, in_one_piece
from shared.transformer.optimizer import make_optimizer


def dropout_key(batch):
  return {'dropout': jax.random.key(batch['seed'][0])}  # of this part of the batch


def make_whole(config, params, loss_fn, losses):
  """A `Setup` of (params, batch) -> loss and scalars, and (params, batch) -> losses of sentences."""
  mesh = dct_jax.make_mesh(config.workers)
  transport = connect(mesh)
  tx = make_optimizer(config, transport)
  params, state, specs = dct_jax.init(tx, params, mesh)
  step = train.make_step(loss_fn, tx, mesh, specs, has_aux=True, transport=transport)
  predict = train.make_predictor(losses, mesh)
  return in_one_piece(step, lambda p, s, batch: predict(p, batch), (params, state, specs), mesh,
                      keep=config.average + 1)
