"""What experiments with a classifier of images share: its loss, its measures, and where its rows go."""

import jax.numpy as jnp
import numpy as np
import optax

from dct_jax import train


def cross_entropy(logits, labels):
  return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def make_measure(model):
  """(variables, batch with 'x' and 'y') -> loss and accuracy of a worker's part."""
  def measure(variables, batch):
    logits = model.apply(variables, batch['x'])
    return {'loss': cross_entropy(logits, batch['y']), 'accuracy': jnp.mean(logits.argmax(-1) == batch['y'])}

  return measure


def place(data, rows, mesh):
  """This process's share of some rows, on its devices; rows that do not divide evenly are left out."""
  rows = rows[:len(rows) // mesh.size * mesh.size]
  return train.share_batch({k: v[rows] for k, v in data.items()}, mesh)


def make_evaluate(measure, data, mesh, most=None):
  """(params, state) -> measures of every set's first rows at once: train_loss, test_accuracy, ..."""
  measure_all = train.make_eval(measure, mesh)
  parts = {name: place(part, np.arange(len(part['x']))[:most], mesh) for name, part in data.items()}
  return lambda params, _: {f'{name}_{k}': float(v) for name, batch in parts.items()
                            for k, v in measure_all(params, batch).items()}
