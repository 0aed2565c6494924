"""What a plan says of itself: the table, the critical path, and the words."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dct_jax import partition
from dct_jax.partition import codecs, programs, report

NOTHING = {'flop': 1e-30, 'byte': 1e-30, 'row': 1e-30, 'call': 1e-30}  # a processor that takes no time
ROWS = 16


def loss(params, x, y):
  for name in sorted(params):
    x = jnp.tanh(x @ params[name]['w'])
  return jnp.mean((x[:, 0] - y) ** 2)


def made(layers=2, nodes=None, rule=(), **machine):
  """A plan of layers a, b, ... of width 8, wide at the end."""
  params = {'abcdefgh'[i]: {'w': jax.ShapeDtypeStruct((8, 8), jnp.float32)} for i in range(layers)}
  batch = jax.ShapeDtypeStruct((ROWS, 8), jnp.float32), jax.ShapeDtypeStruct((ROWS,), jnp.float32)
  return partition.plan(loss, optax.sgd(0.1), params, *batch, nodes=nodes or partition.Nodes(group=2), rule=rule,
                        machine=partition.Machine(**machine))


def by_hand(where):
  """Rules that put layers where a dict says."""
  return [partition.named(layer, node) for layer, node in where.items()]


def test_the_table_adds_up():
  plan = made(3, partition.Nodes(group=2, trainers=2), by_hand({'a': 'group0', 'b': 'group1', 'c': 'group1'}))
  rows = {r.node: r for r in report.rows(plan)}
  assert list(rows) == ['trainer', 'group0', 'group1']
  assert {n: r.weights for n, r in rows.items()} == {'trainer': 0, 'group0': 4 * 64, 'group1': 2 * 4 * 64}
  runs = sum(len(s.operators) for p in plan.programs.values() for step in p.steps for s in step.runs)
  assert sum(r.operators for r in rows.values()) == runs
  # Servers receive and send for both trainers; what they get the trainer has sent, and the other way round.
  sent = sum(rows[n].sent for n in ('group0', 'group1'))
  np.testing.assert_allclose(sent, 2 * rows['trainer'].received)
  np.testing.assert_allclose(sum(rows[n].received for n in ('group0', 'group1')), 2 * rows['trainer'].sent)
  moved = sum(codecs.encoded_bytes(plan.graph.avals[t.value], t.codec)
              for a, _, _, t in programs.all_transfers(plan.programs) if a == 'trainer')
  np.testing.assert_allclose(rows['trainer'].sent, moved)
  assert max(r.share for r in rows.values()) == 1.0


def test_imbalance_is_busiest_over_mean():
  plan = made(1, partition.Nodes(group=1), rate=1e30, byte=1e-30, row=1e-30, flop=1.0)
  busy = plan.load.seconds.max(1)
  assert report.imbalance(plan) == pytest.approx(busy.max() / ((busy[0] + busy[1]) / 2))
  assert report.imbalance(plan) == pytest.approx(2.0, rel=1e-3)  # one of two nodes does everything


def test_the_path_of_a_chain_is_the_sum_of_its_messages():
  plan = made(2, partition.Nodes(group=1), by_hand({'a': 'group0', 'b': 'group0'}), rate=100.0, **NOTHING)
  path = report.critical_path(plan, latency=7.0)
  there, back = 4 * ROWS * 8, 4 * ROWS * 8
  messages = [p for p in path.parts if p.kind == report.SENDING]
  assert [p.where for p in messages] == ['trainer to group0', 'group0 to trainer', 'trainer to group0']
  assert path.sending == pytest.approx((there + 2 * back) / 100 + 3 * 7)
  assert path.computing < 1e-15


def test_the_path_counts_latencies_of_rounds():
  plan = made(4, partition.Nodes(group=2), by_hand({'a': 'group0', 'b': 'group1', 'c': 'group0', 'd': 'group1'}),
              rate=1e30, **NOTHING)
  path = report.critical_path(plan, latency=1.0)
  assert path.seconds == pytest.approx(programs.rounds(plan.programs) - 1)
  assert sum(p.kind == report.SENDING for p in path.parts) == programs.rounds(plan.programs) - 1


def test_messages_share_a_line():
  """Two servers that send at the same time to one trainer take twice as long."""
  def towers(params, x, y):
    left, right = (jnp.tanh(x @ params[k]['w']) for k in 'ab')
    return jnp.mean((left + right - y[:, None]) ** 2)

  params = {k: {'w': jnp.ones((1, 64))} for k in 'ab'}
  plan = partition.plan(towers, optax.sgd(0.1), params, jnp.ones((8, 1)), jnp.ones(8), nodes=partition.Nodes(group=2),
                        rule=by_hand({'a': 'group0', 'b': 'group1'}), machine=partition.Machine(rate=1.0, **NOTHING))
  path = report.critical_path(plan, latency=0.0)
  x, tower = 4 * 8, 4 * 8 * 64
  # The first tower waits for its input alone; the second one arrives after it, and gradients leave one by one.
  assert path.seconds == pytest.approx(x + 2 * tower + 2 * tower)


def test_one_node_only_computes():
  plan = made(2, partition.Nodes(), call=1.0)
  path = report.critical_path(plan)
  assert path.sending == 0 and len(path.parts) == 1
  np.testing.assert_allclose(path.seconds, 1.0 + plan.load.seconds[0, 0], rtol=1e-6)


def test_parts_of_the_path_follow_each_other():
  plan = made(4, rate=1e5)
  path = report.critical_path(plan, latency=1e-3)
  assert path.parts[0].begin == 0 and path.parts[-1].end == pytest.approx(path.seconds)
  for a, b in itertools.pairwise(path.parts):
    assert a.end == b.begin and a.end >= a.begin and a.round <= b.round


def test_codecs_take_time_on_the_path():
  slow = {'exact': 0.0, 'bfloat16': 1.0, 'float16': 1.0, 'int8': 1.0}
  machine = partition.Machine(rate=1e30, encode=slow, decode=dict.fromkeys(slow, 0.0), **NOTHING)
  params = {'a': {'w': jnp.ones((8, 8))}}
  exact, short = (
      partition.plan(loss, optax.sgd(0.1), params, jnp.ones((ROWS, 8)), jnp.ones(ROWS), nodes=partition.Nodes(group=1),
                     codec=partition.Codecs(forward, 'exact'), machine=machine) for forward in ('exact', 'bfloat16'))
  assert report.critical_path(exact, latency=0.0).computing < 1e-15
  coded = sum(4 * short.graph.avals[t.value].size for *_, t in programs.all_transfers(short.programs)
              if t.codec == 'bfloat16')
  assert coded >= 4 * ROWS * 8  # the layer's activation
  assert report.critical_path(short, latency=0.0).computing == pytest.approx(coded)


def test_what_is_said():
  plan = made(2, partition.Nodes(group=4), by_hand({'a': 'group0', 'b': 'group1'}))
  said = report.explain(plan)
  assert plan.idle == ('group2', 'group3')
  for name in plan.idle:
    assert f'{name} is idle' in said
  assert 'is the bottleneck' in said and 'imbalance' in said and 'critical path of a batch' in said
  segments, compiled = programs.count_segments(plan.programs)
  assert f'{programs.rounds(plan.programs)} rounds; {segments} segments, {compiled} to compile' in said
  table = said.splitlines()[:6]
  assert [line.split()[0] for line in table[:5]] == ['node', 'trainer', 'group0', 'group1', 'group2']


def test_moves_are_said_with_reasons():
  plan = made(6, partition.Nodes(group=3), flop=1e-6)
  assert len(plan.moves) > 1
  said = report.explain(plan, moves=1)
  assert plan.moves[0].why in said and plan.moves[1].why not in said
  assert f'and {len(plan.moves) - 1} more' in said
