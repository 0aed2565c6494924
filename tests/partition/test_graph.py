"""The flat program: calls inlined, names kept, inputs and outputs told apart."""

import jax
import jax.numpy as jnp
import nets
import numpy as np
import optax
import pytest

from dct_jax import partition
from dct_jax.partition import Nodes, graph, programs, segments, simulate
from dct_jax.partition.placement import Placement

X = jnp.arange(6.0).reshape(2, 3)


def run(function, *arguments, node='group0'):
  """What a function gives with all operators on one server."""
  flat = graph.trace(function, *arguments)
  where = Placement(('trainer', node), (node,) * len(flat.operators), ('trainer',) * len(flat.slots))
  return simulate.simulate(flat, programs.transform(flat, where), *arguments)


def test_calls_are_inlined():
  inner = jax.jit(lambda x: jax.nn.relu(x) + np.arange(3.0, dtype=np.float32))
  f = lambda x: jax.checkpoint(lambda y: jax.jit(inner)(y) * 2)(jax.nn.silu(x))
  kinds = {op.kind for op in graph.trace(jax.grad(lambda x: jnp.sum(f(x))), X).operators}
  assert not kinds & set(graph.CALLS) and {'mul', 'logistic'} <= kinds


@pytest.mark.parametrize('function', [
    lambda x: (x, x),  # outputs that are inputs
    lambda x: (jnp.sin(x),) * 2 + (x,),  # the same output twice
    lambda x: (1.0, 2, jnp.sin(x)),  # literals
    lambda x: jax.jit(lambda y, c: (y * c, c))(x, 2.0),  # a literal into a call, and out of it
    lambda x: {'b': x + np.arange(3, dtype=np.float32), 'a': [x.astype(int), x > 1]},
    lambda x: (),
    lambda x: jax.lax.sort((x, -x), num_keys=1),
], ids=['inputs', 'twice', 'literals', 'through a call', 'tree', 'nothing', 'two results'])
def test_outputs_of_all_kinds(function):
  want, got = jax.jit(function)(X), run(function, X)
  assert jax.tree.structure(want) == jax.tree.structure(got)
  for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
    assert a.dtype == b.dtype and a.shape == b.shape
    np.testing.assert_array_equal(a, b)


def test_inputs_that_nothing_reads():
  np.testing.assert_array_equal(run(lambda x, unused, key: x * 2, X, jnp.ones(3), jax.random.key(0)), X * 2)


@pytest.mark.parametrize('make', [jax.random.key, jax.random.PRNGKey, lambda s: jax.random.key(s, impl='rbg')])
def test_keys_cross(make):
  f = lambda key: (jax.random.normal(key, (3,)), jax.random.split(key, 2))
  want, got = jax.jit(f)(make(3)), run(f, make(3))
  np.testing.assert_array_equal(want[0], got[0])
  assert want[1].dtype == got[1].dtype and bool(jnp.all(want[1] == got[1]))


def test_constants_of_calls_inside_of_loops():
  """Their text is the same, so that what they hold must tell them apart; likewise long arrays, and close numbers."""
  def scaled(c, x):
    c = np.full(3, c, np.float32)
    return jax.lax.cond(x[0, 0] < 1, lambda y: jax.jit(lambda z: z * c)(y), lambda y: y, x)

  for make in (scaled, lambda c, x: x * np.float32(c), lambda c, x: jax.lax.scan(
      lambda a, r: (a * np.float32(c), r), x[0], x)[0]):
    for c in (1.0, np.nextafter(np.float32(1), np.float32(2)), 3.0):
      f = lambda x, c=c: make(c, x)
      np.testing.assert_array_equal(run(f, X + 0.3), jax.jit(f)(X + 0.3))


def test_names_are_the_users_own():
  net = nets.dlrm()
  flat = nets.graph(net, nets.OPTIMIZERS['sgd'])
  products = {(op.name.rpartition('/')[2], op.phase) for op in flat.operators if op.kind == 'dot_general'}
  assert {('top1', 'forward'), ('top1', 'backward'), ('bottom1', 'backward')} <= products
  assert graph.clean('transpose(jvp(LM))/block0/up') == 'LM/block0/up'
  assert graph.clean('jvp(vmap(a))/checkpoint(b)') == 'a/b'
  named = graph.trace(lambda x: jax.named_scope('mine')(jnp.sin)(x), X)
  assert [op.name for op in named.operators] == ['mine']
  inlined = graph.trace(lambda x: jax.named_scope('outer')(jax.jit(jax.named_scope('inner')(jnp.sin)))(x), X)
  assert inlined.operators[0].name.startswith('outer') and inlined.operators[0].name.endswith('inner')


def test_slots_and_outputs_of_a_train_net():
  net, optimizer = nets.dlrm(), nets.OPTIMIZERS['adam']
  flat = nets.graph(net, optimizer)
  count = len(jax.tree.leaves(net.params))
  kinds = [s.kind for s in flat.slots]
  assert (kinds.count('parameter'), kinds.count('optimizer'), kinds.count('batch')) == (count, 2 * count + 1, 3)
  assert [o.kind for o in flat.outputs] == kinds[:-3] + ['loss'] and [o.slot for o in flat.outputs[:-1]] == list(
      range(3 * count + 1))
  assert set(flat.gradients) == set(range(count))
  shapes = [flat.avals[v].shape for v in flat.gradients.values()]
  assert shapes == [x.shape for x in jax.tree.leaves(net.params)]


def test_what_no_output_needs_is_left_out():
  assert [op.kind for op in graph.trace(lambda x: (jnp.sin(x), jnp.cos(x) + 1)[0], X).operators] == ['sin']


def test_shapes_are_enough():
  net, optimizer = nets.tables(), nets.OPTIMIZERS['sgd']
  shapes = jax.eval_shape(lambda: (net.params, net.batch(0)))
  flat = partition.train_net(net.loss, optimizer, shapes[0], *shapes[1])
  assert flat.fingerprint == nets.graph(net, optimizer).fingerprint
  assert flat.fingerprint != nets.graph(net, nets.OPTIMIZERS['adam']).fingerprint


def test_bytes_of_values():
  assert graph.nbytes(jax.ShapeDtypeStruct((3, 2), jnp.bfloat16)) == 12
  assert graph.nbytes(jax.eval_shape(jax.random.key, 0)) == 8


def test_other_arguments_are_refused():
  made = nets.plan(nets.tables(), nets.OPTIMIZERS['sgd'], Nodes())
  with pytest.raises(ValueError, match='this plan is of a function of'):
    made.simulate(nets.tables().params)


@pytest.mark.parametrize('change, message', [
    (lambda ids, y: (ids[:3], y[:3]), r"int32\[6,3\] in batch '0', got int32\[3, 3\]"),
    (lambda ids, y: (ids, y.astype(jnp.bfloat16)), r"float32\[6\] in batch '1', got bfloat16\[6\]")])
def test_another_batch_is_refused(change, message):
  """The mean over another number of examples would be wrong, in silence."""
  net, sgd = nets.tables(), nets.OPTIMIZERS['sgd']
  made = nets.plan(net, sgd, Nodes())
  with pytest.raises(ValueError, match=message):
    made.simulate(net.params, sgd.init(net.params), *change(*net.batch(0)))


def test_functions_are_remembered_up_to_a_number(monkeypatch):
  monkeypatch.setattr(segments, 'CACHED', 2)
  monkeypatch.setattr(segments, '_functions', type(segments._functions)())
  for c in range(4):
    graph_of = graph.trace(lambda x, c=c: x * c, X)
    segments.cut(graph_of, [[0]], graph_of.operators[0].outputs)
  assert len(segments._functions) == 2


@pytest.mark.parametrize('optimizer, params, message', [
    (0.1, {'w': jnp.ones(3)}, 'optimizer of optax has init and update, got 0.1'),
    (optax.sgd(0.1), {'w': jnp.ones(3), 'b': {'ids': jnp.arange(3)}}, "'b/ids' is int32: make it part of the batch"),
    (optax.sgd(0.1), {'w': jnp.ones(3), 'key': jax.random.key(0)}, "'key' is key<fry>")])
def test_what_cannot_be_trained_is_refused(optimizer, params, message):
  with pytest.raises(ValueError, match=message):
    partition.train_net(lambda p, x: jnp.sum(x * p['w']), optimizer, params, X)


def test_a_loss_must_be_a_number():
  with pytest.raises(TypeError, match='scalar'):
    partition.train_net(lambda p, x: x * p['w'], optax.sgd(0.1), {'w': jnp.ones(3)}, X)
