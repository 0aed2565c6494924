"""Tags: where they get to, what they leave behind, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental import io_callback

from dct_jax import partition
from dct_jax.partition import Nodes, graph, on

NODES = Nodes(group=2, sparse=1)
PARAMS = {'a': {'w': jnp.ones((4, 4))}, 'b': {'w': jnp.ones((4, 4))}}
X = jnp.arange(8.0).reshape(2, 4)


def traced(function, *arguments):
  return graph.trace(function, *arguments)


def tags_of(function, *arguments):
  """Operator -> tag, of those that have one."""
  return {(op.kind, op.phase): op.tag for op in traced(function, *arguments).operators if op.tag}


def planned(loss, params=PARAMS, nodes=NODES, **options):
  return partition.plan(loss, optax.sgd(0.1), params, X, nodes=nodes, **options)


def node_of(made, block):
  return next(made.nodes.names[n] for b, n in zip(made.blocks.blocks, made.at, strict=True) if b.name == block)


@jax.custom_jvp
def soft(x):
  return jnp.tanh(x)


soft.defjvp(lambda p, t: (soft(on(p[0], 'group0')), t[0] * (1 - jnp.tanh(p[0]) ** 2)))


@jax.custom_vjp
def hard(x):
  return on(jnp.tanh(x), 'group0')


hard.defvjp(lambda x: (hard(x), x), lambda x, ct: (on(ct * jnp.cosh(x) ** -2, 'group1'),))


@pytest.mark.parametrize('wrap', [lambda f: f, jax.jit, jax.vmap, jax.checkpoint, lambda f: jax.jit(jax.jit(f))],
                         ids=['plain', 'jit', 'vmap', 'remat', 'jit twice'])
def test_a_tag_goes_through(wrap):
  f = wrap(lambda x: on(jnp.sin(x), 'group1'))
  assert tags_of(f, X) == {('sin', 'forward'): 'group1'}
  assert tags_of(jax.grad(lambda x: jnp.sum(f(x) ** 2)), X)['mul', 'backward'] == 'group1'
  np.testing.assert_array_equal(f(X), jnp.sin(X))
  np.testing.assert_allclose(jax.grad(lambda x: jnp.sum(f(x)))(X), jnp.cos(X), rtol=1e-6)


def test_a_tag_goes_through_custom_rules():
  assert tags_of(hard, X) == {('tanh', 'forward'): 'group0'}
  found = tags_of(jax.grad(lambda x: jnp.sum(hard(x) ** 2)), X)
  assert 'group1' in found.values() and 'group0' in found.values()
  found = traced(jax.grad(lambda x: jnp.sum(soft(x * 2))), X)
  assert next(op.tag for op in found.operators if op.kind == 'mul') == 'group0'
  np.testing.assert_allclose(jax.grad(hard)(0.3), jax.grad(jnp.tanh)(0.3), rtol=1e-5)


def test_forward_differentiation_and_twice():
  f = lambda x: on(x ** 3, 'trainer')
  assert jax.jvp(f, (2.0,), (1.0,)) == (8.0, 12.0)
  assert jax.grad(jax.grad(f))(2.0) == 12.0
  assert jax.hessian(lambda x: jnp.sum(f(x)))(jnp.ones(2)).shape == (2, 2)


@pytest.mark.parametrize('x', [jnp.arange(3), jnp.array([True]), jax.random.key(0), jax.random.split(jax.random.key(0)),
                               np.float32(2), 3, {'a': jnp.ones(2), 'b': [jnp.arange(2)]}], ids=str)
def test_anything_can_be_tagged(x):
  for tag in (on, jax.jit(on, static_argnums=1)):
    same = jax.tree.map(lambda a, b: bool(jnp.all(a == b)), tag(x, 'group0'), x)
    assert all(jax.tree.leaves(same))


def test_keys_under_vmap():
  keys = jax.random.split(jax.random.key(0), 3)
  draws = jax.vmap(lambda k: jax.random.normal(on(k, 'group0')))(keys)
  np.testing.assert_array_equal(draws, jax.vmap(jax.random.normal)(keys))


def test_nothing_is_left_outside_of_a_plan():
  text = lambda f: jax.jit(f).lower(X).as_text().replace('jit_plain', 'jit_tagged')

  def tagged(x):
    return on(jnp.sin(on(x, 'group0')), 'trainer') + 1

  def plain(x):
    return jnp.sin(x) + 1

  assert text(tagged) == text(plain)
  compiled = jax.jit(tagged).lower(X).compile()
  assert 'partition_tag' not in compiled.as_text()
  assert not jax.make_jaxpr(tagged)(X).effects
  kinds = [op.kind for op in traced(tagged, X).operators]
  assert kinds == ['sin', 'add']


def test_a_layer_moves_as_one():
  def loss(p, x):
    return jnp.mean((on(jnp.tanh(x @ p['a']['w']), 'group1') @ p['b']['w']) ** 2)

  made = planned(loss)
  block = next(b for b in made.blocks.blocks if b.name == 'a')
  assert node_of(made, 'a') == 'group1'
  ops = [made.graph.operators[i] for i in block.operators]
  assert {op.phase for op in ops} == {'forward', 'backward', 'update'}
  assert {'dot_general', 'tanh'} <= {op.kind for op in ops}
  assert {made.placement.operators[i] for i in block.operators} == {'group1'}


@pytest.mark.parametrize('tag, allowed', [('group', ['group0', 'group1']), ('sparse', ['sparse0']),
                                          ('trainer', ['trainer']), ('group0', ['group0'])])
def test_a_parameter_is_tagged(tag, allowed):
  loss = lambda p, x: jnp.mean((x @ on(p['a']['w'], tag) @ p['b']['w']) ** 2)
  made = planned(loss)
  assert node_of(made, 'a') in allowed
  slot = next(i for i, s in enumerate(made.graph.slots) if s.path == 'a/w')
  assert made.placement.slots[slot] in allowed


def test_sums_of_layers_on_two_nodes():
  """Both terms of a sum have the same gradient: it must not carry the tag of one to the other."""
  def loss(p, x):
    return jnp.mean((on(x @ p['a']['w'], 'group0') + on(x @ p['b']['w'], 'group1')) ** 2)

  made = planned(loss)
  assert (node_of(made, 'a'), node_of(made, 'b')) == ('group0', 'group1')


def test_two_tags_for_a_layer():
  loss = lambda p, x: jnp.mean(on(jnp.tanh(on(x @ p['a']['w'], 'group0')) @ p['b']['w'], 'group1') ** 2)
  assert node_of(planned(loss), 'b') == 'group1'
  loss = lambda p, x: jnp.mean((on(x @ p['a']['w'], 'group0') @ on(p['a']['w'], 'group1')) ** 2)
  with pytest.raises(ValueError, match="'a' stays together, but has tags for group0 and group1"):
    planned(loss)


def test_two_tags_for_a_value():
  with pytest.raises(ValueError, match='has tags for group0 and trainer'):
    traced(lambda x: on(on(jnp.sin(x), 'group0'), 'trainer'), X)
  assert tags_of(lambda x: on(on(jnp.sin(x), 'group0'), 'group0'), X) == {('sin', 'forward'): 'group0'}
  with pytest.raises(ValueError, match='top_k.* is one operator, but has tags for group0 and group1'):
    traced(lambda x: [on(part, f'group{i}') for i, part in enumerate(jax.lax.top_k(x, 2))], X)


@pytest.mark.parametrize('kind, function', [
    ('scan', lambda x: jax.lax.scan(lambda c, r: (c + on(r, 'group0'), None), x[0], x)[0]),
    ('while', lambda x: jax.lax.while_loop(lambda c: on(c, 'group0')[0, 0] < 3, lambda c: c + 1, x)),
    ('while', lambda x: jax.lax.fori_loop(0, x.shape[0] + x[0, 0].astype(int), lambda i, c: on(c, 'group0') + 1, x)),
    ('cond', lambda x: jax.lax.cond(x[0, 0] > 0, jax.jit(lambda y: on(y, 'group0') * 2), lambda y: y, x))])
def test_a_tag_inside_a_loop_is_refused(kind, function):
  with pytest.raises(ValueError, match=f'a tag inside {kind}.*one operator and runs on one node; tag what'):
    traced(function, X)


def test_a_loop_is_tagged_from_outside():
  found = tags_of(lambda x: on(jax.lax.scan(lambda c, r: (c + r, None), x[0], x)[0], 'group0'), X)
  assert found == {('scan', 'forward'): 'group0'}


@pytest.mark.parametrize('tag', ['group2', 'sparse1', 'elsewhere'])
def test_a_tag_that_names_no_node(tag):
  loss = lambda p, x: jnp.mean(on(x @ p['a']['w'], tag) ** 2)
  with pytest.raises(ValueError, match=f'{tag}.* names no node: there are trainer, group0, group1, sparse0'):
    planned(loss)
  with pytest.raises(ValueError, match='names no node'):
    planned(lambda p, x: jnp.mean(on(jnp.sin(x), tag) @ p['a']['w']))


@pytest.mark.parametrize('tag', ['dense', 'dense0'])
def test_a_tag_for_dense_servers(tag):
  with pytest.raises(ValueError, match='of dense servers: they keep what groups synchronize with, and run nothing'):
    planned(lambda p, x: jnp.mean(on(x @ p['a']['w'], tag) ** 2))


@pytest.mark.parametrize('tag', ['', None, 3])
def test_a_tag_is_a_name(tag):
  with pytest.raises(ValueError, match='a tag is the name of a node'):
    on(X, tag)


def test_a_batch_is_the_trainers():
  with pytest.raises(ValueError, match="'0' is part of a batch, which trainers have, and has a tag for group0"):
    planned(lambda p, x: jnp.mean(on(x, 'group0') @ p['a']['w']))
  planned(lambda p, x: jnp.mean(on(x, 'trainer') @ p['a']['w']))


def _printing(x):
  jax.debug.print('{}', x[0, 0])
  return x


@pytest.mark.parametrize('name, function', [
    ('debug_print|debug_callback', _printing), ('debug_print|debug_callback', jax.jit(_printing)),
    ('io_callback', lambda x: io_callback(lambda y: y, jax.ShapeDtypeStruct(x.shape, x.dtype), x)),
    ('scan', lambda x: jax.lax.scan(lambda c, r: (_printing(c), None), x, x)[0])])
def test_effects_are_refused(name, function):
  with pytest.raises(ValueError, match=f'({name}).* has an effect .*take it out of the loss'):
    traced(lambda x: jnp.sum(function(x)), X)


@pytest.mark.parametrize('name, function', [
    ('psum', lambda x: jax.lax.psum(x, 'i')), ('all_gather', lambda x: jax.lax.all_gather(x, 'i')),
    ('ppermute', lambda x: jax.lax.ppermute(x, 'i', [(0, 1), (1, 0)])),
    ('psum', lambda x: jax.lax.scan(lambda c, r: (c + jax.lax.psum(r, 'i'), None), x[0] * 0, x)[0]),
    ('shard_map', jnp.sin)])
def test_exchanges_are_refused(name, function):
  mesh = jax.make_mesh((2,), ('i',), axis_types=(jax.sharding.AxisType.Auto,))
  spec = jax.sharding.PartitionSpec('i')
  mapped = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
  with pytest.raises(ValueError, match=f'{name}.* is an exchange between devices of a mesh'):
    traced(mapped, X)


def test_an_axis_of_vmap_is_no_mesh():
  total = jax.vmap(lambda x: x / jax.lax.psum(x, 'i'), axis_name='i')
  assert traced(total, X).operators[0].kind in ('psum', 'reduce_sum')  # over an axis of an array
