"""Layers in parts: the same loss, gradients and updates, and what is sent."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dct_jax.models.dlrm import Dlrm
from dct_jax.models.mlp import Mlp
from dct_jax.models.transformer_layer import Layer
from dct_jax.partition import Codecs, Machine, Nodes, named, on, plan, splits, train_net
from dct_jax.partition.blocks import blocks_of
from dct_jax.partition.graph import UPDATE, nbytes
from dct_jax.partition.programs import all_transfers

pytestmark = pytest.mark.plain_code
OPTIMIZERS = {'sgd': optax.sgd(0.1), 'adagrad': optax.adagrad(0.1), 'adam': optax.adam(0.01)}


def normal(seed, *shape):
  return jax.random.normal(jax.random.key(seed), shape)


@functools.cache
def dlrm(bottom=(30, 18, 8), top=(25, 14, 1), batch=6, fields=3):
  model = Dlrm(bottom, top)
  data = normal(1, batch, 13), normal(2, batch, fields, bottom[-1]), jnp.arange(batch) % 2.0
  loss = lambda p, x, rows, y: optax.sigmoid_binary_cross_entropy(model.apply(p, x, rows), y).mean()
  return loss, jax.jit(model.init)(jax.random.key(0), *data[:2]), data


@functools.cache
def mlp():
  model, data = Mlp((11, 7), 3), (normal(1, 5, 4),)
  return lambda p, x: jnp.mean(model.apply(p, x) ** 2), jax.jit(model.init)(jax.random.key(0), *data), data


@functools.cache
def plain():
  """No names at all, parameters in a list, gelu, and a bias of another shape."""
  params = [{'w': normal(1, 4, 9), 'b': normal(2, 1, 9)}, {'w': normal(3, 5, 9), 'b': normal(4, 5)}]
  loss = lambda p, x: jnp.mean((jax.nn.gelu(x @ p[0]['w'] + p[0]['b']) @ p[1]['w'].T + p[1]['b']) ** 2)
  return loss, params, (normal(5, 6, 4),)


@functools.cache
def transformer():
  layer = Layer(8, 15, 2, dropout=0.25, norm='pre')

  def call(layer, x, mask):
    hidden, x, _ = layer.front(x, mask, train=True)
    return layer.back(hidden, x, True)

  mask = jnp.ones((1, 1, 3, 3), bool)
  run = lambda p, x, key: layer.apply(p, x, mask, method=call, rngs={'dropout': key})
  data = normal(1, 2, 3, 8), jax.random.key(7)
  init = jax.jit(functools.partial(layer.init, method=call))
  params = init({'params': jax.random.key(0), 'dropout': jax.random.key(1)}, data[0], mask)
  return lambda p, x, key: jnp.mean(run(p, x, key) ** 2), params, data


CASES = {
    'dlrm-both': (dlrm, {'bottom1': ('both', 3), 'top1': ('both', 4)}),
    'dlrm-mixed': (dlrm, {'bottom2': ('vertical', 4), 'top1': ('horizontal', 3), 'top2': ('vertical', 2)}),
    'mlp-vertical': (mlp, {'Dense_0': ('vertical', 3), 'Dense_2': ('vertical', 2)}),
    'mlp-horizontal': (mlp, {'Dense_0': ('horizontal', 4), 'Dense_1': ('both', 6)}),
    'plain-both': (plain, {'0': ('both', 4)}),
    'plain-apart': (plain, {'0': ('vertical', 9), '1': ('horizontal', 2)}),
    'transformer': (transformer, {'expand': ('both', 4), 'attention/query_key_value': ('vertical', 3)}),
}
MODELS = [(dlrm, 'top1'), (transformer, 'expand'), (mlp, 'Dense_0')]


def close(a, b, tolerance=2e-5):
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance), a, b)


def same_bits(a, b):
  assert jax.tree.structure(a) == jax.tree.structure(b)
  jax.tree.map(np.testing.assert_array_equal, a, b)


def gradients(loss, params, *data):
  return jax.jit(jax.value_and_grad(loss))(params, *data)


def trained(loss, params, data, optimizer, steps=5):
  @jax.jit
  def step(params, state):
    updates, state = optimizer.update(jax.grad(loss)(params, *data), state, params)
    return optax.apply_updates(params, updates), state

  state = optimizer.init(params)
  for _ in range(steps):
    params, state = step(params, state)
  return params, state


@pytest.mark.parametrize('case', CASES)
def test_same_loss_and_gradients(case):
  model, choice = CASES[case]
  loss, params, data = model()
  made = splits.apply(loss, params, data, choice)
  parts = made.split(params)
  same_bits(made.join(parts), params)
  value, grads = gradients(loss, params, *data)
  split_value, split_grads = gradients(made.loss, parts, *data)
  close(split_value, value)
  close(made.join(split_grads), grads)


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_same_parameters_and_state_after_updates(name):
  loss, params, data = dlrm()
  made = splits.apply(loss, params, data, CASES['dlrm-both'][1])
  whole, state = trained(loss, params, data, OPTIMIZERS[name])
  parts, split_state = trained(made.loss, made.split(params), data, OPTIMIZERS[name])
  close(made.join(parts), whole, 1e-4)
  close(made.join(split_state), state, 1e-4)
  same_bits(made.join(made.split(state)), state)


@pytest.mark.parametrize('servers', range(1, 7))
def test_a_plan_with_splits_trains_as_the_whole_program(servers):
  (model, layer), optimizer = MODELS[servers % 3], list(OPTIMIZERS.values())[(servers - 1) // 2]
  loss, params, data = model()
  made = plan(loss, optimizer, params, *data, nodes=Nodes(group=servers), splits={layer: ('both', servers)})
  parts = made.split(params)
  state = optimizer.init(parts)
  for _ in range(5):
    parts, state, _ = made.simulate(parts, state, *data)
  whole, _ = trained(loss, params, data, optimizer)
  close(made.join(parts), whole, 1e-4)


def test_every_part_is_a_block():
  loss, params, data = dlrm()
  made = splits.apply(loss, params, data, {'bottom1': ('both', 3), 'top1': ('vertical', 2)})
  graph = train_net(made.loss, optax.adagrad(0.1), made.split(params), *data)
  blocks = {b.name: b for b in blocks_of(graph).blocks if b.kind == 'layer'}
  assert {'bottom1+bottom2_0', 'bottom1+bottom2_1', 'bottom1+bottom2_2', 'top1_0', 'top1_1'} <= set(blocks)
  part = blocks['bottom1+bottom2_1']
  assert sorted(graph.slots[s].path for s in part.slots if graph.slots[s].kind == 'parameter') == [
      f'params/bottom1+bottom2_1/{x}' for x in ('bottom1.bias', 'bottom1.kernel', 'bottom2.kernel')]
  inside = [graph.operators[i] for i in part.operators]
  assert {op.phase for op in inside} == {'forward', 'backward', 'update'}
  assert {'dot_general', 'max', 'select_n'} <= {op.kind for op in inside if op.phase != UPDATE}  # with its ReLU
  # What puts parts together, and takes gradients apart, is in no part.
  kinds = {graph.operators[i].kind for name, b in blocks.items() if '_' in name for i in b.operators}
  assert not kinds & {'concatenate', 'split', 'add_any'}


def test_the_layer_before_gets_one_gradient():
  loss, params, data = mlp()
  made = splits.apply(loss, params, data, {'Dense_1': ('both', 3)})
  graph = train_net(made.loss, optax.sgd(0.1), made.split(params), *data)
  before = next(b for b in blocks_of(graph).blocks if b.name == 'Dense_0')
  assert 'add_any' not in {graph.operators[i].kind for i in before.operators}  # or it would be sent all three


def test_both_sends_no_hidden_activations():
  loss, params, data = dlrm()
  made = plan(loss, optax.sgd(0.1), params, *data, nodes=Nodes(group=3), splits={'bottom1': ('both', 3)})
  shapes = [made.graph.avals[t.value].shape for *_, t in all_transfers(made.programs)]
  assert (6, 18) in shapes and not any({10, 30} & set(shape) for shape in shapes)  # 30 hidden ones in 3 parts
  assert sum(nbytes(made.graph.avals[t.value]) for *_, t in all_transfers(made.programs)) == made.load.traffic


def test_horizontal_has_the_bias_once():
  params = {'a': {'w': jnp.zeros((6, 4)), 'b': jnp.full(4, 5.0)}}
  loss = lambda p, x: jnp.mean(x @ p['a']['w'] + p['a']['b'])
  made = splits.apply(loss, params, (jnp.ones((2, 6)),), {'a': ('horizontal', 3)})
  parts = made.split(params)
  assert jax.tree.map(jnp.shape, parts) == {
      'a_0': {'b': (4,), 'w': (2, 4)}, 'a_1': {'w': (2, 4)}, 'a_2': {'w': (2, 4)}}
  assert float(made.loss(parts, jnp.ones((2, 6)))) == 5.0


def test_parts_of_uneven_width():
  loss, params, data = dlrm()
  parts = splits.apply(loss, params, data, {'top1': ('vertical', 4)}).split(params)['params']
  assert [parts[f'top1_{i}']['kernel'].shape[1] for i in range(4)] == [7, 6, 6, 6]
  assert [parts[f'top1_{i}']['bias'].shape for i in range(4)] == [(7,), (6,), (6,), (6,)]


class Casts(nn.Module):
  """In bfloat16, with a mask between two layers."""

  @nn.compact
  def __call__(self, x, mask):
    x = nn.silu(nn.Dense(10, dtype=jnp.bfloat16, name='up')(x))
    return nn.Dense(3, dtype=jnp.bfloat16, name='down')(x * mask)


def test_casts_and_masks_between_layers():
  x, mask = normal(1, 4, 5), (normal(2, 4, 10) > 0).astype(jnp.bfloat16)
  params = jax.jit(Casts().init)(jax.random.key(0), x, mask)
  loss = lambda p, x, mask: jnp.mean(Casts().apply(p, x, mask).astype(jnp.float32) ** 2)
  made = splits.apply(loss, params, (x, mask), {'up': ('both', 3)})
  assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(made.split(params)))
  value, grads = gradients(loss, params, x, mask)
  split_value, split_grads = gradients(made.loss, made.split(params), x, mask)
  close(split_value, value, 2e-2)
  close(made.join(split_grads), grads, 2e-2)


def test_a_relu_keeps_its_rule_at_zero():
  params = {'a': {'w': jnp.zeros((3, 4))}, 'b': {'w': jnp.ones((4, 2))}}
  loss = lambda p, x: jnp.sum(jax.nn.relu(x @ p['a']['w']) @ p['b']['w'])
  made = splits.apply(loss, params, (jnp.ones((2, 3)),), {'a': ('both', 2)})
  grads = made.join(jax.grad(made.loss)(made.split(params), jnp.ones((2, 3))))
  assert not np.any(grads['a']['w'])  # without the rule, the derivative of a maximum is a half there


def test_the_second_result_of_an_activation():
  @jax.custom_jvp
  def both(x):
    return jnp.sin(x), jnp.cos(x)

  both.defjvp(lambda x, t: (both(*x), (jnp.cos(x[0]) * t[0], -jnp.sin(x[0]) * t[0])))
  params = {'a': {'w': normal(1, 3, 4)}, 'b': {'w': normal(2, 4, 2)}}
  loss = lambda p, x: jnp.mean((both(x @ p['a']['w'])[1] @ p['b']['w']) ** 2)
  for kind in ('vertical', 'both'):
    made = splits.apply(loss, params, (normal(3, 5, 3),), {'a': (kind, 2)})
    value, grads = gradients(loss, params, normal(3, 5, 3))
    split_value, split_grads = gradients(made.loss, made.split(params), normal(3, 5, 3))
    close((split_value, made.join(split_grads)), (value, grads))


def test_a_bias_without_an_axis():
  params = {'a': {'w': normal(1, 3, 1), 'b': normal(2)}}
  loss = lambda p, x: jnp.mean((x @ p['a']['w'] + p['a']['b']) ** 2)
  for kind in ('vertical', 'horizontal'):
    made = splits.apply(loss, params, (normal(3, 5, 3),), {'a': (kind, 1)})
    close(made.loss(made.split(params), normal(3, 5, 3)), loss(params, normal(3, 5, 3)))


def test_what_has_a_tag_or_a_rule_stays_whole():
  params = {'a': {'w': normal(1, 6, 64)}, 'b': {'w': normal(2, 64, 6)}, 't': {'rows': normal(3, 9, 6)}}

  def loss(p, ids, wrap=on):
    return jnp.mean((wrap(jnp.tanh(wrap(p['t']['rows'][ids], 'sparse0') @ p['a']['w']), 'group1') @ p['b']['w']) ** 2)

  free = functools.partial(loss, wrap=lambda x, _: x)
  assert [c.name for c in splits.find(free, params, jnp.arange(4))] == ['a', 'b', 't']
  assert [c.name for c in splits.find(loss, params, jnp.arange(4))] == ['b']
  with pytest.raises(ValueError, match="'a' is no FC that can be split: there are b; what has a tag stays whole"):
    splits.apply(loss, params, (jnp.arange(4),), {'a': ('vertical', 2)})
  made = plan(free, optax.sgd(0.1), params, jnp.arange(4), nodes=Nodes(group=3), splits='auto',
              rule=[named('a', 'group2')])
  assert 'a' in [b.name for b in made.blocks.blocks]


def test_look_ups_in_parts_promise_nothing():
  """Numbers of a part are neither sorted nor different, whatever those of the whole table are."""
  params = {'t': {'rows': normal(1, 9, 2)}}
  look = lambda p, ids: p['t']['rows'].at[ids].get(unique_indices=True, indices_are_sorted=True)
  made = splits.apply(look, params, (jnp.arange(4),), {'t': ('rows', 2)})
  jaxpr = jax.make_jaxpr(made.loss)(made.split(params), jnp.arange(4))
  found = [e.params for e in jaxpr.eqns if e.primitive.name == 'gather']
  assert len(found) == 2 and not any(p['unique_indices'] or p['indices_are_sorted'] for p in found)


@pytest.mark.parametrize('mode', ['fill', 'clip'])
def test_rows_of_tables(mode):
  params = {'embed': {'table': normal(1, 11, 4)}, 'out': {'w': normal(2, 4, 2)}}
  ids = jnp.array([[0, 3, 10], [4, 7, 3], [-1, 2, 11]]) if mode == 'clip' else jnp.array([[0, 3, 10], [4, 7, 3]])
  loss = lambda p, ids: jnp.mean((jnp.take(p['embed']['table'], ids, axis=0, mode=mode) @ p['out']['w']) ** 2)
  made = splits.apply(loss, params, (ids,), {'embed': ('rows', 3)})
  parts = made.split(params)
  assert [parts[f'embed_{i}']['table'].shape[0] for i in range(3)] == [4, 4, 3]
  same_bits(made.join(parts), params)
  value, grads = gradients(loss, params, ids)
  split_value, split_grads = gradients(made.loss, parts, ids)
  same_bits(split_value, value)
  close(made.join(split_grads), grads)


def test_numbers_of_no_row_are_as_in_the_whole_table():
  params = {'table': normal(1, 6, 2)}
  look = lambda p, ids: jnp.take(p['table'], ids, axis=0, mode='fill')
  ids = jnp.array([5, 6, 0, -7])
  made = splits.apply(look, params, (ids,), {'table': ('rows', 4)})
  np.testing.assert_array_equal(made.loss(made.split(params), ids), look(params, ids))


def test_other_shapes_of_batches_and_auxiliary_results():
  loss, params, data = mlp()
  both = lambda p, x: (loss(p, x), {'rows': x.shape[0] * jnp.ones(())})
  made = splits.apply(both, params, data, {'Dense_0': ('vertical', 2)})
  value, aux = made.loss(made.split(params), normal(9, 3, 4))
  close(value, loss(params, normal(9, 3, 4)))
  assert aux['rows'] == 3


def test_find():
  loss, params, data = dlrm()
  found = {c.name: c for c in splits.find(loss, params, *data)}
  assert set(found) == {'bottom1', 'bottom2', 'bottom3', 'top1', 'top2', 'top3'}
  assert found['bottom1'].behind == 'bottom2' and found['bottom1'].pays
  assert found['bottom2'].behind == 'bottom3' and not found['bottom2'].pays  # 30 to 18 does not widen
  assert found['bottom3'].behind is None  # the interaction is behind it
  sizes = [c.nbytes for c in splits.find(loss, params, *data)]
  assert sizes == sorted(sizes, reverse=True)


def test_shared_matrices_and_loops_are_left_alone():
  params = {'tied': {'w': normal(1, 4, 4)}, 'loop': {'w': normal(2, 4, 4)}, 'fc': {'w': normal(3, 4, 4)}}

  def loss(p, x):
    x = jnp.tanh(x @ p['tied']['w']) @ p['tied']['w']
    x, _ = jax.lax.scan(lambda x, _: (jnp.tanh(x @ p['loop']['w']), None), x, None, 3)
    return jnp.mean(x @ p['fc']['w'])

  assert [c.name for c in splits.find(loss, params, normal(4, 2, 4))] == ['fc']


def test_two_matrices_in_one_module():
  params = {'ffn': {'up': normal(1, 3, 8), 'down': normal(2, 8, 3), 'scale': jnp.ones(3)}}
  loss = lambda p, x: jnp.mean((jnp.tanh(x @ p['ffn']['up']) @ p['ffn']['down'] * p['ffn']['scale']) ** 2)
  x = normal(3, 4, 3)
  made = splits.apply(loss, params, (x,), {'ffn/up': ('both', 2)})
  parts = made.split(params)
  assert sorted(parts['ffn']) == ['scale', 'up+down_0', 'up+down_1']
  close(made.join(gradients(made.loss, parts, x)[1]), gradients(loss, params, x)[1])


def test_matrices_of_the_same_name_in_two_modules():
  params = {'a': {'fc': {'w': normal(1, 3, 8)}}, 'b': {'fc': {'w': normal(2, 8, 3)}}}
  loss = lambda p, x: jnp.mean((jnp.tanh(x @ p['a']['fc']['w']) @ p['b']['fc']['w']) ** 2)
  x = normal(3, 4, 3)
  made = splits.apply(loss, params, (x,), {'a/fc': ('both', 2)})
  assert made.parts == ('a.fc+b.fc_0', 'a.fc+b.fc_1')
  close(made.join(gradients(made.loss, made.split(params), x)[1]), gradients(loss, params, x)[1])


def test_what_has_other_shapes_is_refused():
  loss, params, data = mlp()
  made = splits.apply(loss, params, data, {'Dense_0': ('vertical', 2)})
  for change in (made.split, made.join):
    with pytest.raises(ValueError, match='belongs to no tree with the shapes of these parameters'):
      change({'params': normal(1, 3, 4)})


@pytest.mark.parametrize('choice, message', [
    ({'top9': ('vertical', 2)}, "'top9' is no FC that can be split: there are bottom1, bottom2"),
    ({'top1': ('vertical', 0)}, "'top1' is split into 1 to 25 parts .vertical., got 0"),
    ({'top1': ('vertical', 26)}, "'top1' is split into 1 to 25 parts .vertical., got 26"),
    ({'top1': ('horizontal', 2.0)}, 'got 2.0'),
    ({'top1': ('diagonal', 2)}, "is split by a pair of one of .*'diagonal'"),
    ({'top1': 3}, 'is split by a pair'),
    ({'bottom3': ('both', 2)}, "'bottom3' has no FC behind it .* but for bottom1, bottom2, top1, top2"),
    ({'top1': ('rows', 2)}, "'top1' is no table that can be split: there are none"),
    ({'top1': ('both', 2), 'top2': ('vertical', 2)}, "'top2' is split twice: by 'top1' and by 'top2'"),
])
def test_bad_choices(choice, message):
  loss, params, data = dlrm()
  with pytest.raises(ValueError, match=message):
    splits.apply(loss, params, data, choice)


def test_a_table_is_no_fc_and_names_may_be_taken():
  params = {'embed': {'table': normal(1, 6, 2)}, 'fc': {'w': normal(2, 2, 4)}, 'fc_1': {'w': normal(3, 4, 2)}}
  loss = lambda p, ids: jnp.mean(jnp.sin(p['embed']['table'][ids] @ p['fc']['w'])[:, ::-1] @ p['fc_1']['w'])
  with pytest.raises(ValueError, match="'embed' is no FC that can be split: there are fc, fc_1"):
    splits.apply(loss, params, (jnp.arange(3),), {'embed': ('horizontal', 2)})
  with pytest.raises(ValueError, match='names that are taken: fc_1'):
    splits.apply(loss, params, (jnp.arange(3),), {'fc': ('vertical', 2)})
  with pytest.raises(ValueError, match="splits are 'auto', a dict or None"):
    plan(loss, optax.sgd(0.1), params, jnp.arange(3), nodes=Nodes(group=1), splits='all')


def big(rows=400, width=8):
  params = {'embed': {'table': normal(1, rows, width)}, 'fc': {'w': normal(2, width, 4)}}
  loss = lambda p, ids: jnp.mean((p['embed']['table'][ids] @ p['fc']['w']) ** 2)
  return loss, params, (jnp.array([0, 7, 399, 200]),)


def test_a_table_that_is_too_large_is_sharded():
  loss, params, data = big()  # 12,800 bytes, and as many of Adagrad
  options = {'nodes': Nodes(group=1, sparse=4), 'machine': Machine(memory=14_000)}
  with pytest.raises(ValueError, match="'embed' fits no node"):
    plan(loss, optax.adagrad(0.1), params, *data, **options)
  made = plan(loss, optax.adagrad(0.1), params, *data, splits='auto', **options)
  assert made.parts.choice['embed'] == ('rows', 2)
  at = {b.name: made.nodes.names[n] for b, n in zip(made.blocks.blocks, made.at, strict=True) if b.kind == 'table'}
  assert sorted(at) == ['embed_0', 'embed_1'] and len(set(at.values())) == 2
  parts = made.split(params)
  parts, _, _ = made.simulate(parts, optax.adagrad(0.1).init(parts), *data)
  close(made.join(parts), trained(loss, params, data, optax.adagrad(0.1), 1)[0])
  with pytest.raises(ValueError, match="'embed' fits no node"):
    plan(loss, optax.adagrad(0.1), params, *data, splits='auto', nodes=Nodes(group=1, sparse=4),
         machine=Machine(memory=6_000))


def wide():
  """One pair of layers, and more servers than that."""
  params = {'up': {'w': normal(1, 32, 512)}, 'down': {'w': normal(2, 512, 16)}}
  return lambda p, x: jnp.mean((jnp.tanh(x @ p['up']['w']) @ p['down']['w']) ** 2), params, (normal(3, 16, 32),)


def test_servers_share_a_layer_or_are_idle():
  loss, params, data = wide()
  alone = plan(loss, optax.sgd(0.1), params, *data, nodes=Nodes(group=3))
  made = plan(loss, optax.sgd(0.1), params, *data, nodes=Nodes(group=3), splits='auto')
  assert alone.idle and not made.idle
  assert made.parts.choice == {'up': ('both', 3)}
  assert made.load.bottleneck < 0.6 * alone.load.bottleneck
  parts = made.split(params)
  parts, _, value = made.simulate(parts, (optax.EmptyState(), optax.EmptyState()), *data)
  close(value, loss(params, *data))
  close(made.join(parts), trained(loss, params, data, optax.sgd(0.1), 1)[0])


def test_nothing_is_split_if_it_does_not_pay():
  loss, params, data = mlp()
  made = plan(loss, optax.sgd(0.1), params, *data, nodes=Nodes(group=1), splits='auto')
  assert made.parts is None and made.split(params) is params and made.join(params) is params


def test_traffic_of_dlrm_with_splits():
  loss, params, data = dlrm(Dlrm.bottom, Dlrm.top, 128, 26)
  made, whole = (plan(loss, optax.adagrad(0.1), params, *data, nodes=Nodes(group=3, trainers=3), splits=splits,
                      codec=Codecs('int8', 'bfloat16'), seconds=60.0) for splits in ('auto', None))
  assert made.parts is not None and made.load.bottleneck < whole.load.bottleneck
  assert made.load.traffic <= 0.5 * sum(x.nbytes for x in jax.tree.leaves(params))
