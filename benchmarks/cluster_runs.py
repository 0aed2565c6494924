"""Real runs on Ray beside the clock of virtual time, and tensors by Ray's calls beside our own connections."""

from __future__ import annotations

import os
import pathlib
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import ray
from timing import table

from dct_jax import partition
from dct_jax.models.dlrm import Dlrm
from dct_jax.partition.ready import Net
from dct_jax.runtime import Fleet, Hardware, staleness, virtual
from dct_jax.runtime.cluster import Job, Watch, calls, messages, on_ray, timing

BATCH = 512
# Groups, trainers, nets. The clock is calibrated with the first two, and has to tell of the others.
CALIBRATION = ((1, 1, 1), (1, 1, 2))
SETTINGS = ((1, 1, 4), (1, 2, 1), (1, 2, 2), (2, 1, 2))
SERVERS = 2


def net() -> Net:
  """A DLRM whose rows come with the batch."""
  model = Dlrm()
  batch = tuple(jax.ShapeDtypeStruct(s, jnp.float32) for s in ((BATCH, 13), (BATCH, 26, 16), (BATCH,)))
  params = model.init(jax.random.key(0), jnp.zeros((2, 13)), jnp.zeros((2, 26, 16)))
  loss = lambda p, x, rows, y: jnp.mean(optax.sigmoid_binary_cross_entropy(model.apply(p, x, rows), y))
  return Net(loss, optax.adagrad(0.01), params, batch)


def batches():
  """Ten different ones."""
  rng = np.random.default_rng(0)
  made = [tuple(rng.normal(size=s).astype(np.float32) for s in ((BATCH, 13), (BATCH, 26, 16), (BATCH,)))
          for _ in range(10)]
  return lambda number: made[number % 10]


def planned(trainers):
  program = net()
  return partition.plan(program.loss, program.optimizer, program.params, *program.batch,
                        nodes=partition.Nodes(group=SERVERS, trainers=trainers), splits=None,
                        rule=[partition.named('bottom*', 'group0'), partition.named('top*', 'group1')])


def real(plan, fleet, count):
  """A run on Ray."""
  with tempfile.TemporaryDirectory() as folder:
    watch = Watch(poll=0.25, checkpoint=600.0)
    return on_ray.train(Job(net, batches), plan, fleet, count, folder, watch=watch)


def clock_against_ray(count):
  """Rows of (setting, examples/s on Ray, by the clock, mean staleness of both); the first two calibrate the clock."""
  hardware = Hardware(cores=os.cpu_count() or 2, one_host=True, latency=0.0, jitter=0.1)
  costs, rows = None, []
  for groups, trainers, nets in (*CALIBRATION, *SETTINGS):
    plan, fleet = planned(trainers), Fleet(groups, trainers, nets, gap=0.1)
    ran = real(plan, fleet, count * groups)
    if costs is None:
      costs = timing.seconds_of(plan, ran, hardware)
    elif len(rows) == 1:
      hardware = timing.crowded(plan, ran, fleet, hardware, costs)
      print(f'a task takes {hardware.crowded:.2f} times as long while all cores are busy', flush=True)
    told = virtual.tick(plan, fleet, hardware, 400 * groups, seconds=costs)
    rows.append(((groups, trainers, nets), BATCH * ran.batches_per_second(), told.examples_per_second(BATCH),
                 staleness.mean(ran.staleness.values()), told.mean_staleness()))
  return rows


@ray.remote(num_cpus=0)
class Echo:
  """Gives back what it gets: by a call of Ray, and at a desk of ours."""

  def __init__(self):
    self.desk = calls.Desk(lambda head, body: messages.join(head, bytes(body)), b'echo')

  def address(self):
    return self.desk.address

  def call(self, array):
    return array


def ray_and_links(sizes=(64 << 10, 1 << 20), repeats=100):
  """Size -> median seconds there and back, by Ray and by our connections; in turns."""
  echo = Echo.remote()
  address = tuple(ray.get(echo.address.remote()))
  line, found = calls.Line(lambda: address, b'echo', 'echo'), {}
  for size in sizes:
    array = np.random.default_rng(0).integers(0, 255, size, dtype=np.uint8)
    times = {'ray': [], 'links': []}
    for _ in range(repeats):
      begin = time.perf_counter()
      ray.get(echo.call.remote(array))
      times['ray'].append(time.perf_counter() - begin)
      begin = time.perf_counter()
      line.ask(messages.join(messages.Head(messages.RUN), array.tobytes()))
      np.frombuffer(line.answer()[1], np.uint8)
      times['links'].append(time.perf_counter() - begin)
    found[size] = {name: float(np.median(t)) for name, t in times.items()}
  line.close()
  return found


def measures(count):
  """Keys of the benchmark that need Ray, after tables of what they are made of."""
  os.environ['PYTHONPATH'] = os.pathsep.join([str(pathlib.Path(__file__).parent), os.environ.get('PYTHONPATH', '')])
  os.environ.setdefault('RAY_worker_niceness', '0')  # workers would give way to all else
  with on_ray.cluster(None):
    links, rows = ray_and_links(), clock_against_ray(count)
  table('there_and_back', 'there and back, ms', [('', 'Ray', 'our connections'), *(
      (f'{size >> 10} KB', *(f'{1e3 * times[k]:.2f}' for k in ('ray', 'links'))) for size, times in links.items())])
  table('clock', 'the clock beside Ray', [
      ('groups, trainers, nets', 'examples/s on Ray', 'by the clock', 'over', 'staleness on Ray', 'by the clock'), *(
          (' x '.join(map(str, setting)), f'{ran:,.0f}', f'{told:,.0f}', f'{told / ran:.2f}', f'{a:.2f}', f'{b:.2f}')
          for setting, ran, told, a, b in rows)])
  return {'clock_error': max(abs(told / ran - 1) for _, ran, told, _, _ in rows[len(CALIBRATION):]),
          'ray_over_links_1mb': links[1 << 20]['ray'] / links[1 << 20]['links'],
          'ray_over_links_64kb': links[64 << 10]['ray'] / links[64 << 10]['links']}
