"""Programs of nodes, all run in this process, against the function that was cut.

XLA fuses what is in one program, and what is fused rounds otherwise than what is not: where a program is cut, results
differ in their last bits. So they are compared to rounding here, and to the bit where test_bits.py says so. Adam
divides a gradient by its own size, which makes a rounding error of a gradient near zero as large as the step; its
parameters have an absolute tolerance of a part of the rate.
"""

import dataclasses

import jax
import jax.numpy as jnp
import nets
import numpy as np
import optax
import pytest
from marks import slow

from dct_jax.partition import Codecs, Nodes, codecs, programs, simulate

pytestmark = pytest.mark.plain_code
SGD = nets.OPTIMIZERS['sgd']


def assert_close(want, got, atol=2e-6):
  assert jax.tree.structure(want) == jax.tree.structure(got)
  for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
    assert a.dtype == b.dtype
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=atol)


def check(net, optimizer, made, steps=5, atol=2e-6):
  assert_close(nets.train(nets.step(net, optimizer), net, optimizer, steps),
               nets.train(made.simulate, net, optimizer, steps), atol)


NETS = ['dlrm', 'mlp', 'resnet', 'transformer', 'tables']


@pytest.mark.parametrize('net, optimizer, servers', [
    ('mlp', 'adam', 2), ('resnet', 'adagrad', 3), ('transformer', 'sgd', 5), ('tables', 'adam', 1),
    *slow(*((n, o, k) for n in NETS for o in nets.OPTIMIZERS for k in range(1, 7)))])
def test_plans_equal_the_original(net, optimizer, servers):
  atol = 2e-4 if optimizer == 'adam' else 2e-6
  net, optimizer = getattr(nets, net)(), nets.OPTIMIZERS[optimizer]
  check(net, optimizer, nets.plan(net, optimizer, Nodes(group=servers, sparse=1)), atol=atol)


def test_raw_keys():
  net = nets.transformer(1, typed=False)
  made = nets.plan(net, SGD, Nodes(group=2), method='random', seed=1)
  check(net, SGD, made, 2)
  typed = nets.transformer(1)
  flat = nets.plan(typed, SGD, Nodes(group=2), method='random', seed=1)
  assert made.load.traffic == flat.load.traffic  # a key travels as its words


@pytest.mark.parametrize('optimizer', [
    optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1, momentum=0.9)),
    optax.adamw(optax.cosine_decay_schedule(1e-3, 10), eps=1e-2),
    optax.MultiSteps(optax.adam(1e-3, eps=1e-2), 2).gradient_transformation()],
    ids=['clip', 'schedule', 'multi_steps'])
def test_optimizers_with_a_state_of_all_layers(optimizer):
  net = nets.mlp(2)
  made = nets.dealt(net, optimizer, 2)
  assert {'trainer', 'group0', 'group1'} == set(made.programs)
  check(net, optimizer, made, 4, atol=1e-5)


def test_a_plan_gives_the_same_bits_each_time():
  made = nets.plan(nets.mlp(2), SGD, Nodes(group=2), method='rules')
  first, second = (nets.train(made.simulate, nets.mlp(2), SGD, 2) for _ in range(2))
  jax.tree.map(np.testing.assert_array_equal, first, second)
  again = dataclasses.replace(made)
  jax.tree.map(np.testing.assert_array_equal, first, nets.train(again.simulate, nets.mlp(2), SGD, 2))


@pytest.mark.parametrize('net', ['mlp', *slow('dlrm', 'transformer')])
def test_updates_apart(net):
  net = getattr(nets, net)()
  made = nets.plan(net, SGD, Nodes(group=2), method='rules')
  cut = made.transform(apart=True)
  run = lambda *arguments: simulate.simulate(made.graph, cut, *arguments)
  assert_close(nets.train(made.simulate, net, SGD, 2), nets.train(run, net, SGD, 2))
  for program in cut.values():
    for step in program.steps:
      for segment in step.runs:
        phases = {made.graph.operators[i].phase == 'update' for i in segment.operators}
        assert len(phases) == 1 and phases == {segment.phase == 'update'}
  assert any(len(step.runs) > 1 for program in cut.values() for step in program.steps)


def layered(layers, servers):
  """A plan of an MLP whose layers take turns on the servers."""
  return nets.dealt(nets.mlp(layers), SGD, servers)


def test_equal_segments_share_a_compilation():
  made = layered(12, 2)
  segments, functions = programs.count_segments(made.programs)
  assert segments == 27 and functions == 6  # the first, the last and all others, forward and back; and the loss
  more = layered(6, 3)
  assert {id(s.function) for p in more.programs.values() for t in p.steps for s in t.runs} & {
      id(s.function) for p in made.programs.values() for t in p.steps for s in t.runs}


def test_programs_compile_once():
  for codec in (Codecs(), Codecs('int8', 'bfloat16')):
    net = nets.mlp(3)
    made = nets.plan(net, nets.OPTIMIZERS['adam'], Nodes(group=2), codec=codec, method='rules')
    for segment in (s for p in made.programs.values() for t in p.steps for s in t.runs):
      segment.function.clear_cache()
    nets.train(made.simulate, net, nets.OPTIMIZERS['adam'], 2)
    sizes = {s.function._cache_size() for p in made.programs.values() for t in p.steps for s in t.runs}
    assert sizes == {1}


def test_rounds_and_messages_fit():
  made = nets.plan(nets.transformer(), SGD, Nodes(group=3), method='random', seed=3)
  sent = [(a, b, r + 1, t) for a, b, r, t in programs.all_transfers(made.programs)]
  taken = [(peer, n, step.round, t) for n, p in made.programs.items() for step in p.steps
           for peer, got in step.receives.items() for t in got]
  key = lambda m: (*m[:3], m[3].value)
  assert sorted(sent, key=key) == sorted(taken, key=key)
  assert all('trainer' in (a, b) for a, b, _, _ in sent)  # servers talk to the trainer alone
  arrivals = [(t.value, b) for _, b, _, t in sent]
  assert len(arrivals) == len(set(arrivals))  # a value travels to a node once
  assert programs.rounds(made.programs) == 1 + max(r for _, _, r, _ in sent)


@pytest.mark.parametrize('forward, backward, bound', [('bfloat16', 'bfloat16', 0.6), ('int8', 'bfloat16', 0.55),
                                                      *slow(('float16', 'int8', 0.55))])
def test_codecs(forward, backward, bound):
  net = nets.dlrm()
  exact = nets.plan(net, SGD, Nodes(group=3), method='random', seed=2)
  made = nets.plan(net, SGD, Nodes(group=3), method='random', seed=2, codec=Codecs(forward, backward))
  assert made.at == exact.at and made.load.traffic < bound * exact.load.traffic
  (want,), (got,) = (nets.train(p.simulate, net, SGD, 1)[0] for p in (exact, made))
  np.testing.assert_allclose(want, got, rtol=0.02)
  moved = [jax.tree.map(jnp.subtract, net.params, nets.train(p.simulate, net, SGD, 1)[1]) for p in (exact, made)]
  flat = [np.concatenate([np.ravel(x) for x in jax.tree.leaves(m)]) for m in moved]
  assert np.linalg.norm(flat[0] - flat[1]) < 0.05 * np.linalg.norm(flat[0])
  used = {t.codec for *_, t in programs.all_transfers(made.programs)}
  assert used >= {forward, backward} and used <= {forward, backward, 'exact'}


def test_only_float32_is_rounded():
  """Integers, keys, numbers without an axis, and what a batch brings travel as they are."""
  net = nets.transformer()
  made = nets.plan(net, SGD, Nodes(group=2), method='random', seed=1, codec=Codecs('int8', 'int8'))
  for *_, t in programs.all_transfers(made.programs):
    aval = made.graph.avals[t.value]
    if aval.dtype != jnp.float32 or aval.ndim == 0 or t.value in made.graph.slot_of:
      assert t.codec == 'exact'
    elif made.graph.operators[made.graph.producer[t.value]].phase != 'update':
      assert t.codec == 'int8'


@pytest.mark.parametrize('codec', codecs.CODECS)
@pytest.mark.parametrize('x', [nets.draw(0, 3, 5), jnp.arange(3), jnp.float32(2), jax.random.key(1),
                               jax.random.split(jax.random.key(0))], ids=['matrix', 'ints', 'scalar', 'key', 'keys'])
def test_bytes_of_codecs_are_those_of_arrays(codec, x):
  aval = jax.typeof(x)
  codec = codec if codecs.fits(aval, codec) else 'exact'
  payload = codecs.encode(x, codec)
  assert codecs.encoded_bytes(aval, codec) == sum(leaf.nbytes for leaf in jax.tree.leaves(payload))
  back = codecs.decode(payload, codec, aval)
  assert back.dtype == x.dtype and back.shape == x.shape
  if codec == 'exact':
    assert bool(jnp.all(back == x))
  elif codec not in ('int4', 'sparse'):  # see test_edges.py
    np.testing.assert_allclose(back, x, atol=0.02, rtol=0.01)
