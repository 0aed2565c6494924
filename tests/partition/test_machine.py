"""What operators cost, and what is remembered of a machine."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dct_jax.partition import Codecs, Machine, Nodes, costs, graph, measure_machine, plan
from dct_jax.partition.tasks import tasks_of


def only(function, *arguments):
  flat = graph.trace(function, *arguments)
  return flat, flat.operators[-1]


A, B = jnp.ones((4, 6)), jnp.ones((6, 5))


@pytest.mark.parametrize('function, arguments, flops', [
    (jnp.dot, (A, B), 2 * 4 * 5 * 6), (lambda a: a + 1, (A,), 0),
    (jax.vmap(jnp.dot), (jnp.ones((3, 4, 6)), jnp.ones((3, 6, 5))), 3 * 2 * 4 * 5 * 6),
    (lambda x, k: jax.lax.conv(x, k, (1, 1), 'SAME'), (jnp.ones((2, 3, 8, 8)), jnp.ones((7, 3, 5, 5))),
     2 * 2 * 7 * 8 * 8 * 3 * 5 * 5)])
def test_flops(function, arguments, flops):
  assert costs.flops(only(function, *arguments)[1]) == flops


def test_flops_of_loops():
  loop = lambda a, w: jax.lax.scan(lambda c, _: (c @ w, None), a, None, length=7)[0]
  assert costs.flops(only(loop, A, jnp.ones((6, 6)))[1]) == 7 * 2 * 4 * 6 * 6
  branch = lambda a: jax.lax.cond(a[0, 0] > 0, lambda x: x @ B, lambda x: x[:, :5], a)
  assert costs.flops(only(branch, A)[1]) == 2 * 4 * 6 * 5  # the longer one
  nested = lambda a, w: jax.lax.fori_loop(0, 3, lambda i, c: loop(c, w) + 1, a)
  assert costs.flops(only(nested, A, jnp.ones((6, 6)))[1]) == pytest.approx(3 * (7 * 2 * 4 * 6 * 6 + 24), abs=9)


def test_seconds():
  machine = Machine(flop=1.0, byte=100.0, row=1e4)
  assert machine.seconds(*only(jnp.dot, A, B)) == 240 + 100 * 4 * (24 + 30 + 20)
  assert machine.seconds(*only(lambda a: a + 1, A)) == 100 * 4 * 48
  assert machine.seconds(*only(lambda a: a.reshape(-1), A)) == 0
  table, rows = jnp.ones((1000, 2)), jnp.arange(3)
  flat = graph.trace(lambda t, i: t[i], table, rows)
  gather = next(op for op in flat.operators if op.kind == 'gather')
  assert machine.seconds(flat, gather) <= 1e4 * 6 < 100 * table.nbytes  # not the whole table


def test_nets_keep_all_cores_busy():
  """What a node has to compute weighs less against its line, codecs included; a batch alone takes one core."""
  loss = lambda p, x: jnp.mean((x @ p['a']['w']) ** 2)
  params, codec = {'a': {'w': jnp.ones((8, 4))}}, Codecs('int8', 'int8')
  one, many = (plan(loss, optax.sgd(0.1), params, jnp.ones((16, 8)), nodes=Nodes(group=1), codec=codec,
                    machine=Machine(cores=cores)) for cores in (1, 18))
  np.testing.assert_allclose(18 * many.load.seconds[:, 0], one.load.seconds[:, 0])
  np.testing.assert_array_equal(many.load.seconds[:, 1:], one.load.seconds[:, 1:])
  assert [t.seconds for t in tasks_of(many)] == [t.seconds for t in tasks_of(one)]


def test_products_in_8_bits_have_a_cost_of_their_own():
  flat = plan(lambda p, x: jnp.sum(x @ p['w']), optax.sgd(0.1), {'w': B}, A, nodes=Nodes(group=1), fc='int8').graph
  product = next(op for op in flat.operators if op.kind == costs.INT8)
  seconds = lambda **times: Machine(byte=1e-30, **times).seconds(flat, product)
  assert seconds(flop=1.0) == pytest.approx(2 * 4 * 6 * 5) and seconds(flop=1.0, flop8=0.25) == pytest.approx(60)


@pytest.mark.parametrize('field', ['flop', 'flop8', 'byte', 'row', 'call', 'rate', 'memory', 'cores'])
def test_machines_are_checked(field):
  with pytest.raises(ValueError, match=f'{field} of a machine must be above 0'):
    Machine(**{field: 0.0})


@pytest.mark.parametrize('seconds', [-1.0, float('inf'), float('nan')])
def test_costs_of_codecs_are_checked(seconds):
  with pytest.raises(ValueError, match='decode of a machine has seconds of a byte, got .* for int8'):
    Machine(decode={'int8': seconds})


def test_calibration_is_kept(tmp_path, monkeypatch):
  monkeypatch.setattr(costs, 'REPEATS', 1)
  path = tmp_path / 'machine.json'
  made = measure_machine(path, rate=1e8, memory=1e9)
  assert made.encode['exact'] == 0 and made.encode['int8'] > 0 and made.decode['bfloat16'] > 0
  monkeypatch.setattr(costs, '_seconds', lambda *_: pytest.fail('it was measured again'))
  assert measure_machine(path, rate=1e8, memory=1e9) == made
  assert measure_machine(path, rate=2e8).rate == 2e8


@pytest.mark.parametrize('text', ['', '[]', '{"flop": 1, "unknown": 2}', '{"flop": -1}', '{"encode": 3}',
                                  '[' * 100_000])
def test_other_files_are_refused(tmp_path, text):
  path = tmp_path / 'machine.json'
  path.write_text(text)
  with pytest.raises(ValueError, match='does not have the costs of a machine'):
    measure_machine(path)
