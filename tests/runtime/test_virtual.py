"""Virtual time: a clock that can be computed by hand, and a replay that does what it says."""

import collections
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from clusters import batch, params
from marks import slow
from reference import asynchrony

from dct_jax import partition
from dct_jax.partition.tasks import tasks_of
from dct_jax.runtime import clock, staleness, virtual
from dct_jax.runtime.clock import Clock, Failure, Hardware
from dct_jax.runtime.fleet import Fleet
from dct_jax.runtime.replay import Replay

MACHINE = partition.Machine(rate=1e6)
RATE = 0.01


def loss(params, x, y):
  return jnp.mean((x @ params['a']['w'] @ params['b']['w'] - y) ** 2)


@functools.cache
def planned(group=2, trainers=1, rule=True, optimizer='sgd', codec=None):
  rules = [partition.named('a', 'group0'), partition.named('b', 'group1')] if rule and group else []
  make = {'sgd': optax.sgd, 'adam': optax.adam}[optimizer]
  return partition.plan(loss, make(RATE), params(), *batch(0), nodes=partition.Nodes(group=group, trainers=trainers),
                        machine=MACHINE, rule=rules, codec=codec)


def trained(plan, fleet, batches, *, optimizer=optax.sgd, hardware=None, **options):
  arguments = params(), optimizer(RATE).init(params())
  return virtual.train(plan, fleet, hardware or Hardware(), arguments, batch, batches, progress=False, **options)


# The clock.

def test_one_net_takes_its_tasks_one_after_the_other():
  plan = planned(group=0)
  (task,) = tasks_of(plan, plan.transform(apart=True))
  assert virtual.tick(plan, Fleet(), Hardware(), 10).seconds == pytest.approx(10 * task.seconds)


@pytest.mark.parametrize(('nets', 'cores', 'rounds'), [(4, 4, 3), (4, 2, 6), (4, 1, 12), (1, 4, 12)])
def test_nets_share_cores(nets, cores, rounds):
  plan = planned(group=0)
  (task,) = tasks_of(plan, plan.transform(apart=True))
  run = virtual.tick(plan, Fleet(nets=nets), Hardware(cores=cores), 12)
  assert run.seconds == pytest.approx(rounds * task.seconds)
  used = run.utilization['group0/trainer0']['processor']
  assert used == pytest.approx(min(nets, cores) / cores)
  waits = max(nets - cores, 0) / cores * task.seconds * 1e3  # all but the first ones
  assert run.utilization['group0/trainer0']['waiting'] <= waits + 1e-9
  assert (run.utilization['group0/trainer0']['waiting'] > 0) == (nets > cores)


def test_a_batch_alone_takes_its_critical_path():
  plan = planned()
  run = virtual.tick(plan, Fleet(), Hardware(latency=2e-4), 1)
  tasks = tasks_of(plan, plan.transform(apart=True))
  chain = sum(t.seconds for t in tasks if t.writes or t.sends)  # a chain, but for the update that ends first
  messages = sum(size / MACHINE.rate + 2e-4 for t in tasks for _, size in t.sends)
  assert messages < run.seconds <= chain + messages + 1e-12
  assert run.seconds == pytest.approx(partition.critical_path(plan, latency=2e-4).parts[-1].end, rel=0.05)


def test_lines_carry_one_message_at_a_time():
  """Far more nets than the line can serve: it is busy all the time, in one direction at least."""
  run = virtual.tick(planned(), Fleet(nets=32), Hardware(), 400)
  lines = run.utilization['group0/trainer0']
  assert 0.9 < max(lines['in'], lines['out']) <= 1.0


def test_nodes_on_one_host_share_its_cores():
  plan = planned()
  seconds = sum(t.seconds for t in tasks_of(plan, plan.transform(apart=True)))
  run = virtual.tick(plan, Fleet(groups=2, nets=4), Hardware(cores=2, one_host=True, latency=0.0), 100)
  work = seconds * 100 / 2
  assert work <= run.seconds < 1.5 * work  # dense servers take some of it


def test_busy_cores_of_a_host_slow_each_other_down():
  plan, host = planned(group=0), Hardware(cores=2, one_host=True, latency=0.0)
  crowd = dataclasses.replace(host, crowded=1.5)
  assert virtual.tick(plan, Fleet(), crowd, 20).seconds == virtual.tick(plan, Fleet(), host, 20).seconds
  both = virtual.tick(plan, Fleet(nets=2), crowd, 200).seconds / virtual.tick(plan, Fleet(nets=2), host, 200).seconds
  assert both == pytest.approx(1.5, rel=0.02)  # but for the very first task
  with pytest.raises(ValueError, match='take no less time'):
    Hardware(crowded=0.5)


def test_staleness_is_what_others_wrote():
  """Equal nets on cores of their own write in turns: each sees all others once between its read and its write."""
  run = virtual.tick(planned(group=0), Fleet(nets=4), Hardware(cores=4), 400)
  assert set(run.staleness) == {'trainer'}
  counts = run.staleness['trainer']
  assert sum(counts.values()) == 400 and max(counts) == 3
  alone = virtual.tick(planned(group=0), Fleet(), Hardware(), 50)
  assert alone.staleness['trainer'] == {0: 50} and alone.mean_staleness() == 0


def test_the_mean_is_over_all_writes():
  assert staleness.mean([{0: 3, 4: 1}, {2: 4}]) == (0 * 3 + 4 + 2 * 4) / 8
  assert staleness.mean([{}, {}]) is None


def test_slow_nodes_are_slow():
  fast = virtual.tick(planned(), Fleet(), Hardware(), 20).seconds
  slow_one = virtual.tick(planned(), Fleet(), Hardware(slow={'group0/group1': 50.0}), 20)
  assert slow_one.seconds > fast
  assert virtual.tick(planned(), Fleet(), Hardware(slow={'group1/group1': 50.0}), 20).seconds == fast


def test_enough_dense_servers_are_no_bottleneck():
  """Replicas of many groups take turns on one line, and hardly wait for ten."""
  snapshots = lambda dense: sum(e.kind == clock.CENTER for e in events(
      Fleet(groups=8), 400, planned(group=0), dense=dense, latency=0.0))
  assert snapshots(10) > 4 * snapshots(1) > 0


def events(fleet, batches=60, plan=None, seed=0, **hardware):
  return list(Clock(plan or planned(trainers=fleet.trainers), fleet, Hardware(**hardware), batches, seed).run())


def test_the_same_seed_gives_the_same_events():
  fleet = Fleet(groups=2, trainers=2, nets=3, gap=1e-3)
  first = events(fleet, jitter=0.3)
  assert first == events(fleet, jitter=0.3)
  assert first != events(fleet, jitter=0.3, seed=1)
  assert [e.time for e in first] == sorted(e.time for e in first)


def test_slack_holds_the_fast_ones_back():
  fleet = Fleet(nets=4, trainers=2)
  uneven = {'slow': {'group0/trainer1': 1000.0}}
  ahead = lambda c: _ahead(planned(trainers=2), c, uneven)
  assert ahead(fleet) > 20
  assert ahead(dataclasses.replace(fleet, slack=2)) <= 3


def _ahead(plan, fleet, hardware):
  ticking = Clock(plan, fleet, Hardware(**hardware), 120)
  most = 0
  for _ in ticking.run():
    most = max(most, int(ticking._counts.max() - ticking._counts.min()))
  return most


# The replay.

FEEDBACK = partition.Codecs('int8', 'sparse:0.7', 5)
ROUNDED = partition.Codecs('int8', 'int4', 5)  # two outputs are too few to leave any out, so that trainers lose none


@pytest.mark.parametrize('codec', [None, partition.Codecs('int8', 'bfloat16'), FEEDBACK])
def test_one_net_has_the_bits_of_the_plan(codec):
  plan = planned(optimizer='adam', codec=codec)
  run = trained(plan, Fleet(), 5, optimizer=optax.adam, fused=False)
  there, state = params(), optax.adam(RATE).init(params())
  losses, kept = [], plan.feedback(jax.random.fold_in(jax.random.key(0), 0))
  for i in range(5):
    there, state, value = plan.simulate(there, state, *batch(i), feedback=kept)
    losses.append(float(value))
  assert run.losses.tolist() == losses
  jax.tree.map(np.testing.assert_array_equal, run.model, there)


@pytest.mark.parametrize('optimizer', ['sgd', 'adam'])
def test_fused_is_the_same_to_rounding(optimizer):
  plan = planned(trainers=2, optimizer=optimizer, codec=partition.Codecs('bfloat16', 'bfloat16'))
  fleet = Fleet(groups=2, trainers=2, nets=3, gap=1e-3)
  make = {'sgd': optax.sgd, 'adam': optax.adam}[optimizer]
  fused, plain = (trained(plan, fleet, 60, optimizer=make, fused=f, hardware=Hardware(jitter=0.2))
                  for f in (True, False))
  np.testing.assert_allclose(fused.losses, plain.losses, rtol=2e-4)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), fused.model, plain.model)


def replayed(plan, fleet, batches, hardware=None, fused=True):
  """A replay after all of its events."""
  ticking = Clock(plan, fleet, hardware or Hardware(), batches)
  replay = Replay(plan, ticking.tasks, {}, fleet, (params(), optax.sgd(RATE).init(params())), batch, fused=fused)
  for event in ticking.run():
    replay.handle(event)
  return replay


def test_fused_feedback_is_the_same_to_rounding():
  """Of one net, whose messages and function are in one order."""
  plan = planned(codec=FEEDBACK)
  fused, plain = (replayed(plan, Fleet(), 8, fused=f) for f in (True, False))
  np.testing.assert_allclose(*([r.losses[i] for i in range(8)] for r in (fused, plain)), rtol=1e-4)
  for node, kept in fused.feedback[0, 0].items():
    for v, b in kept.buffers.items():
      np.testing.assert_allclose(b.residual, plain.feedback[0, 0][node].buffers[v].residual, rtol=1e-3, atol=1e-4)
      assert np.any(b.residual)


@pytest.mark.parametrize('fused', [True, False])
def test_nets_share_the_feedback_of_a_node(fused):
  plan = planned(trainers=2, codec=ROUNDED)
  replay = replayed(plan, Fleet(trainers=2, nets=2), 12, Hardware(jitter=0.2), fused)
  first, second = replay.feedback[0, 0], replay.feedback[0, 1]
  assert {'trainer', 'group1'} == set(first) == set(second)
  assert first['group1'] is second['group1'] and first['trainer'] is not second['trainer']
  forgotten = {node: sum(int(b.drained) for b in kept.buffers.values()) for node, kept in first.items()}
  assert all(forgotten.values())
  assert any(not np.array_equal(x.residual, y.residual) for x, y in
             zip(first['trainer'].buffers.values(), second['trainer'].buffers.values(), strict=True))


def test_groups_have_feedback_of_their_own():
  replay = replayed(planned(codec=FEEDBACK), Fleet(groups=2, gap=1.0), 2)
  assert replay.feedback[0, 0]['group1'] is not replay.feedback[1, 0]['group1']


def test_a_server_that_was_lost_owes_nothing():
  replay = replayed(planned(codec=ROUNDED), Fleet(), 3)
  kept = replay.feedback[0, 0]
  replay.handle(clock.Event(0.0, clock.RESTORE, 0, 'group1', 0, 0))
  assert not any(np.any(b.residual) for b in kept['group1'].buffers.values())
  assert any(np.any(b.residual) for b in kept['trainer'].buffers.values())


@pytest.mark.parametrize(('groups', 'trainers', 'nets', 'group'), [(1, 1, 4, 0), (3, 1, 2, 0), (2, 2, 3, 2)])
def test_replay_against_the_oracle(groups, trainers, nets, group):
  plan = planned(group=group, trainers=trainers)
  fleet = Fleet(groups, trainers, nets, alpha=0.2, gap=1e-3 if group else 2e-6)
  slow_ones = {f'group{g}/trainer0': 100.0 for g in range(groups)}  # so that there is time to synchronize
  ticking = Clock(plan, fleet, Hardware(jitter=0.3, slow=slow_ones), 80)
  slots = {key[:2]: found for key, found in ticking.centers.items() if key[2] == 'slots'}
  replay = Replay(plan, ticking.tasks, slots, fleet, (params(), optax.sgd(RATE).init(params())), batch)
  log = []
  for event in ticking.run():
    replay.handle(event)
    log.append(event[1:])
  home = {s.path[0]: plan.placement.slots[k] for k, s in enumerate(plan.graph.slots) if s.kind == 'parameter'}
  written = {i: [plan.graph.slots[k].path[0] for k in replay.make.updates[i][2][0]] for i in replay.make.updates}
  stores, center = asynchrony.replay(log, home, written, {k: v['w'] for k, v in params().items()},
                                     [batch(i) for i in range(80)], groups=groups, rate=RATE, alpha=0.2)
  kinds = collections.Counter(e[0] for e in log)
  assert kinds['done'] == 80 and (groups == 1) == (kinds['center'] == 0) and (groups == 1 or kinds['apply'] > 5)
  slot = {s.path[0]: k for k, s in enumerate(plan.graph.slots) if s.kind == 'parameter'}
  for g in range(groups):
    for name, x in stores[g].items():
      np.testing.assert_allclose(replay.stores[g, home[name]][slot[name]], x, rtol=2e-4, atol=2e-5)
  expected = center if groups > 1 else stores[0]
  for name, x in expected.items():
    np.testing.assert_allclose(replay.model()[name]['w'], x, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize('method', ['easgd', 'averaging', 'bmuf'])
def test_groups_learn_together(method):
  plan = planned(trainers=2)
  fleet = Fleet(3, 2, 2, dense=2, method=method, alpha=0.3, gap=1e-3)
  run = trained(plan, fleet, 400, evaluate=lambda p: float(loss(p, *batch(10**6))), evaluations=2)
  assert run.batches == 400 and [n for n, _ in run.evaluations] == [200, 400]
  assert run.evaluations[-1][1] < 0.2 * float(loss(params(), *batch(10**6)))


def test_split_layers_come_back_whole():
  plan = partition.plan(loss, optax.sgd(RATE), params(), *batch(0), nodes=partition.Nodes(group=2), machine=MACHINE,
                        splits={'a': ('vertical', 2)})
  split = plan.split(params())
  run = virtual.train(plan, Fleet(), Hardware(), (split, optax.sgd(RATE).init(split)), batch, 5, progress=False)
  whole = trained(planned(), Fleet(), 5)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), run.model, whole.model)


# Nodes that are lost.

def schedules(count, end):
  """Failures at random, the last one in the first half of what would be the end."""
  rng = np.random.default_rng(7)
  names = ['group0/trainer0', 'group0/trainer1', 'group1/trainer0', 'group0/group0', 'group1/group1', 'dense0']
  for _ in range(count):
    yield tuple(Failure(names[rng.integers(len(names))], float(rng.uniform(0, end / 2)), float(rng.uniform(0, end / 4)))
                for _ in range(rng.integers(1, 4)))


@pytest.mark.parametrize('count', [10, *slow(100)])
def test_whatever_is_lost_the_run_goes_on(count):
  fleet = Fleet(groups=2, trainers=2, nets=2, gap=0.01)
  lost, end = 0, events(fleet, 80)[-1].time
  for failures in schedules(count, end):
    log = events(fleet, 80, failures=failures, checkpoint=end / 10, jitter=0.2)
    done = collections.Counter(e.batch for e in log if e.kind == clock.DONE)
    assert done == dict.fromkeys(range(80), 1)
    lost += sum(e.kind == clock.LOST for e in log)
    servers = [f for f in failures if 'trainer' not in f.node]
    assert len(servers) == sum(e.kind == clock.RESTORE for e in log)
  assert lost > count  # some batches were tried again


def test_a_batch_that_is_tried_again_writes_once():
  """A trainer is lost when one of its batches has written on one server and not on the other."""
  plan, fleet = planned(), Fleet()
  calm = events(fleet, 3, plan)
  writes = [e for e in calm if e.kind == clock.RUN and tasks_of(plan, plan.transform(apart=True))[e.task].writes]
  between = (writes[0].time + writes[1].time) / 2
  failing = {'failures': (Failure('group0/trainer0', between, 0.01),)}
  stormy = events(fleet, 3, plan, **failing)
  assert [e.batch for e in stormy if e.kind == clock.LOST] == [0]
  tasks = tasks_of(plan, plan.transform(apart=True))
  count = collections.Counter((e.batch, e.task) for e in stormy if e.kind == clock.RUN and tasks[e.task].writes)
  assert set(count.values()) == {1} and [e.batch for e in stormy if e.kind == clock.AGAIN] == [0]
  run = trained(plan, fleet, 3, hardware=Hardware(**failing), fused=False)
  assert np.isfinite(run.losses).all()


def test_a_server_comes_back_with_its_checkpoint():
  plan, fleet = planned(), Fleet()
  end = virtual.tick(plan, fleet, Hardware(), 10).seconds
  hardware = Hardware(failures=(Failure('group0/group0', 0.55 * end, 0.1 * end),), checkpoint=0.5 * end)
  ticking = Clock(plan, fleet, hardware, 10)
  replay = Replay(plan, ticking.tasks, {}, fleet, (params(), optax.sgd(RATE).init(params())), batch, fused=False)
  (slot,) = (k for k, s in enumerate(plan.graph.slots) if s.path == 'a/w')
  saved = None
  for event in ticking.run():
    replay.handle(event)
    if event.kind == clock.CHECKPOINT and saved is None and event.node == 'group0':
      saved = np.array(replay.stores[0, 'group0'][slot])
    if event.kind == clock.RESTORE:
      np.testing.assert_array_equal(replay.stores[0, 'group0'][slot], saved)
      assert not np.array_equal(saved, params()['a']['w'])
  assert saved is not None and ticking.done == 10


# Bad input.

@pytest.mark.parametrize(('make', 'message'), [
    (lambda: Fleet(groups=0), 'one or more of everything'),
    (lambda: Fleet(method='gossip'), 'one of'),
    (lambda: Fleet(alpha=1.5), 'alpha is above 0'),
    (lambda: Fleet(gap=-1.0), 'not below 0'),
    (lambda: Hardware(cores=0), 'a core or more'),
    (lambda: Hardware(slow={'dense0': 0.0}), 'factor above 0'),
    (lambda: Hardware(failures=(Failure('dense0', -1.0),)), 'times from 0 on'),
    (lambda: virtual.tick(planned(), Fleet(nets=8), Hardware(), 7), '8 nets want a batch each'),
    (lambda: virtual.tick(planned(trainers=2), Fleet(), Hardware(), 7), 'for 2 trainers'),
    (lambda: virtual.tick(partition.plan(loss, optax.sgd(0.1), params(), *batch(0), nodes=partition.Nodes(trainers=2)),
                          Fleet(trainers=2), Hardware(), 7), 'place them on servers'),
    (lambda: events(Fleet(), failures=(Failure('group7/group0', 0.0),)), "no 'group7/group0' that could fail"),
    (lambda: virtual.train(planned(), Fleet(), Hardware(), (params(), optax.adam(0.1).init(params())), batch, 5),
     'this plan has 2 parameters'),
])
def test_bad_input(make, message):
  with pytest.raises(ValueError, match=message):
    make()


def test_updates_that_need_each_other_are_not_fused():
  clipped = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(RATE))
  rules = [partition.named('a', 'group0'), partition.named('b', 'group1')]
  plan = partition.plan(loss, clipped, params(), *batch(0), nodes=partition.Nodes(group=2), rule=rules)
  with pytest.raises(ValueError, match='use fused=False'):
    virtual.train(plan, Fleet(), Hardware(), (params(), clipped.init(params())), batch, 3, progress=False)
  run = virtual.train(plan, Fleet(), Hardware(), (params(), clipped.init(params())), batch, 3, progress=False,
                      fused=False)
  assert np.isfinite(run.losses).all()
