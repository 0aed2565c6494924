"""Small nets that tests of plans share, and the step that a plan must equal."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from dct_jax import partition
from dct_jax.models.dlrm import Dlrm
from dct_jax.models.mlp import Mlp
from dct_jax.models.resnet import Block
from dct_jax.models.transformer_layer import Layer

OPTIMIZERS = {'sgd': optax.sgd(0.1), 'adagrad': optax.adagrad(0.05), 'adam': optax.adam(1e-3)}


@dataclasses.dataclass(frozen=True, eq=False)
class Net:
  """A loss function with parameters, and a batch by its number."""

  loss: Callable
  params: Any
  batch: Callable[[int], tuple]
  has_aux: bool = False


def draw(seed, *shape):
  return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def filled(model, *arguments, **options):
  """Variables of a model, without compiling its initialization."""
  shapes = jax.eval_shape(functools.partial(model.init, **options), jax.random.key(0), *arguments)
  numbers = lambda path, x: draw(len(jax.tree_util.keystr(path)), *x.shape) / max(x.size // x.shape[-1], 1) ** 0.5 + (
      path[-1].key in ('scale', 'var'))
  return jax.tree_util.tree_map_with_path(numbers, shapes)


@functools.cache
def dlrm():
  """DLRM with four layers below the interaction and four above it; rows come with the batch."""
  model = Dlrm((64, 32, 16, 8), (64, 32, 16, 1))

  def loss(variables, dense, rows, labels):
    return jnp.mean(optax.sigmoid_binary_cross_entropy(model.apply(variables, dense, rows), labels))

  batch = lambda i: (draw(i, 16, 13), draw(i + 100, 16, 5, 8), (draw(i + 200, 16) > 0).astype(jnp.float32))
  return Net(loss, filled(model, *batch(0)[:2]), batch)


@functools.cache
def tables():
  """A recommender with a table of its own."""

  class Model(nn.Module):
    @nn.compact
    def __call__(self, ids):
      x = nn.Embed(70, 8, name='words')(ids).reshape(len(ids), -1)
      return nn.Dense(1, name='head')(nn.relu(nn.Dense(16, name='hidden')(x)))[:, 0]

  model = Model()
  loss = lambda p, ids, y: jnp.mean((model.apply(p, ids) - y) ** 2)
  batch = lambda i: (jnp.abs(draw(i, 6, 3) * 20).astype(jnp.int32) % 70, draw(i + 9, 6))
  return Net(loss, filled(model, batch(0)[0]), batch)


@functools.cache
def mlp(layers=3, width=16):
  """An MLP; all hidden layers are alike."""
  model = Mlp((width,) * layers, 4)
  loss = lambda p, x, y: jnp.mean((model.apply(p, x) - y) ** 2)
  batch = lambda i: (draw(i, 8, width), draw(i + 50, 8, 4))
  return Net(loss, filled(model, batch(0)[0]), batch)


@functools.cache
def resnet():
  """A block of ResNet; averages of its normalization come out beside the loss."""
  model = Block(4, 1)

  def loss(params, stats, x):
    y, moved = model.apply({'params': params, 'batch_stats': stats}, x, True, mutable='batch_stats')
    return jnp.mean((y - 1) ** 2), moved['batch_stats']

  image = lambda i: draw(i, 2, 6, 6, 4)
  made = filled(model, image(0), train=False)
  return Net(loss, made['params'], lambda i: (made['batch_stats'], image(i)), has_aux=True)


class Language(nn.Module):
  """Layers of a Transformer between two uses of one matrix."""

  layers: int = 2
  width: int = 8
  words: int = 12

  @nn.compact
  def __call__(self, words, train):
    embed = nn.Embed(self.words, self.width, name='embed')
    x, mask = embed(words), jnp.tril(jnp.ones((words.shape[1],) * 2, bool))
    for i in range(self.layers):
      layer = Layer(self.width, 2 * self.width, 2, 0.2, name=f'layer{i}')
      hidden, x, _ = layer.front(x, mask, train=train)
      x = layer.back(hidden, x, train)
    return embed.attend(x)


@functools.cache
def transformer(layers=2, typed=True, width=8, words=12):
  """Blocks of a Transformer with tied embeddings, and dropout by a key that is part of the batch."""
  model = Language(layers, width, words)

  def loss(params, sentences, key):
    logits = model.apply(params, sentences[:, :-1], True, rngs={'dropout': key})
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, sentences[:, 1:]))

  key = jax.random.key if typed else jax.random.PRNGKey
  batch = lambda i: (jnp.abs(draw(i, 3, 6) * 9).astype(jnp.int32) % words, key(i))
  return Net(loss, filled(model, batch(0)[0], train=False), batch)


@functools.cache
def step(net, optimizer):
  """What a plan of the net must equal: (params, state, *batch) -> (params, state, loss)."""

  def run(params, state, *batch):
    value, grads = jax.value_and_grad(net.loss, has_aux=net.has_aux)(params, *batch)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, *(value if net.has_aux else (value,))

  return jax.jit(run)


@functools.cache
def graph(net, optimizer):
  return partition.train_net(net.loss, optimizer, net.params, *net.batch(0), has_aux=net.has_aux)


@functools.cache
def plan(net, optimizer, nodes, **options):
  return partition.plan_graph(graph(net, optimizer), nodes, **options)


@functools.cache
def dealt(net, optimizer, servers, **options):
  """A plan by layers: they take turns on the servers, in the order in which they run; all else is on the trainer."""
  made = plan(net, optimizer, partition.Nodes(group=servers), method='rules', **options)
  layers = sorted((b.operators[0], i) for i, b in enumerate(made.blocks.blocks) if b.kind != 'rest')
  turn = {i: 1 + k % servers for k, (_, i) in enumerate(layers)}
  return dataclasses.replace(made, at=tuple(turn.get(i, 0) for i in range(len(made.at))))


def train(run, net, optimizer, steps=5):
  """What is told of every step, and parameters and state at the end."""
  params, state, told = net.params, optimizer.init(net.params), []
  for i in range(steps):
    params, state, *more = run(params, state, *net.batch(i))
    told.append(more)
  return told, params, state
