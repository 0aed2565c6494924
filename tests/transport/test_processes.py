"""Three real processes over TCP: equal to the simulation bit for bit, and what a death among them does."""

import functools
import io
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import jax
import numpy as np
import process
import pytest

import dct_jax
from dct_jax.train import launch

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = str(ROOT / 'tests/transport/process.py')
ENVIRONMENT = {'PYTHONPATH': str(ROOT)}


def run(task, directory):
  output = io.StringIO()
  code = launch.launch(['python', PROGRAM, task, str(directory)], process.WORKERS, timeout=150,
                       environment=ENVIRONMENT, output=output)
  assert code == 0, output.getvalue()
  return output.getvalue()


def load(path):
  with np.load(path) as file:
    return {name: file[name] for name in file.files}


def arrays(saved):
  return [saved[name] for name in saved if name.startswith('arr_')]


def assert_same_bits(a, b):
  assert len(a) == len(b) > 0
  for x, y in zip(a, b, strict=True):
    assert (x.shape, x.dtype, x.tobytes()) == (y.shape, y.dtype, y.tobytes())


@functools.cache
def simulated(name, steps):
  """The same on devices of this process, without a transport."""
  with tempfile.TemporaryDirectory() as directory:
    path = pathlib.Path(directory) / 'devices.npz'
    process.save(path, process.run(process.make(name), steps))
    return load(path)


def assert_equal_to_simulation(mine, me, devices, compare=None):
  (compare or assert_same_bits)([np.split(x, process.WORKERS)[me] for x in arrays(devices)], arrays(mine))


def assert_equal_to_rounding(a, b):
  """For plain sums, which XLA adds up in an order of its own."""
  for x, y in zip(a, b, strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_processes_equal_the_simulation_and_have_sent_what_they_say(tmp_path):
  """Laws 4 and 5, a step included in which one worker's gradient is not a number: all skip it."""
  run('train', tmp_path)
  for name in (*process.COLLECTIVES, 'push_pull'):
    saved = [load(tmp_path / f'{name}{me}.npz') for me in range(process.WORKERS)]
    # Other collectives add up in the order of workers.
    devices = simulated(name if name in ('recursive_double', 'push_pull', 's2') else 'all_gather', process.STEPS)
    for me, mine in enumerate(saved):
      assert_equal_to_simulation(mine, me, devices, assert_equal_to_rounding if name == 's2' else None)
      assert mine['skipped'] == 1
      assert np.isnan(mine['losses']).tolist() == [False, False, True, False, False]
    traffic = np.mean([s['traffic'] for s in saved])
    assert traffic > 1000
    assert abs(traffic - saved[0]['sent']) <= 8 * process.STEPS  # every step's mean is rounded
  sent = {name: float(load(tmp_path / f'{name}0.npz')['sent']) for name in process.COLLECTIVES}
  # These costs ask for few bytes. The model leaves out the heads of frames (124 bytes to every other, twice
  # a step in a split), and with messages as small as these they can turn the order.
  heads = process.STEPS * 2 * (process.WORKERS - 1) * 124
  # Doubling folds the third worker in: it sends little, others wait for it, and a mean says nothing about time.
  del sent['recursive_double']
  del sent['s2']  # is not exact
  assert sent.pop('auto') <= min(sent.values()) + heads
  assert_rows_are_summed(tmp_path)


def assert_rows_are_summed(directory):
  """Every reducer gives all processes the same, which is the sum if it is exact, for the bytes that it accounts."""
  ids, values = process.draw_rows(process.WORKERS)
  dense = lambda ids, values: np.zeros((process.ROWS + 10, process.WIDTH), np.float32) + sum(
      np.eye(process.ROWS + 10)[i][:, None] * v for i, v in zip(ids, values, strict=True))
  want = dense(ids.reshape(-1), values.reshape(-1, process.WIDTH))[:process.ROWS]
  for name, make in process.REDUCERS.items():
    saved = [load(directory / f'rows_{name}{me}.npz') for me in range(process.WORKERS)]
    for mine in saved:
      assert_same_bits([mine['ids'], mine['values']], [saved[0]['ids'], saved[0]['values']])
    if name not in ('split', 'auto'):  # which exist over a transport only
      devices = process.make_reduction(make(None), dct_jax.make_mesh(process.WORKERS))(ids, values)
    got = dense(saved[0]['ids'], saved[0]['values'])[:process.ROWS]
    if name in ('sketch', 'narrow'):
      np.testing.assert_array_equal(got, dense(*jax.device_get(devices[:2]))[:process.ROWS])
    else:
      np.testing.assert_array_equal(got, want)
    traffic = np.mean([s['traffic'] for s in saved])
    assert abs(traffic - float(saved[0]['sent'])) <= 8 + 0.01 * traffic, (name, traffic, saved[0]['sent'])


@pytest.mark.slow
def test_after_a_death_the_others_say_who_and_a_second_launch_goes_on(tmp_path):
  """SIGKILL in mid-training; then the same loss, and the same bits, as a run that nobody disturbed."""
  place = os.environ | launch._place(None, range(process.WORKERS), 1) | ENVIRONMENT
  children = [subprocess.Popen(
      [sys.executable, PROGRAM, 'die', str(tmp_path)], env=place | {'DCT_JAX_PROCESS_ID': str(i)}, text=True,
      stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for i in range(process.WORKERS)]
  try:
    children[1].communicate(timeout=120)
    death = time.monotonic()
    outputs = {i: children[i].communicate(timeout=30)[0] for i in (0, 2)}
    assert time.monotonic() - death < 30
  finally:
    for child in children:
      child.kill()
      child.wait()
  assert children[1].returncode == -9
  for i in (0, 2):
    assert children[i].returncode > 0
    assert re.search(r'dct_jax: worker \d \(127\.0\.0\.1:\d+\) (has closed|cannot be)', outputs[i]), outputs[i]

  assert f'resumed at step {process.DEATH // 2 * 2 - 2}' in run('resume', tmp_path)
  for me in range(process.WORKERS):
    resumed = load(tmp_path / f'resumed{me}.npz')
    assert_equal_to_simulation(resumed, me, simulated('all_gather', process.LAST))
    assert resumed['step'] == process.LAST
    whole = simulated('all_gather', process.LAST)['losses']
    np.testing.assert_allclose(resumed['losses'], whole[4:], rtol=1e-6)  # a psum may add in another order
