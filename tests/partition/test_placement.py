"""Where blocks are put: rules, refinement, the optimum, memory, and an estimate that is what happens."""

import collections
import dataclasses
import itertools

import jax
import jax.numpy as jnp
import nets
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import slow

from dct_jax import partition
from dct_jax.partition import Codecs, Machine, Nodes, codecs, exact, programs, refine, rules, segments
from dct_jax.partition.loads import Estimate
from dct_jax.partition.plan import check_memory

SGD, ADAM = nets.OPTIMIZERS['sgd'], nets.OPTIMIZERS['adam']
CLIPPED = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(1e-3, 10)))
STEPS = optax.MultiSteps(optax.adam(1e-3), 2).gradient_transformation()
SLOW_LINE = Machine(rate=1.25e7)


def prepared(net, optimizer, nodes, machine=None, codec=None):
  blocks = nets.plan(net, optimizer, Nodes()).blocks
  return Estimate(blocks, nodes, machine or Machine(), codec), rules.allowed(blocks, nodes)


CASES = [(nets.dlrm, ADAM), (nets.mlp, CLIPPED), (nets.tables, STEPS), (nets.transformer, SGD), (nets.resnet, CLIPPED)]


@settings(max_examples=20, deadline=None, derandomize=True)
@given(case=st.sampled_from(CASES), seed=st.integers(0, 2**32 - 1), servers=st.integers(1, 4),
       codec=st.sampled_from([Codecs(), Codecs('int8', 'bfloat16')]))
def test_the_estimate_is_what_is_sent(case, seed, servers, codec):
  """To the byte, for every node and direction, wherever blocks are: what the planner minimizes is real."""
  net, optimizer = case
  estimate, _ = prepared(net(), optimizer, Nodes(group=servers), Machine(rate=1.0), codec)
  at = np.random.default_rng(seed).integers(0, servers + 1, len(estimate.blocks.blocks))
  graph, load = estimate.blocks.graph, estimate.load(at)
  made = programs.transform(graph, estimate.placement(at), lambda v: codec.of(graph, v))
  into, out = collections.Counter(), collections.Counter()
  for a, b, _, t in programs.all_transfers(made):
    size = codecs.encoded_bytes(graph.avals[t.value], t.codec)
    into[b] += size
    out[a] += size
  names = estimate.nodes.names
  assert {n: s for n, s in zip(names, load.seconds[:, 1], strict=True) if s} == dict(into)
  assert {n: s for n, s in zip(names, load.seconds[:, 2], strict=True) if s} == dict(out)
  assert load.traffic == sum(into.values())


def test_the_estimate_of_a_processor():
  """Operators where they are, and codecs on both ends of an edge."""
  estimate, may = prepared(nets.mlp(), SGD, Nodes(group=2))
  at = rules.place(estimate, may)
  costly = Machine(encode=dict.fromkeys(codecs.CODECS, 1.0), decode=dict.fromkeys(codecs.CODECS, 100.0))
  counted, _ = prepared(nets.mlp(), SGD, Nodes(group=2), costly)
  more = counted.load(at).seconds[:, 0] - estimate.load(at).seconds[:, 0]
  np.testing.assert_allclose(estimate.load(at).seconds[:, 0].sum(), estimate.seconds.sum())
  made = programs.transform(estimate.blocks.graph, estimate.placement(at))
  size = lambda t: codecs.encoded_bytes(estimate.blocks.graph.avals[t.value], 'exact')
  want = collections.Counter()
  relayed = collections.Counter(t.value for a, b, _, t in programs.all_transfers(made) if b == 'trainer')
  encoded = set()
  for a, b, _, t in programs.all_transfers(made):
    if not (a == 'trainer' and relayed[t.value]) and (a, t.value) not in encoded:
      encoded.add((a, t.value))
      want[a] += size(t)
    if b != 'trainer' or _reads(made['trainer'], t.value):
      want[b] += 100 * size(t)
  np.testing.assert_allclose(more, [want[n] for n in estimate.nodes.names])


def _reads(program, value):
  return any(value in s.inputs for t in program.steps for s in t.runs) or value in dict(map(reversed, program.results))


def test_servers_work_for_all_trainers():
  one, may = prepared(nets.dlrm(), SGD, Nodes(group=2))
  many, _ = prepared(nets.dlrm(), SGD, Nodes(group=2, trainers=3))
  at = rules.place(one, may)
  np.testing.assert_allclose(many.load(at).seconds[0], one.load(at).seconds[0])
  np.testing.assert_allclose(many.load(at).seconds[1:], 3 * one.load(at).seconds[1:])
  assert many.load(at).memory[1] > one.load(at).memory[1]


def test_rules_put_layers_on_servers():
  made = nets.plan(nets.tables(), SGD, Nodes(group=2, sparse=1), method='rules')
  where = {b.name.rpartition('/')[2]: made.nodes.names[n] for b, n in zip(made.blocks.blocks, made.at, strict=True)
           if b.slots}
  assert where['words'] == 'sparse0' and {where['head'], where['hidden']} <= {'group0', 'group1'}
  alone = nets.plan(nets.tables(), SGD, Nodes(), method='rules')
  assert set(alone.at) == {0} and alone.load.traffic == 0


def test_components_are_dealt_out_by_weight():
  """DLRM has two, when ReLUs are with their layers: both MLPs; what is between them is the trainer's."""
  estimate, may = prepared(nets.dlrm(), SGD, Nodes(group=4))
  parts = rules.components(estimate, may)
  names = [{estimate.blocks.blocks[b].name.rpartition('/')[2] for b in part} for part in parts]
  assert sorted(map(sorted, names)) == [[f'bottom{i}' for i in range(1, 5)], [f'top{i}' for i in range(1, 5)]]
  made = nets.plan(nets.dlrm(), SGD, Nodes(group=4), method='rules')
  assert len(made.idle) == 2 and not set(made.idle) & set(made.programs)
  weights = [estimate.weights[p].sum() for p in parts]
  at = rules.place(estimate, may)
  assert at[parts[int(np.argmax(weights))][0]] == 1


def test_rules_of_a_user_come_first():
  flat = nets.graph(nets.dlrm(), SGD)
  rule = [partition.named('*top*', 'group0'), partition.named('*bottom*', 'group')]
  made = partition.plan_graph(flat, Nodes(group=2), rule=rule)
  for b, n in zip(made.blocks.blocks, made.at, strict=True):
    if b.slots:
      assert made.nodes.names[n] == 'group0' if 'top' in b.name else made.nodes.names[n].startswith('group')
  with pytest.raises(ValueError, match="'group9' names no node"):
    partition.plan_graph(flat, Nodes(group=2), rule=[partition.named('*top*', 'group9')])
  with pytest.raises(ValueError, match='no rule says where'):
    rules.allowed(made.blocks, Nodes(group=2), [rules.by_tag])


@pytest.mark.parametrize('rule, message', [
    ([partition.named('tip*', 'group0')], "no block has a name like 'tip.*: there are .*top1"),
    (partition.named('*top*', 'group0'), 'rules are a list of functions'),
    (['group0'], 'rules are a list of functions'),
    ([lambda block, nodes: 'trainer'], "a tuple of nodes, for .* got 'trainer': there are trainer, group0"),
    ([lambda block, nodes: ('group7',)], 'got .*group7')])
def test_rules_that_are_none(rule, message):
  with pytest.raises(ValueError, match=message):
    partition.plan_graph(nets.graph(nets.dlrm(), SGD), Nodes(group=1), rule=rule, method='rules')


@pytest.mark.parametrize('options, message', [
    ({'nodes': 2}, 'nodes is a dct_jax.partition.Nodes, got 2'),
    ({'codec': 'int8'}, "codec is a dct_jax.partition.Codecs, got 'int8'"),
    ({'machine': 'machine.json'}, "machine is a dct_jax.partition.Machine, got 'machine.json'"),
    ({'nets': 0}, 'nets=0'), ({'seconds': -1}, 'seconds=-1'), ({'kicks': -1}, 'kicks=-1'),
    ({'machine': Machine(encode={'exact': 0.0}), 'codec': Codecs('int8')}, 'does not have the costs of int8')])
@pytest.mark.parametrize('splits', [None, 'auto'])
def test_options_are_checked(options, message, splits):
  net = nets.mlp(1)
  with pytest.raises(ValueError, match=message):
    partition.plan(net.loss, SGD, net.params, *net.batch(0), splits=splits, **{'nodes': Nodes(group=1), **options})


@pytest.mark.parametrize('net, optimizer', [(nets.dlrm, SGD), (nets.mlp, ADAM), (nets.tables, SGD),
                                            (nets.transformer, SGD)])
@pytest.mark.parametrize('machine', [Machine(), SLOW_LINE], ids=['fast', 'slow'])
def test_refinement_never_loses(net, optimizer, machine):
  estimate, may = prepared(net(), optimizer, Nodes(group=3, sparse=1), machine)
  start = rules.place(estimate, may)
  at, moves = refine.refine(estimate, start, may, seconds=1)
  before, after = estimate.load(start), estimate.load(at)
  assert after.key <= before.key and all(n in nodes for n, nodes in zip(at, may, strict=True))
  replayed = start.copy()
  for move in moves:  # every move is better than what was there, and says so
    was = estimate.load(replayed)
    replayed[list(move.blocks)] = move.nodes
    assert estimate.load(replayed).key < was.key and move.before == was.bottleneck
    assert 'was the bottleneck' in move.why and f'{move.before * 1e3:.2f} ms' in move.why
  assert (replayed == at).all()
  single, _ = refine.refine(estimate, start, may, seconds=1, swaps=False)
  assert estimate.load(single).key <= before.key


def test_refinement_stops_in_time():
  estimate, may = prepared(nets.dlrm(), SGD, Nodes(group=3))
  start = rules.place(estimate, may)
  at, moves = refine.refine(estimate, start, may, seconds=0)
  assert (at == start).all() and not moves


@pytest.mark.parametrize('machine', [Machine(), SLOW_LINE, Machine(encode=dict.fromkeys(codecs.CODECS, 1e-9))],
                         ids=['fast', 'slow', 'codec'])
def test_the_optimum_is_one(machine):
  """Against all placements, one by one."""
  estimate, may = prepared(nets.tables(), SGD, Nodes(group=2, sparse=1), machine)
  assert np.prod([len(m) for m in may]) < 5000
  best = min(estimate.load(np.array(at)).bottleneck for at in itertools.product(*may))
  at, known = exact.solve(estimate, may, seconds=20)
  assert known and estimate.load(at).bottleneck == pytest.approx(best, rel=1e-4)


@pytest.mark.parametrize('net, servers, machine', [
    (nets.dlrm, 2, Machine()), (nets.mlp, 2, Machine()), (nets.mlp, 3, SLOW_LINE), (nets.tables, 3, SLOW_LINE),
    *slow((nets.dlrm, 3, Machine()), (nets.dlrm, 2, SLOW_LINE), (nets.resnet, 2, Machine()))])
def test_greedy_is_near_the_optimum(net, servers, machine):
  estimate, may = prepared(net(), SGD, Nodes(group=servers), machine)
  greedy, _ = refine.refine(estimate, rules.place(estimate, may), may)
  best, _ = exact.solve(estimate, may, seconds=20)
  assert estimate.load(greedy).bottleneck <= 1.1 * estimate.load(best).bottleneck


def test_methods_of_plans():
  flat = nets.graph(nets.tables(), SGD)
  of = {m: partition.plan_graph(flat, Nodes(group=2), method=m, machine=SLOW_LINE) for m in
        ('greedy', 'rules', 'exact', 'random')}
  assert of['exact'].optimal and not of['greedy'].optimal
  assert of['exact'].load.bottleneck <= of['greedy'].load.bottleneck * (1 + 1e-6)
  assert of['greedy'].load.key <= of['rules'].load.key
  assert partition.plan_graph(flat, Nodes(group=2), method='random', seed=0).at == of['random'].at
  with pytest.raises(ValueError, match='a plan is made by one of'):
    partition.plan_graph(flat, Nodes(), method='best')


def test_what_fits_no_node_is_refused_before_anything_is_compiled():
  flat = nets.graph(nets.tables(), ADAM)
  compiled = len(segments._functions)
  table = 70 * 8 * 4
  with pytest.raises(ValueError, match=rf"words' fits no node: .*words/embedding has {table:,} bytes, all of it with "
                                       rf'the optimizer {3 * table:,}, a node has 5,000; split it'):
    partition.plan_graph(flat, Nodes(group=2, sparse=1), machine=Machine(memory=5000))
  with pytest.raises(ValueError, match=r'group0 would hold [\d,]+ bytes and has 8,000; the largest part is .*words'):
    partition.plan_graph(flat, Nodes(group=1), machine=Machine(memory=8000))
  assert len(segments._functions) == compiled


@pytest.mark.parametrize('method', ['greedy', 'exact'])
def test_memory_is_kept_to(method):
  """What the fastest placement asks of a node is more than there is, and another one is found."""
  flat = nets.graph(nets.mlp(), ADAM)
  fast = partition.plan_graph(flat, Nodes(group=3), method='rules')
  limit = max(fast.load.memory) * 0.75
  made = partition.plan_graph(flat, Nodes(group=3), method=method, machine=Machine(memory=limit))
  assert max(made.load.memory) <= limit < max(fast.load.memory)


def test_buffers_alone_may_be_too_large():
  """All of the program is on a server, and the trainer has the batch to send."""
  loss = lambda p, x: partition.on(jnp.mean(x @ p['w']), 'group0')
  arguments = loss, SGD, {'w': jnp.ones((64, 1))}, jnp.ones((64, 64))
  made = partition.plan(*arguments, nodes=Nodes(group=1), rule=[partition.named('*', 'group0')])
  held = made.load.memory
  assert held[0] > 0 and 0 not in made.at
  with pytest.raises(ValueError, match='trainer would hold .*buffers of messages'):
    check_memory(dataclasses.replace(made, estimate=Estimate(made.blocks, made.nodes, Machine(memory=1.0))))


def test_memory_of_a_node():
  """Weights with their optimizer, activations, and buffers of what comes and goes."""
  estimate, may = prepared(nets.mlp(), ADAM, Nodes(group=1), Machine(rate=1.0))
  at = rules.place(estimate, may)
  load = estimate.load(at)
  assert estimate.weights[at == 1].sum() == 3 * sum(x.nbytes for x in jax.tree.leaves(nets.mlp().params))
  buffers = load.seconds[0, 1:].sum()  # of one server and one trainer: both have all that crosses
  assert buffers == load.seconds[1, 1:].sum() > 0
  for node in range(2):
    held = estimate.weights[at == node].sum() + estimate.activations[at == node].sum()
    assert load.memory[node] == held + buffers and estimate.activations[at == node].sum() > 0


@pytest.mark.parametrize('bad', [{'trainers': 0}, {'group': -1}, {'sparse': -2}])
def test_nodes_are_checked(bad):
  with pytest.raises(ValueError, match='a group has a trainer or more'):
    Nodes(**bad)


@pytest.mark.parametrize('servers', [2, 3])
def test_connected_blocks_move_together_where_single_moves_lose(servers):
  """On a slow line a block that leaves its neighbours sends more than it relieves."""
  estimate, may = prepared(nets.transformer(), SGD, Nodes(group=servers, trainers=servers), SLOW_LINE)
  start = rules.place(estimate, may)
  single, _ = refine.refine(estimate, start, may, kicks=0)
  together, moves = refine.refine(estimate, start, may)
  best, _ = exact.solve(estimate, may)
  bottleneck = lambda at: estimate.load(at).bottleneck
  assert bottleneck(single) > 3 * bottleneck(best)
  assert bottleneck(together) <= 1.1 * bottleneck(best)
  assert any(len(m.blocks) > 2 for m in moves) and all(m.after <= m.before and 'makes it' in m.why for m in moves)
  np.testing.assert_array_equal(together, refine.refine(estimate, start, may)[0])


def test_copies_that_groups_synchronize_with_are_dealt_out():
  params = {'a': {'w': jnp.zeros((8, 64))}, 'b': {'w': jnp.zeros((64, 4))}, 'table': {'rows': jnp.zeros((100, 8))}}
  loss = lambda p, ids: jnp.mean(jnp.tanh(p['table']['rows'][ids] @ p['a']['w']) @ p['b']['w'])
  made = partition.plan(loss, optax.adam(0.1), params, jnp.zeros(16, jnp.int32), nodes=Nodes(group=1, sparse=1))
  path = {k: s.path for k, s in enumerate(made.graph.slots)}
  assert {path[k]: n for k, n in made.centers(2).items()} == {'a/w': 'dense0', 'b/w': 'dense1'}  # no table, no moments
  assert set(made.centers(1).values()) == {'dense0'}
  with pytest.raises(ValueError, match='a dense server or more'):
    made.centers(0)
  with pytest.raises(ValueError, match=r'a dense server would hold 3,072 bytes and has 3,000; use more of them'):
    dataclasses.replace(made, estimate=Estimate(made.blocks, made.nodes, Machine(memory=3000))).centers(1)
