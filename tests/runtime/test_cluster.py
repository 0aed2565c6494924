"""A cluster on threads, over real connections: bits, asynchrony, synchronization, losses of nodes, files, strangers."""

import json
import pathlib
import socket
import threading
import time

import clusters
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dct_jax import partition
from dct_jax.runtime import Fleet, Hardware, virtual
from dct_jax.runtime.cluster import Job, Published, Watch, calls, driver, job, messages, saves, threads, timing
from dct_jax.runtime.cluster.reader import Gate, Journal
from dct_jax.runtime.cluster.server import Server
from dct_jax.runtime.cluster.store import Store
from dct_jax.train import claims
from dct_jax.transport import door

QUICK = Watch(poll=0.02)


# One net: the bits of one process.

@pytest.mark.parametrize(('plan', 'task'), [
    (clusters.planned, clusters.JOB), (lambda: clusters.planned(group=0), clusters.JOB),
    (lambda: clusters.planned(codec=partition.Codecs('int8', 'bfloat16')), clusters.JOB),
    (clusters.planned_tables, clusters.TABLES)], ids=['servers', 'trainer', 'codecs', 'tables'])
def test_one_net_has_the_bits_of_one_process(plan, task, tmp_path):
  plan = plan()
  run = threads.train(task, plan, Fleet(), 12, tmp_path, watch=QUICK)
  losses, params = clusters.simulated(plan, task, 12)
  assert [run.losses[i] for i in range(12)] == losses
  assert clusters.same_bits(run.model, params)
  assert all(set(counts) <= {0} for counts in run.staleness.values())


def test_split_layers_come_back_joined(tmp_path):
  net = clusters.make_net()
  plan = partition.plan(net.loss, net.optimizer, net.params, *net.batch, nodes=partition.Nodes(group=2),
                        splits={'a': ('vertical', 2)})
  run = threads.train(clusters.JOB, plan, Fleet(), 6, tmp_path, watch=QUICK)
  assert jax.tree.map(np.shape, run.model) == jax.tree.map(np.shape, net.params)
  assert not clusters.same_bits(run.model, net.params)


# Many nets.

@pytest.mark.parametrize('method', ['easgd', 'averaging', 'bmuf'])
def test_groups_of_trainers_train_and_are_pulled_together(method, tmp_path):
  fleet = Fleet(groups=2, trainers=2, nets=2, dense=2, method=method, alpha=0.5, gap=0.01)
  run = threads.train(clusters.JOB, clusters.planned(trainers=2), fleet, 400, tmp_path, watch=QUICK)
  assert sorted(run.losses) == list(range(400))
  assert np.mean([run.losses[i] for i in range(380, 400)]) < 0.5 * np.mean([run.losses[i] for i in range(20)])
  assert max(max(counts) for counts in run.staleness.values() if counts) > 0
  assert sum(run.staleness['group0/group0'].values()) + sum(run.staleness['group1/group0'].values()) == 400


def test_slack_keeps_nets_together():
  gate = Gate({0: 0, 1: 0, 2: 1}, slack=1)
  assert gate.open_for(1, 0)  # it counts from here on
  for _ in range(2):
    assert gate.open_for(0, 0)
    gate.count(0)
  assert not gate.open_for(0, 0.01) and gate.open_for(1, 0) and gate.open_for(2, 0)
  gate.count(1)
  assert gate.open_for(0, 0)
  gate.count(0)
  assert not gate.open_for(0, 0)
  gate.leave(1)
  assert gate.open_for(0, 0)


def test_nets_that_have_ended_hold_nobody_back():
  """A reader that is lost near the end has a new gate. Nets that have had their last batch never ask again."""
  gate = Gate({0: 0, 1: 0}, slack=0)
  for _ in range(5):
    assert gate.open_for(0, 0)
    gate.count(0)


# An update that is tried again.

def test_a_round_updates_once_however_often_it_is_asked_for():
  plan = clusters.planned()
  server = Server(plan, 'group1', leaves_of(plan))
  updating = next(s.round for s in server.program.steps if any(r.phase == 'update' for r in s.runs))
  server.begin(7, 3, 100, {})
  assert server.first_time(7, 3, 100, updating) and not server.first_time(7, 3, 100, updating)
  server.begin(7, 3, 101, {})
  assert not server.first_time(7, 3, 101, updating)
  with pytest.raises(ConnectionError, match='has begun anew'):  # a thread of the attempt before, which was slow
    server.first_time(7, 3, 100, updating)
  assert server.first_time(7, 4, 102, updating) and server.first_time(8, 4, 1, updating)


def test_late_and_unknown_attempts_are_sent_away():
  """A server that has been restarted, or is asked by a connection of the past, lets the net begin anew."""
  plan = clusters.planned()
  server, net = Server(plan, 'group0', leaves_of(plan)), 5
  first, *_, last = (s.round for s in server.program.steps)
  body = server._in[first].pack(jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), server._in[first].shapes))
  ask = lambda number, batch, stamp: server.answer(messages.Head(messages.RUN, number, net, batch, stamp), body)
  with pytest.raises(ConnectionError, match='does not know this attempt'):
    ask(last, 0, 10)
  ask(first, 1, 20)
  with pytest.raises(ConnectionError, match='does not know this attempt'):
    ask(first, 0, 10)  # what came late must not replace what is under way
  seen = server._under_way[net]
  ask(first, 1, 30)  # the same batch, tried again, reads anew
  assert server._under_way[net] is not seen and server._under_way[net].stamp == 30


def leaves_of(plan):
  net = clusters.make_net()
  return jax.tree.leaves((net.params, net.optimizer.init(net.params)))


def test_what_was_begun_and_not_done_is_no_part_of_a_checkpoint():
  plan = clusters.planned()
  server = Server(plan, 'group0', leaves_of(plan))
  server.first_time(7, 3, 1, 5)
  server.first_time(8, 3, 1, 5)
  server.applied(8, 3, 5)
  server.restore(server.arrays())
  assert server.first_time(7, 3, 1, 5) and not server.first_time(8, 3, 1, 5)


# Nodes that are lost.

@pytest.mark.parametrize('name', ['group0/group1', 'sparse0', 'dense0', 'reader0', 'group1/trainer0'])
def test_a_lost_node_comes_back_and_all_batches_are_done(name, tmp_path):
  """Every node in turn is dropped in the middle, with all that it knew."""
  tables = name == 'sparse0'
  task = clusters.TABLES if tables else clusters.JOB
  plan = clusters.planned_tables() if tables else clusters.planned()
  fleet, lost = Fleet(groups=2, nets=2, gap=0.01), threading.Event()
  blueprint = job.blueprint(task, plan, fleet, 600)
  crew = threads.Threads(blueprint, driver.prepare(blueprint, job.names_of(plan, fleet, 1), tmp_path, False))

  def drop(look):
    if look.done > 60 and not lost.is_set() and list((tmp_path / 'checkpoints').glob('*/group1.json')):  # the last part
      lost.set()
      crew.lose(name)

  try:
    run = driver.Driver(crew, plan, blueprint, tmp_path, Watch(poll=0.02, checkpoint=0.05, show=drop)).run()
  finally:
    crew.close()
  assert lost.is_set() and any(f'{name} is lost' in line for line in run.log)
  assert any(f'{name} is back' in line for line in run.log)
  restored = any(f'{name} goes on from checkpoint' in line for line in run.log)
  assert restored == (name not in ('reader0', 'group1/trainer0'))  # those have nothing, or a journal
  assert crew._members['reader0'].body.done == 600
  assert len(run.losses) >= 580  # a lost trainer takes some that it had not told with it


def test_a_run_goes_on_where_its_checkpoint_was(tmp_path):
  """The driver and all nodes end in the middle, as if they had been killed."""
  plan, fleet = clusters.planned(), Fleet()
  blueprint = job.blueprint(clusters.JOB, plan, fleet, 200)
  crew = threads.Threads(blueprint, driver.prepare(blueprint, job.names_of(plan, fleet, 1), tmp_path, False))
  watch = driver.Driver(crew, plan, blueprint, tmp_path, QUICK)
  while sum(watch._done.values()) < 40:
    watch._look()
    time.sleep(0.02)
  watch.save()
  acknowledged = json.loads((watch.checkpoints.whole('group0')[-1] / 'group0.json').read_text())['batches']
  crew.close()
  time.sleep(0.2)
  with pytest.raises(ValueError, match='has a run already'):
    threads.train(clusters.JOB, plan, fleet, 200, tmp_path)
  run = threads.train(clusters.JOB, plan, fleet, 200, tmp_path, watch=QUICK, resume=True)
  assert acknowledged >= 40 and sorted(run.losses) == list(range(200))
  assert any('goes on from checkpoint' in line for line in run.log)
  assert sum(run.staleness['group0/group0'].values()) <= 200 - acknowledged + 1
  again = threads.train(clusters.JOB, plan, fleet, 200, tmp_path, watch=QUICK, resume=True)  # nothing is left to do
  assert clusters.same_bits(again.model, run.model)


def test_nodes_that_announce_to_leave_go_together(tmp_path):
  plan, asked = clusters.planned(), threading.Event()

  def announce(look):
    if look.done > 20 and not asked.is_set():
      asked.set()
      (tmp_path / 'maintenance').mkdir()
      for name in ('group0.group0', 'group0.group1'):
        (tmp_path / 'maintenance' / name).touch()

  watch = Watch(poll=0.02, checkpoint=100.0, defer=0.1, show=announce)
  run = threads.train(clusters.JOB, plan, Fleet(nets=2), 400, tmp_path, watch=watch)
  left = [i for i, line in enumerate(run.log) if 'leaves for maintenance' in line]
  assert len(left) == 2 and left[1] == left[0] + 1
  assert any('goes on from checkpoint' in line for line in run.log[left[1]:])
  assert not list((tmp_path / 'maintenance').iterdir())


# Models for predictions.

def test_published_models_are_whole_while_training_goes_on(tmp_path):
  plan, seen = clusters.planned(), []
  published = Published(tmp_path / 'published', plan)

  def serve(look):
    try:
      seen.append(published.newest()[1])
    except FileNotFoundError:
      pass

  fleet = Fleet(groups=2, gap=0.01)
  run = threads.train(clusters.JOB, plan, fleet, 300, tmp_path, watch=Watch(poll=0.02, publish=0.05, show=serve))
  model, notes = published.newest()
  assert clusters.same_bits(model, run.model) and notes['batches'] == 300
  assert len({n['number'] for n in seen}) > 1 and [n['number'] for n in seen] == sorted(n['number'] for n in seen)
  assert len(run.publishing) >= 2 and max(run.publishing) < 5


def test_damaged_and_foreign_models_are_refused(tmp_path):
  plan = clusters.planned()
  with pytest.raises(FileNotFoundError, match='no model has been published'):
    Published(tmp_path, plan).newest()
  place = saves.Saves(tmp_path).begin()
  saves.write(place / 'a.npz', {'0': np.zeros(3, np.float32)})
  saves.Saves(tmp_path).finish(place, 'model', {'files': ['a.npz'], 'program': 'another'})
  with pytest.raises(ValueError, match='model of another program'):
    Published(tmp_path, plan).newest()
  saves.Saves(tmp_path).finish(place, 'model', {'files': ['a.npz'], 'program': plan.graph.fingerprint})
  with pytest.raises(ValueError, match='parameters are missing'):
    Published(tmp_path, plan).newest()
  data = bytearray((place / 'a.npz').read_bytes())
  data[len(data) // 3] ^= 1
  (place / 'a.npz').write_bytes(data)
  with pytest.raises(ValueError, match='is damaged'):
    Published(tmp_path, plan).newest()


def test_an_older_checkpoint_is_better_than_a_damaged_one(tmp_path):
  kept = saves.Saves(tmp_path)
  for i in range(4):
    place = kept.begin()
    saves.write(place / 'dense0.npz', {'x': np.full(100, i)})
    kept.finish(place, 'dense0', {})
  assert [p.name for p in kept.whole('dense0')] == ['000003', '000004']  # two are kept
  path = kept.whole('dense0')[-1] / 'dense0.npz'
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 4
  path.write_bytes(data)
  place, arrays = kept.newest('dense0', 'dense0')
  assert place.name == '000003' and arrays['x'][0] == 2
  (place / 'dense0.npz').unlink()
  with pytest.raises(ValueError, match='no checkpoint of dense0 can be read'):  # it must not begin anew in silence
    kept.newest('dense0', 'dense0')
  assert kept.newest('dense1', 'dense1') is None


# Stores, readers and lines.

def test_checkpoints_of_other_nodes_are_refused():
  plan = clusters.planned()
  leaves = jax.tree.leaves(clusters.params())
  store = Store(plan.graph, {0: leaves[0]})
  with pytest.raises(ValueError, match='another plan or node: slots 0'):
    store.restore({'0': np.zeros((2, 2), np.float32)})


def test_a_reader_gives_every_batch_to_one_net_and_again_to_who_has_lost_it(tmp_path):
  journal = Journal(tmp_path / 'j', [4, 9])
  turn = lambda t: t if t < 3 else None
  assert journal.take(4, turn) == 0 and journal.take(9, turn) == 1 and journal.take(4, turn) == 0
  assert journal.finish(4, 0) and not journal.finish(4, 0) and journal.done == 1
  assert Journal(tmp_path / 'j', [4, 9]).take(9, turn) == 1  # a new process
  assert journal.take(4, turn) == 2 and journal.finish(4, 2) and journal.take(4, turn) is None
  with pytest.raises(ValueError, match='no net 5'):
    journal.take(5, turn)


def test_two_readers_share_the_batches(tmp_path):
  fleet = Fleet(groups=2, gap=0.01)
  run = threads.train(clusters.JOB, clusters.planned(), fleet, 101, tmp_path, readers=2, watch=QUICK)
  assert sorted(run.losses) == list(range(101))


def desk(answer=lambda head, body: messages.join(head, bytes(body)), token=b'secret'):
  return calls.Desk(answer, token)


def test_lines_carry_questions_and_errors():
  served = desk()
  line = calls.Line(lambda: served.address, b'secret', 'it')
  for body in (b'', b'x' * 300_000):
    line.ask(messages.join(messages.Head(messages.RUN, batch=5), body))
    head, came = line.answer()
    assert bytes(came) == body and head.batch == 5
  served.close()
  with pytest.raises(ConnectionError, match='it is gone'):
    for _ in range(3):
      line.ask(messages.join(messages.Head(messages.RUN)))
      line.answer()
  broken = desk(lambda head, body: 1 / 0)
  line = calls.Line(lambda: broken.address, b'secret', 'it')
  line.ask(messages.join(messages.Head(messages.RUN)))
  with pytest.raises(RuntimeError, match='it says: ZeroDivisionError'):
    line.answer()
  broken.close()


def test_strangers_and_damaged_messages_get_nothing():
  served = desk()
  line = calls.Line(lambda: served.address, b'wrong', 'it')
  with pytest.raises(ConnectionError, match='it is gone'):
    line.ask(b'')
  silent = [socket.create_connection(served.address) for _ in range(50)]
  silent[0].sendall(b'\xff' * 100)
  good = calls.Line(lambda: served.address, b'secret', 'it')
  good.ask(messages.join(messages.Head(messages.RUN), b'abc'))
  assert bytes(good.answer()[1]) == b'abc'
  whole = bytearray(messages.join(messages.Head(messages.RUN), b'abc'))
  for i in (len(whole) - 1, *range(messages.HEAD.size)):  # every byte of the head
    hurt = bytearray(whole)
    hurt[i] ^= 1
    good.ask(bytes(hurt))
    with pytest.raises(ConnectionError, match='it is gone'):  # the desk hangs up, so that it is asked anew
      good.answer()
  for s in silent:
    s.close()
  served.close()


def test_a_length_is_not_believed():
  """A message that claims more than there may be ends its connection, and nothing is allocated for it."""
  served = desk()
  with door.enter(served.address, b'secret', until=time.monotonic() + 5) as wire:
    wire.setblocking(True)
    wire.settimeout(5)
    wire.sendall(b'\xff\xff\xff\xff' + (1 << 40).to_bytes(8, 'big'))
    assert wire.recv(1) == b''
  served.close()


# What does not fit.

def test_what_does_not_fit_is_refused_before_anything_starts(tmp_path):
  plan = clusters.planned()
  train = lambda *args, **options: threads.train(*args, **options)
  with pytest.raises(ValueError, match='6 nets want a batch each, got batches=5'):
    train(clusters.JOB, plan, Fleet(groups=2, nets=3), 5, tmp_path)
  with pytest.raises(ValueError, match='for 1 trainers'):
    train(clusters.JOB, plan, Fleet(trainers=2), 5, tmp_path)
  with pytest.raises(ValueError, match='another program'):
    train(clusters.TABLES, plan, Fleet(), 5, tmp_path)
  with pytest.raises(ValueError, match='readers=2 for 1 groups'):
    train(clusters.JOB, plan, Fleet(), 5, tmp_path, readers=2)
  with pytest.raises(ValueError, match='trainer would hold'):
    job.fits(plan, 100.0)
  with pytest.raises(ValueError, match='times are positive'):
    Watch(poll=0)
  threads.train(clusters.JOB, plan, Fleet(), 2, tmp_path / 'a', watch=QUICK)
  with pytest.raises(ValueError, match='another run, which differs in fleet'):
    train(clusters.JOB, plan, Fleet(nets=2), 2, tmp_path / 'a', resume=True)
  assert not pathlib.Path(tmp_path / 'run.json').exists()


def test_a_net_that_fails_for_another_reason_ends_the_run(tmp_path):
  def broken():
    return lambda number: (np.zeros((3, 3), np.float32),) * 2

  with pytest.raises(RuntimeError, match=r'cannot go on.*the plan has float32\[16, 6\] here, got float32\[3, 3\]'):
    threads.train(Job(clusters.make_net, broken), clusters.planned(), Fleet(), 5, tmp_path, watch=QUICK)


def test_readers_convert_what_the_data_has(tmp_path):
  wide = lambda: lambda number: tuple(x.astype(np.float64) for x in clusters.batch(number))
  run = threads.train(Job(clusters.make_net, wide), clusters.planned(), Fleet(), 3, tmp_path, watch=QUICK)
  assert run.losses[2] == clusters.simulated(clusters.planned(), clusters.JOB, 3)[0][2]


def test_what_gradients_lose_is_kept(tmp_path):
  """Error feedback on edges, with the bits of one process that keeps the same buffers."""
  codec = partition.Codecs('int8', 'int4', feedback=50)
  plan = clusters.planned(codec=codec)
  run = threads.train(clusters.JOB, plan, Fleet(), 8, tmp_path, watch=QUICK)
  net, losses, kept = clusters.make_net(), [], plan.feedback(jax.random.key(0))
  held, state = net.params, net.optimizer.init(net.params)
  for i in range(8):
    held, state, loss = plan.simulate(held, state, *clusters.batch(i), feedback=kept)
    losses.append(float(loss))
  assert any(found.buffers for found in kept.values())
  assert [run.losses[i] for i in range(8)] == losses


def test_a_look_is_drawn_and_kept_as_curves(tmp_path):
  """A table of all nodes, lost ones left out, and numbers for TensorBoard."""
  view = pytest.importorskip('dct_jax.runtime.cluster.view', reason="rich comes with the extra 'hierarchical'")
  looks = []
  with view.showing(16, terminal=False, logdir=tmp_path / 'curves') as show:
    keep = lambda look: (looks.append(look), show(look))
    threads.train(clusters.JOB, clusters.planned(), Fleet(groups=2, nets=2, gap=0.01), 200, tmp_path / 'run',
                  watch=Watch(poll=0.05, show=keep))
  last = looks[-1]
  drawn = view.table(last, 16)
  assert drawn.row_count == len(last.nodes) == 8 and '200 of 200 batches' in drawn.title
  found = view.scalars(last, 16)
  assert found['loss'] == last.loss and found['staleness/group0/group0'] >= 0
  assert list((tmp_path / 'curves').glob('events*'))
  empty = view.table(driver.Look(0.0, 0, 5, 0.0, float('nan'), {}), 16)
  assert empty.row_count == 0


def test_the_clock_is_calibrated_with_a_run_of_one_net(tmp_path):
  """By the clock a batch of one net takes what it took; nothing takes less than nodes told."""
  plan, hardware = clusters.planned(), Hardware(cores=2, one_host=True, latency=0.0)
  run = threads.train(clusters.JOB, plan, Fleet(), 150, tmp_path, watch=QUICK)
  costs = timing.seconds_of(plan, run, hardware)
  assert set(costs) == set(run.spent) and all(costs[key] >= spent > 0 for key, spent in run.spent.items())
  told = virtual.tick(plan, Fleet(), hardware, 50, seconds=costs)
  assert told.batches / told.seconds == pytest.approx(run.batches_per_second(), rel=0.01)
  twice = virtual.tick(plan, Fleet(), hardware, 50, seconds={key: 2 * s for key, s in costs.items()})
  assert twice.seconds == pytest.approx(2 * told.seconds)


# What others found.

def test_files_keep_every_type(tmp_path):
  arrays = {'a': jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3), 'b': np.zeros((), np.int32),
            'c': np.ones(2, bool), 'd': np.ones(3, np.float16)}
  saves.write(tmp_path / 'x.npz', arrays)
  found = saves.read(tmp_path / 'x.npz')
  assert {k: (x.dtype, x.shape) for k, x in found.items()} == {k: (x.dtype, x.shape) for k, x in arrays.items()}
  assert found['a'].tobytes() == np.asarray(arrays['a']).tobytes()


def test_all_parts_go_on_from_the_same_checkpoint(tmp_path):
  """One part has no third checkpoint. The others forget theirs, or batches would be left out for that one."""
  kept = saves.Saves(tmp_path)
  for i in range(3):
    place = kept.begin()
    for part in ('reader0', 'group0') if i < 2 else ('reader0',):
      saves.write(place / f'{part}.npz', {'x': np.full(3, i)})
      kept.finish(place, part, {})
  kept.level({'reader0', 'group0'})
  assert [kept.newest(part, part)[0].name for part in ('reader0', 'group0')] == ['000002', '000002']
  assert not (tmp_path / '000003').exists()


def test_what_gradients_are_owed_is_in_a_checkpoint():
  plan = clusters.planned(codec=partition.Codecs('int8', 'int4', feedback=50))
  server, again = (Server(plan, 'group1', leaves_of(plan)) for _ in range(2))
  (value, buffer), *_ = server.feedback.buffers.items()
  server.feedback.buffers[value] = buffer._replace(residual=buffer.residual + 3)
  again.restore(server.arrays())
  there = again.feedback.buffers[value]
  assert (there.residual == 3).all() and jax.random.key_data(there.key).tolist() == jax.random.key_data(
      buffer.key).tolist()


def test_a_center_that_no_group_has_come_to_is_no_model(tmp_path):
  """The run ends before the first synchronization; what was trained is the model, and not what it began with."""
  run = threads.train(clusters.JOB, clusters.planned(), Fleet(groups=2, gap=1000.0), 200, tmp_path, watch=QUICK)
  assert not clusters.same_bits(run.model, clusters.params())


def test_a_directory_has_one_driver(tmp_path):
  with claims.alone(tmp_path), pytest.raises(ValueError, match='still at work'):
    threads.train(clusters.JOB, clusters.planned(), Fleet(), 2, tmp_path)


def test_nobody_waits_for_ever(tmp_path):
  """A loader that does not come back ends the run, with what is known."""
  def stuck():
    return lambda number: time.sleep(3) or clusters.batch(number)

  with pytest.raises(RuntimeError, match='no batch has been done for 1 s, 0 of 5'):
    threads.train(Job(clusters.make_net, stuck), clusters.planned(), Fleet(), 5, tmp_path,
                  watch=Watch(poll=0.05, patience=1.0))


def test_numbers_that_would_become_others_are_refused(tmp_path):
  floats = lambda: lambda number: tuple(x.astype(np.float32) for x in clusters.table_batch(number))
  far = lambda ids, y: (ids.astype(np.int64) + 2**32, y)
  large = lambda: lambda number: far(*clusters.table_batch(number))
  for batches, message in ((floats, 'float32 would be other numbers'), (large, 'some numbers of int64 are too large')):
    with pytest.raises(RuntimeError, match=message):
      threads.train(Job(clusters.make_table_net, batches), clusters.planned_tables(), Fleet(), 5,
                    tmp_path / message[:5], watch=QUICK)


def test_jobs_begin_with_arrays_and_messages_that_fit(tmp_path, monkeypatch):
  shaped = Job(lambda: clusters.make_net()._replace(params=jax.eval_shape(clusters.params)), clusters.make_batches)
  with pytest.raises(ValueError, match='parameters that are arrays, got shapes'):
    threads.train(shaped, clusters.planned(), Fleet(), 5, tmp_path)
  monkeypatch.setattr(messages, 'MOST', 300)
  with pytest.raises(ValueError, match='would have 512 bytes, and 300 is the most'):
    threads.train(clusters.JOB, clusters.planned(), Fleet(), 5, tmp_path)


def test_a_full_disk_costs_a_checkpoint_and_no_run(tmp_path, monkeypatch):
  write, failed = saves.write, []

  def full(path, arrays):
    if 'group1' in str(path) and not failed:
      failed.append(path)
      raise OSError(28, 'No space left on device')
    write(path, arrays)

  monkeypatch.setattr(saves, 'write', full)
  run = threads.train(clusters.JOB, clusters.planned(), Fleet(), 300, tmp_path, watch=Watch(poll=0.02, checkpoint=0.05))
  assert failed and any('no checkpoint of group0 this time' in line for line in run.log) and len(run.losses) == 300
