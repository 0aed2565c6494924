"""Plans in files come back as they were, and are refused for anything else."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dct_jax import partition
from dct_jax.partition import files

NODES = partition.Nodes(group=2, trainers=3)


def loss(params, x):
  hidden = jnp.tanh(x @ params['a']['w'])
  return jnp.mean((hidden @ params['b']['w'] + hidden @ params['c']['w']) ** 2)


def arguments(width=4):
  rng = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
  return {'a': {'w': draw(3, width)}, 'b': {'w': draw(width, 2)}, 'c': {'w': draw(width, 2)}}, draw(8, 3)


def graph(width=4, optimizer=None):
  params, x = arguments(width)
  return partition.train_net(loss, optimizer or optax.adam(0.1), params, x)


@pytest.fixture(scope='module')
def plan():
  machine = partition.Machine(flop=1e-6, rate=1e7, memory=1e9)
  return partition.plan_graph(graph(), NODES, codec=partition.Codecs('bfloat16', 'int8'), machine=machine, nets=2)


@pytest.fixture
def path(plan, tmp_path):
  files.save(plan, tmp_path / 'plan.json')
  return tmp_path / 'plan.json'


def test_a_plan_comes_back(plan, path):
  again = files.load(path, graph(), NODES)
  assert again.at == plan.at and again.moves == plan.moves and again.optimal == plan.optimal
  assert len(plan.moves) > 0
  assert (again.nodes, again.estimate.codec, again.estimate.machine) == (
      plan.nodes, plan.estimate.codec, plan.estimate.machine)
  assert again.estimate.nets == 2
  np.testing.assert_array_equal(again.load.seconds, plan.load.seconds)
  np.testing.assert_array_equal(again.load.memory, plan.load.memory)
  params, x = arguments()
  state = optax.adam(0.1).init(params)
  for a, b in zip(*(jax.tree.leaves(p.simulate(params, state, x)) for p in (plan, again)), strict=True):
    np.testing.assert_array_equal(a, b)
  files.save(again, path.with_name('again.json'))
  assert path.read_text() == path.with_name('again.json').read_text()


def test_a_plan_with_split_layers_comes_back(tmp_path):
  params, x = arguments(8)
  plan = partition.plan(loss, optax.adam(0.1), params, x, nodes=NODES, splits={'a': ('vertical', 2)})
  files.save(plan, tmp_path / 'plan.json')
  again = files.restore(tmp_path / 'plan.json', loss, optax.adam(0.1), params, x, nodes=NODES)
  assert again.at == plan.at and again.parts.choice == plan.parts.choice
  split = again.split(params)
  assert jax.tree.structure(split) == jax.tree.structure(plan.split(params)) != jax.tree.structure(params)
  assert jax.tree.structure(again.join(split)) == jax.tree.structure(params)
  with pytest.raises(ValueError, match='plan of another program'):
    files.load(tmp_path / 'plan.json', graph(8))


def test_memory_without_limit(tmp_path):
  files.save(partition.plan_graph(graph(), NODES), tmp_path / 'plan.json')
  json.loads((tmp_path / 'plan.json').read_text(), parse_constant=lambda c: pytest.fail(f'{c} is no JSON'))
  assert files.load(tmp_path / 'plan.json', graph()).estimate.machine.memory == np.inf


def test_people_can_read_it(path):
  found = files.read(path)
  assert found['placement'].keys() >= {'a', 'b', 'c'} and set(found['placement'].values()) <= set(NODES.names)
  assert found['nodes'] == {'group': 2, 'sparse': 0, 'trainers': 3}
  assert files.splits(path) == {}


def test_blocks_of_one_name_are_told_apart():
  found = files.block_names(partition.plan_graph(graph(), NODES).blocks)
  assert len(found) == len(set(found))


@pytest.mark.parametrize('other', [lambda: graph(width=5), lambda: graph(optimizer=optax.sgd(0.1))])
def test_another_program_is_refused(path, other):
  with pytest.raises(ValueError, match='a plan of another program'):
    files.load(path, other())


FUNCTIONS = {
    'as it is': loss,
    'another way round': lambda p, x: loss(p | {'b': {'w': p['b']['w'].T.reshape(-1, 2)}}, x),
    'another axis': lambda p, x: jnp.mean(jnp.sum(jnp.tanh(x @ p['a']['w']), 0)),
    'this axis': lambda p, x: jnp.mean(jnp.sum(jnp.tanh(x @ p['a']['w']), 1)),
    'a power': lambda p, x: jnp.mean((x @ p['a']['w']) ** 3),
    'another power': lambda p, x: jnp.mean((x @ p['a']['w']) ** 5),
    'a loop': lambda p, x: jnp.mean(jax.lax.scan(lambda c, r: (c + jax.nn.relu(r), None), x[0], x)[0] @ p['a']['w']),
    'a loop back': lambda p, x: jnp.mean(
        jax.lax.scan(lambda c, r: (c + jax.nn.relu(r), None), x[0], x, reverse=True)[0] @ p['a']['w']),
    'inside of a loop': lambda p, x: jnp.mean(
        jax.lax.scan(lambda c, r: (c + jax.nn.relu(r[::-1]), None), x[0], x)[0] @ p['a']['w']),
}


def test_settings_of_operators_tell_programs_apart():
  params, x = arguments(3)
  of = lambda function: partition.train_net(function, optax.sgd(0.1), params, x[:3]).fingerprint
  found = {name: of(function) for name, function in FUNCTIONS.items()}
  assert len(set(found.values())) == len(found)
  jax.clear_caches()  # so that functions of jaxprs are others, at other addresses
  assert found == {name: of(function) for name, function in FUNCTIONS.items()}


def test_outputs_tell_programs_apart():
  params, x = arguments()
  told = [lambda p, x: (loss(p, x), (x, x[::-1])), lambda p, x: (loss(p, x), (x[::-1], x))]
  one, other = (partition.train_net(f, optax.sgd(0.1), params, x, has_aux=True).fingerprint for f in told)
  assert one != other


def test_another_learning_rate_is_the_same_program(path):
  """And its steps are those of the new rate."""
  params, x = arguments()
  state = optax.adam(0.1).init(params)
  slow, fast = (files.load(path, graph(optimizer=optax.adam(rate))) for rate in (0.1, 0.2))
  moved = [jnp.abs(p.simulate(params, state, x)[0]['a']['w'] - params['a']['w']).max() for p in (slow, fast)]
  np.testing.assert_allclose(2 * moved[0], moved[1], rtol=1e-4)


def test_tags_that_have_changed_are_refused(tmp_path):
  params, x = arguments()
  tagged = lambda node: lambda p, x: loss(p | {'a': {'w': partition.on(p['a']['w'], node)}}, x)
  make = lambda node: (tagged(node), optax.sgd(0.1), params, x)
  files.save(partition.plan(*make('group0'), nodes=NODES, method='rules'), tmp_path / 'plan.json')
  assert files.restore(tmp_path / 'plan.json', *make('group')).at
  with pytest.raises(ValueError, match="it has 'a' on group0, which has a tag for group1"):
    files.restore(tmp_path / 'plan.json', *make('group1'))


def test_other_nodes_are_refused(path):
  with pytest.raises(ValueError, match=r'for Nodes\(group=2.*there are Nodes\(group=3'):
    files.load(path, graph(), partition.Nodes(group=3, trainers=3))


@pytest.mark.parametrize('text, message', [
    ('', 'nor any JSON'), ('{"format": 1', 'nor any JSON'), ('[1, 2]', 'but no plan'), ('{}', 'but no plan'),
    ('null', 'but no plan'), ('[' * 100_000, 'nor any JSON'), (b'\xff\xfe', 'nor any JSON')])
def test_what_is_no_plan_is_refused(tmp_path, text, message):
  (tmp_path / 'plan.json').write_bytes(text if isinstance(text, bytes) else text.encode())
  with pytest.raises(ValueError, match=f'plan.json is .*{message}'):
    files.load(tmp_path / 'plan.json', graph())


def without(key):
  return lambda found: found.pop(key)


def setting(*keys, value):
  def change(found):
    for key in keys[:-1]:
      found = found[key]
    found[keys[-1]] = value
  return change


@pytest.mark.parametrize('change, message', [
    (setting('format', value=1), 'format 1'),
    (without('machine'), "'machine' is missing"),
    (setting('placement', 'a', value='group7'), "'group7' is no node"),
    (setting('placement', 'a', value=1), '1 is no node'),
    (setting('placement', 'd', value='group0'), "other blocks: 'd'"),
    (lambda found: found['placement'].pop('a'), "other blocks: 'a'"),
    (setting('placement', value=[]), 'other blocks'),
    (setting('nodes', 'group', value=-1), 'no negative number'),
    (setting('nodes', value='three'), 'no plan that fits'),
    (setting('codecs', 'forward', value='int3'), 'int3'),
    (setting('machine', 'rate', value=0), 'rate of a machine'),
    (setting('machine', 'colour', value='red'), 'colour'),
    (setting('moves', value=[{'blocks': ['nobody']}]), 'missing'),
    (setting('moves', value=3), 'no plan that fits'),
    (setting('moves', 0, 'before', value=10**400), 'no plan that fits'),
    (setting('nodes', 'group', value=2.5), 'integers up to'),
    (setting('nodes', 'group', value=10**30), 'integers up to'),
    (setting('nets', value=0), '0 is no number of parts or nets'),
    (setting('machine', 'encode', 'int8', value=-1), 'encode of a machine'),
    (setting('machine', 'encode', value={'exact': 0}), 'costs of bfloat16'),
    (setting('machine', 'memory', value=1), 'would hold .* and has 1;'),
    (setting('splits', value=[3]), 'splits that are none'),
])
def test_what_was_changed_is_refused(path, change, message):
  found = json.loads(path.read_text())
  change(found)
  path.write_text(json.dumps(found))
  with pytest.raises(ValueError, match=message) as raised:
    files.load(path, graph())
  assert 'plan.json' in str(raised.value)


@pytest.mark.parametrize('splits', [3, {'a': 'both'}, {'a': ['both', 'x']}, {'a': 2}, {'a': ['both', 2.7]}])
def test_splits_that_are_none(path, splits):
  path.write_text(json.dumps(json.loads(path.read_text()) | {'splits': splits}))
  with pytest.raises(ValueError, match='splits that are none'):
    files.splits(path)


def test_splits_are_read_as_they_are_chosen(path):
  path.write_text(json.dumps(json.loads(path.read_text()) | {'splits': {'a': ['both', 2]}}))
  assert files.splits(path) == {'a': ('both', 2)}
