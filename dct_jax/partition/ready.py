"""Programs to plan that are ready made, in the shapes of the experiments; and what a file has to give instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dct_jax.models import dlrm as dlrm_model
from dct_jax.models import mlp as mlp_model
from dct_jax.models import transformer as transformer_model
from dct_jax.models import translation_loss
from dct_jax.partition.rules import Rule

OPTIMIZERS: dict[str, Callable[[float], optax.GradientTransformation]] = {
    'sgd': optax.sgd, 'adagrad': optax.adagrad, 'adam': optax.adam}


class Net(NamedTuple):
  """What `plan` needs to know of a program: its arguments by their names. Shapes and types stand for arrays."""

  loss: Callable
  optimizer: optax.GradientTransformation
  params: Any
  batch: tuple[Any, ...]
  has_aux: bool = False
  rule: Sequence[Rule] = ()


def dlrm(*, batch: int = 128, bottom: Sequence[int] = dlrm_model.Dlrm.bottom, top: Sequence[int] = dlrm_model.Dlrm.top,
         features: int = 13, tables: int = 26, rows: int = 0, optimizer: str = 'sgd') -> Net:
  """The recommender of the DCT paper.

  Args:
    batch: examples of a step.
    bottom, top: widths of layers.
    features: that are numbers.
    tables: fields that are looked up.
    rows: of every table, which are parameters like others; 0 for rows that come with the batch, looked up elsewhere.
    optimizer: 'sgd', 'adagrad' or 'adam'.
  """
  model = dlrm_model.Dlrm(tuple(bottom), tuple(top))
  found, dense = _shape(batch, tables, bottom[-1]), _shape(batch, features)
  params = jax.eval_shape(model.init, jax.random.key(0), dense, found)
  entropy = lambda logits, y: jnp.mean(optax.sigmoid_binary_cross_entropy(logits, y))
  if not rows:
    loss = lambda params, x, found, y: entropy(model.apply(params, x, found), y)
    return Net(loss, OPTIMIZERS[optimizer](0.1), params, (dense, found, _shape(batch)))
  names = [f'table{i + 1}' for i in range(tables)]

  def looked_up(params, x, ids, y):
    found = jnp.stack([params[name]['rows'][ids[:, i]] for i, name in enumerate(names)], axis=1)
    return entropy(model.apply({'params': {k: v for k, v in params.items() if k not in names}}, x, found), y)

  params = {**params['params'], **{name: {'rows': _shape(rows, bottom[-1])} for name in names}}
  ids = _shape(batch, tables, dtype=jnp.int32)
  return Net(looked_up, OPTIMIZERS[optimizer](0.1), params, (dense, ids, _shape(batch)))


def mlp(*, batch: int = 256, layers: int = 12, width: int = 1024, inputs: int = 784, outputs: int = 10,
        optimizer: str = 'sgd') -> Net:
  """Dense layers with ReLU between them.

  Args:
    batch: examples of a step.
    layers: how many, the last one included.
    width: of all but the last one.
    inputs, outputs: numbers of an example, and classes.
    optimizer: 'sgd', 'adagrad' or 'adam'.
  """
  model = mlp_model.Mlp((width,) * (layers - 1), outputs)

  def loss(params, x, labels):
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(model.apply(params, x), labels))

  x = _shape(batch, inputs)
  return Net(loss, OPTIMIZERS[optimizer](0.1), jax.eval_shape(model.init, jax.random.key(0), x),
             (x, _shape(batch, dtype=jnp.int32)))


def transformer(*, batch: int = 32, length: int = 32, layers: int = 6, width: int = 128, hidden: int = 512,
                vocabulary: int = 4000, dropout: float = 0.1, share_embeddings: bool = True,
                optimizer: str = 'adam') -> Net:
  """The encoder-decoder Transformer, with dropout and smoothed labels.

  Args:
    batch: sentences of a step.
    length: of sentences, in either language.
    layers: of the encoder, and as many of the decoder.
    width, hidden: of the residual stream, and of feed-forward networks.
    vocabulary: of either language.
    dropout: by a key that comes with the batch.
    share_embeddings: whether the decoder's input and output are one matrix.
    optimizer: 'sgd', 'adagrad' or 'adam'.
  """
  model = transformer_model.Transformer(vocabulary, vocabulary, width, hidden, layers=layers, dropout=dropout,
                                        norm='pre', share_embeddings=share_embeddings)
  key, ids = jax.eval_shape(lambda: jax.random.key(0)), _shape(batch, length, dtype=jnp.int32)

  def loss(params, source, target, following, weight, key):
    logits: Any = model.apply(params, source, target, True, rngs={'dropout': key})
    return translation_loss.smoothed_loss(logits, {'target_out': following, 'weight': weight}, 0.1)[0]

  return Net(loss, OPTIMIZERS[optimizer](1e-3), jax.eval_shape(model.init, key, ids, ids),
             (ids, ids, ids, _shape(batch, length), key))


NETS: dict[str, Callable[..., Net]] = {'dlrm': dlrm, 'mlp': mlp, 'transformer': transformer}


def _shape(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(shape, dtype)
