"""A cluster on Ray: processes of its own for every node, which are really killed."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import clusters
import numpy as np
import pytest

from dct_jax.runtime import Fleet
from dct_jax.runtime.cluster import Watch

ray = pytest.importorskip('ray', reason="Ray comes with the extra 'hierarchical'")
from dct_jax.runtime.cluster import on_ray  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('ignore'), pytest.mark.xdist_group('ray')]


@pytest.fixture(scope='module', autouse=True)
def cluster():
  os.environ['PYTHONPATH'] = os.pathsep.join([str(pathlib.Path(__file__).parent), os.environ.get('PYTHONPATH', '')])
  with on_ray.cluster(None):
    yield


def test_one_net_has_the_bits_of_one_process(tmp_path):
  plan = clusters.planned()
  run = on_ray.train(clusters.JOB, plan, Fleet(), 12, tmp_path)
  losses, params = clusters.simulated(plan, clusters.JOB, 12)
  assert [run.losses[i] for i in range(12)] == losses and clusters.same_bits(run.model, params)


def test_every_kind_of_node_may_be_killed(tmp_path):
  """One run, in which processes of all kinds are killed one after the other, each when the one before is back."""
  victims = ['group0/trainer0', 'group1/group0', 'sparse0', 'dense0', 'reader0']
  left, killed = list(victims), {}

  def kill(look):
    back = not killed or look.nodes.get(list(killed)[-1], {}).get('pid') not in (None, *killed.values())
    if left and back and look.done > 100 * (len(killed) + 1) and left[0] in look.nodes:
      name = left.pop(0)
      killed[name] = look.nodes[name]['pid']
      os.kill(killed[name], signal.SIGKILL)

  watch = Watch(poll=0.1, checkpoint=1.0, show=kill)
  fleet = Fleet(groups=2, nets=2, gap=0.05)
  run = on_ray.train(clusters.TABLES, clusters.planned_tables(), fleet, 12_000, tmp_path, watch=watch)
  assert not left
  for name in victims:
    assert any(f'{name} is lost' in line for line in run.log), (name, run.log)
    assert any(f'{name} is back' in line for line in run.log), (name, run.log)
  for name in ('group1/group0', 'sparse0', 'dense0'):
    assert any(f'{name} goes on from checkpoint' in line for line in run.log), run.log
  assert run.timeline[-1][1] == 12_000
  assert np.mean([run.losses[i] for i in sorted(run.losses)[-200:]]) < np.mean([run.losses[i] for i in range(50)])


def test_a_killed_driver_is_resumed(tmp_path):
  script = tmp_path / 'drive.py'
  script.write_text(textwrap.dedent(f'''
      import sys
      import clusters
      from dct_jax.runtime import Fleet
      from dct_jax.runtime.cluster import Watch, on_ray
      on_ray.train(clusters.JOB, clusters.planned(), Fleet(), 3000, {str(tmp_path / "run")!r},
                   watch=Watch(poll=0.1, checkpoint=1.0))
  '''))
  environment = {**os.environ, 'JAX_PLATFORMS': 'cpu'}
  process = subprocess.Popen([sys.executable, script], env=environment, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
  saved = tmp_path / 'run/checkpoints'
  deadline = time.monotonic() + 180
  while len(list(saved.glob('*/group0.json'))) < 2 and time.monotonic() < deadline:
    time.sleep(0.2)
    assert process.poll() is None, 'the driver ended by itself'
  process.kill()
  process.wait()
  run = on_ray.train(clusters.JOB, clusters.planned(), Fleet(), 3000, tmp_path / 'run', resume=True)
  assert sorted(run.losses) == list(range(3000))
  assert any('goes on from checkpoint' in line for line in run.log)


def test_a_dead_address_is_told_at_once(tmp_path):
  begin = time.monotonic()
  with pytest.raises(ValueError, match="no Ray cluster at '127.0.0.1:9'"):
    on_ray._reach('127.0.0.1:9')
  assert time.monotonic() - begin < 10
