"""Blocks: what stays together."""

import flax.linen as nn
import jax.numpy as jnp
import nets
import optax
import pytest

from dct_jax import partition
from dct_jax.partition import Nodes
from dct_jax.partition.blocks import blocks_of


def blocks(net, optimizer='sgd'):
  optimizer = nets.OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer
  return blocks_of(nets.graph(net, optimizer))


def of_kind(made, kind):
  return {b.name.rpartition('/')[2]: b for b in made.blocks if b.kind == kind}


@pytest.mark.parametrize('optimizer', nets.OPTIMIZERS)
def test_layers_of_dlrm(optimizer):
  made = blocks(nets.dlrm(), optimizer)
  layers = of_kind(made, 'layer')
  assert sorted(layers) == [*(f'bottom{i}' for i in range(1, 5)), *(f'top{i}' for i in range(1, 5))]
  for name, block in layers.items():
    ops = [made.graph.operators[i] for i in block.operators]
    assert {op.phase for op in ops} == {'forward', 'backward', 'update'}
    products = [op for op in ops if op.kind == 'dot_general']
    assert len(products) == (2 if name == 'bottom1' else 3)  # nobody needs the gradient of features
    if name != 'top4':
      assert {'max', 'select_n'} & {op.kind for op in ops}  # the ReLU goes along, and its gradient
  assert not of_kind(made, 'table')


@pytest.mark.parametrize('optimizer', nets.OPTIMIZERS)
def test_everything_is_in_one_block(optimizer):
  for net in (nets.dlrm(), nets.transformer(), nets.resnet()):
    made = blocks(net, optimizer)
    operators = [i for b in made.blocks for i in b.operators]
    slots = [i for b in made.blocks for i in b.slots]
    assert len(operators) == len(set(operators)) and len(slots) == len(set(slots))
    for i, op in enumerate(made.graph.operators):
      if i not in made.of_operator:  # it needs nothing but constants and copies
        assert all(v in made.graph.constants or made.graph.producer.get(v, -1) not in made.of_operator
                   for v in op.reads)
    for i, slot in enumerate(made.graph.slots):
      assert (i in made.of_slot) == (slot.kind != 'batch' and not slot.path.endswith('count'))


@pytest.mark.parametrize('optimizer', ['adagrad', 'adam'])
def test_arithmetic_of_optimizers_is_with_its_layer(optimizer):
  """It has no names: where it belongs follows from the flow of data. Only the count of steps is everywhere."""
  made = blocks(nets.dlrm(), optimizer)
  of = {}
  for i, op in enumerate(made.graph.operators):
    if op.phase == 'update':
      assert not op.name
      of.setdefault(made.of_operator.get(i), []).append(i)
  for op in (made.graph.operators[i] for i in of.pop(None, [])):
    assert op.kind == 'broadcast_in_dim' or made.graph.avals[op.outputs[0]].shape == ()
  assert {made.blocks[b].kind for b in of} == {'layer'} and len(of) == 8
  for i, slot in enumerate(made.graph.slots):
    if slot.kind == 'optimizer' and i in made.of_slot:
      assert slot.path.split('/')[-2] == made.blocks[made.of_slot[i]].name.rpartition('/')[2]


def test_tables_and_tied_embeddings():
  made = blocks(nets.tables(), 'adagrad')
  assert list(of_kind(made, 'table')) == ['words'] and sorted(of_kind(made, 'layer')) == ['head', 'hidden']
  kinds = {made.graph.operators[i].kind for i in of_kind(made, 'table')['words'].operators}
  assert 'gather' in kinds and kinds & {'scatter-add', 'scatter_add'}
  tied = blocks(nets.transformer())
  assert 'embed' in of_kind(tied, 'layer') and not of_kind(tied, 'table')


def test_a_norm_of_all_gradients_does_not_send_them():
  """Every layer adds up its own squares: what crosses for clipping is a number for each array and the factor."""
  clipped = optax.chain(optax.clip_by_global_norm(1.0), nets.OPTIMIZERS['sgd'])
  plain, more = (nets.plan(nets.dlrm(), o, Nodes(group=2), method='rules') for o in (nets.OPTIMIZERS['sgd'], clipped))
  arrays = len(plain.graph.gradients)
  assert 0 < more.load.traffic - plain.load.traffic <= 4 * 2 * (arrays + 4)


def test_the_loss_is_told_by_the_trainer():
  made = blocks(nets.resnet())
  assert [b.kind for b in made.blocks if b.has_loss].count('rest') >= 1


@pytest.mark.parametrize('layers', [1, 2, 3])
@pytest.mark.parametrize('activation', [jnp.tanh, lambda x: x], ids=['tanh', 'linear'])
def test_a_product_of_two_towers(layers, activation):
  """Gradients of the product are made where the product is: one goes to each tower, and nothing else."""
  def loss(p, x):
    one = other = x
    for i in range(layers):
      one, other = activation(one @ p[f'one{i}']['w']), activation(other @ p[f'other{i}']['w'])
    return jnp.mean((one * other) ** 2)

  params = {f'{tower}{i}': {'w': nets.draw(i, 4, 4)} for tower in ('one', 'other') for i in range(layers)}
  rule = [partition.named('one*', 'group0'), partition.named('other*', 'group1')]
  made = partition.plan(loss, optax.sgd(0.1), params, nets.draw(9, 8, 4), nodes=Nodes(group=2), rule=rule,
                        method='rules')
  assert made.load.traffic == 6 * 8 * 4 * 4  # x, what a tower makes and its gradient, twice


def test_what_is_added_up_on_the_way_back_is_with_its_layer():
  """The gradient of tanh is a sum, which is in the layer that both terms of it are in."""
  def loss(p, x):
    for layer in p.values():
      x = jnp.tanh(x @ layer['w'])
    return jnp.mean(x ** 2)

  params = {f'layer{i}': {'w': nets.draw(i, 4, 4)} for i in range(3)}
  made = blocks_of(partition.train_net(loss, optax.sgd(0.1), params, nets.draw(9, 8, 4)))
  assert [b.kind for b in made.blocks] == ['layer'] * 3 + ['rest']


def test_modules_inside_of_modules():
  """Names that are parts of each other."""
  class Inner(nn.Module):
    @nn.compact
    def __call__(self, x):
      return nn.Dense(2, name='up')(nn.Dense(3, name='up_1')(x))

  class Outer(nn.Module):
    @nn.compact
    def __call__(self, x):
      return nn.Dense(2, name='up')(x) * Inner(name='inner')(x)

  model, x = Outer(), jnp.ones((2, 3))
  params = nets.filled(model, x)
  flat = partition.train_net(lambda p, x: jnp.mean(model.apply(p, x)), nets.OPTIMIZERS['sgd'], params, x)
  layers = [b for b in blocks_of(flat).blocks if b.kind == 'layer']
  assert len(layers) == 3
  assert all(sum(flat.operators[i].kind == 'dot_general' for i in b.operators) >= 2 for b in layers)


def test_parameters_at_the_top():
  loss = lambda p, x: jnp.mean((x @ p['w'] + p['b']) ** 2)
  params = {'w': jnp.ones((3, 2)), 'b': jnp.ones(2)}
  made = partition.plan(loss, nets.OPTIMIZERS['sgd'], params, jnp.ones((4, 3)), nodes=Nodes(group=1))
  assert sorted(b.name for b in made.blocks.blocks if b.slots) == ['b', 'w']
