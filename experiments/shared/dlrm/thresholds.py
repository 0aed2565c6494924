"""Evaluations for `dlrm_criteo.train_one` that watch the thresholds of DCT, instead of losses."""

import jax
import jax.numpy as jnp
import numpy as np

import dct_jax
from dct_jax import tables, train
from dct_jax.data import clicks
from dct_jax.models.dlrm import Dlrm


def of_gradients(config, sets):
  """(params, state) -> every worker's threshold of every kernel in the last step, from DCT-DP's own state."""
  del sets

  def evaluate(params, state):
    taus = np.asarray(state.inner[0].compressor.tau).reshape(config.workers, -1)
    leaves = jax.tree_util.tree_leaves_with_path(params)
    least = sorted(x.size for _, x in leaves)[-taus.shape[1]]  # smaller ones travel whole, without a threshold
    names = [path[-2].key for path, x in leaves if x.size >= least]
    return {f'{name}/{i}': tau for i, row in enumerate(taus) for name, tau in zip(names, row, strict=True)}

  return evaluate


def of_activations(config, sets, sparsities, rows=1024):
  """(params, state) -> means of thresholds over the first rows of the training set, by cut and sparsity.

  Args:
    config: of the run. If it has a sparsity of activations, that is the one which is watched.
    sets: from `clicks.load`.
    sparsities: to watch where nothing is left out.
    rows: the same ones each time, so that what changes is the model.
  """
  mesh, places = dct_jax.make_mesh(config.workers), config.splits.split(',')
  exchange = tables.RowExchange(tables.deal(sets.vocabularies, config.workers), 'data')
  some = train.share_batch(clicks.in_order(sets.train, rows, config.workers)[0]._asdict(), mesh)

  def watch(sparsity):
    cuts = {place: dct_jax.SparseBoundary(config.mp_sparsity, watch=sparsity) for place in places}
    model = Dlrm(config.bottom, config.top, cuts)

    def means(params, rows, batch):
      _, state = model.apply(params, batch['dense'], rows, mutable=['traffic'])
      found = jnp.stack([state['traffic'][f'boundaries_{place}']['threshold'] for place in places])
      return jnp.broadcast_to(found, (len(rows), len(places)))  # a predictor answers for each row

    return tables.make_row_predictor(means, exchange, mesh)

  watched = {s: watch(s) for s in ([config.mp_sparsity] if config.mp_sparsity else sparsities)}

  def evaluate(params, state):
    found = {s: predict(params, state, some).mean(axis=0) for s, predict in watched.items()}
    return {f'{place}/{s}': tau for s, taus in found.items() for place, tau in zip(places, taus, strict=True)}

  return evaluate
