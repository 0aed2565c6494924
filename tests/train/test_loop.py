"""The loop."""

import itertools
import os
import signal

import jax
import numpy as np
import optax
import program
import pytest

import dct_jax
from dct_jax import train

pytestmark = pytest.mark.plain_code


def test_totals_are_sums_over_all_steps():
  every = program.Program(8).run(9)
  seldom = program.Program(8).run(9, log_every=4)
  assert every.step == seldom.step == 9
  assert [line['step'] for line in seldom.history] == [4, 8, 9]
  for name in ('encoded', 'moved', 'sent', 'overflow'):
    total = sum(line[f'{name}_bytes'] for line in every.history)
    assert every.history[-1][f'total_{name}_bytes'] == total
    assert seldom.history[-1][f'total_{name}_bytes'] == total
  assert type(every.history[-1]['total_sent_bytes']) is int
  dense = 4 * sum(a * b for a, b in program.SIZES.values())
  last = every.history[-1]
  assert last['compression'] == pytest.approx(dense / last['encoded_bytes'])


def test_evaluates_every_so_often_and_at_the_end():
  seen = program.Program(2).run(5, log_every=100, evaluate_every=2,
                                evaluate=lambda p, _: {'w': p['w1'][0, 0]}).history
  assert [line['step'] for line in seen] == [2, 4, 5]
  assert all('eval/w' in line for line in seen)


def with_nan(mesh, at):
  for i, batch in enumerate(program.make_batches(mesh)):
    yield jax.tree.map(lambda x: x * float('nan'), batch) if i == at else batch


def test_a_nan_that_was_skipped_does_not_stop():
  p = program.Program(4)
  result = train.run(p.step, p.params, p.state, with_nan(p.mesh, 2), steps=4, progress=False, log_every=1)
  assert result.history[2]['loss'] != result.history[2]['loss']
  assert result.history[-1]['nonfinite'] == 4
  assert result.history[-1]['loss'] == result.history[-1]['loss']  # the update was skipped


@pytest.mark.parametrize(('caught', 'stops'), [(False, 'step 3'), (True, 'step 12')])
def test_nan_stops_with_the_step(caught, stops):
  """At once when nobody caught it; after ten in a row when a compressed mean did."""

  def step(params, state, batch):
    loss = np.float32('nan' if batch >= 2 else 1)
    return params, state, {'loss': loss, 'nonfinite': np.uint32(max(0, batch - 1) if caught else 0)}

  go = lambda **kw: train.run(step, {}, (), range(20), steps=20, progress=False, **kw)
  with pytest.raises(FloatingPointError, match=stops):
    go()
  assert go(stop_on_nan=False).step == 20


@pytest.mark.parametrize(('name', 'error', 'text'), [
    ('corrupt', RuntimeError, '2 messages failed their checks in step 3'),
    ('refused', FloatingPointError, '2 workers have a gradient with NaN or infinity in step 3')])
def test_what_a_program_counts_the_loop_raises_for(name, error, text):

  def step(params, state, batch):
    return params, state, {'loss': np.float32(1), name: np.uint32(2 if batch >= 2 else 0)}

  with pytest.raises(error, match=text):
    train.run(step, {}, (), range(20), steps=20, progress=False, stop_on_nan=False)


def test_a_refused_gradient_stops_training(tmp_path):
  """With `nonfinite='raise'`, in the step that it is in; nothing of it is saved."""
  p = program.Program(2, optax.chain(dct_jax.dct_dp(0.95, 4, 'data', nonfinite='raise'), optax.sgd(0.05)))
  checkpoints = train.Checkpoints(tmp_path, {})
  with pytest.raises(FloatingPointError, match='in step 3'):
    train.run(p.step, p.params, p.state, with_nan(p.mesh, 2), steps=5, progress=False, checkpoints=checkpoints,
              checkpoint_every=1)
  assert checkpoints.latest() == 2


def test_replicas_that_part_in_training_are_found_and_named():
  """One device's copy changes by a bit."""
  p, seen = program.Program(4), []

  def step(params, state, batch):
    params, state, scalars = p.step(params, state, batch)
    seen.append(1)
    if len(seen) == 3:
      copies = [np.array(s.data) for s in params['w1'].addressable_shards]
      copies[2].view(np.uint32)[0, 0] ^= 1
      devices = [s.device for s in params['w1'].addressable_shards]
      placed = [jax.device_put(x, d) for x, d in zip(copies, devices, strict=True)]
      params['w1'] = jax.make_array_from_single_device_arrays(params['w1'].shape, params['w1'].sharding, placed)
    return params, state, scalars

  with pytest.raises(RuntimeError, match=r"differ between workers, the first is \['w1'\].*workers \[0, 1, 3\] have .*"
                                         r'workers \[2\] have'):
    train.run(step, p.params, p.state, program.make_batches(p.mesh), steps=9, progress=False, compare_every=2)
  assert len(seen) == 4


def test_too_few_batches_end_early():
  p = program.Program(2)
  batches = itertools.islice(program.make_batches(p.mesh), 3)
  result = train.run(p.step, p.params, p.state, batches, steps=5, progress=False)
  assert result.step == 3
  assert [line['step'] for line in result.history] == [3]


def test_nothing_to_do():
  p = program.Program(2)
  result = p.run(3, start=3)
  assert (result.step, result.history) == (3, [])


def test_progress_bar(capsys):
  program.Program(2).run(3, progress=True)
  shown = capsys.readouterr().err
  for word in ('3/3', 'loss=', 'density=', 'compression=', 'sent='):
    assert word in shown


def pressing(batches, at, number=signal.SIGINT):
  """Presses Ctrl-C, or sends another signal, while step `at` runs."""
  for i, batch in enumerate(batches):
    if i == at:
      os.kill(os.getpid(), number)
    yield batch


def test_ctrl_c_saves(tmp_path, capsys):
  p = program.Program(2)
  checkpoints = train.Checkpoints(tmp_path, {})
  before = signal.getsignal(signal.SIGINT)
  with pytest.raises(KeyboardInterrupt):
    train.run(p.step, p.params, p.state, pressing(program.make_batches(p.mesh), 3), steps=10,
              progress=False, checkpoints=checkpoints)
  assert checkpoints.latest() == 3
  assert f'after step 3; saved in {tmp_path}' in capsys.readouterr().err
  assert signal.getsignal(signal.SIGINT) is before


def test_sigterm_saves_and_ends_as_shells_expect(tmp_path, capsys):
  """What a machine that is taken away gets; without a traceback."""
  p = program.Program(2)
  checkpoints, before = train.Checkpoints(tmp_path, {}), signal.getsignal(signal.SIGTERM)
  with pytest.raises(SystemExit) as end:
    train.run(p.step, p.params, p.state, pressing(program.make_batches(p.mesh), 3, signal.SIGTERM), steps=10,
              progress=False, checkpoints=checkpoints)
  assert end.value.code == 143
  assert checkpoints.latest() == 3
  assert capsys.readouterr().err == f'ended by SIGTERM after step 3; saved in {tmp_path}\n'
  assert signal.getsignal(signal.SIGTERM) is before == signal.SIG_DFL


def test_a_signal_during_the_last_save_is_not_forgotten(tmp_path):
  """A series of runs would go on."""
  class Slow(train.Checkpoints):
    def save(self, *args):
      os.kill(os.getpid(), signal.SIGTERM)
      super().save(*args)

  checkpoints = Slow(tmp_path, {})
  with pytest.raises(SystemExit):
    program.Program(2).run(2, checkpoints=checkpoints)
  assert checkpoints.latest() == 2


def test_somebody_elses_handler_of_sigterm_stays():
  p, heard = program.Program(2), []
  before = signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
  try:
    done = train.run(p.step, p.params, p.state, pressing(program.make_batches(p.mesh), 1, signal.SIGTERM), steps=2,
                     progress=False)
  finally:
    signal.signal(signal.SIGTERM, before)
  assert done.step == 2 and heard == [1]


@pytest.mark.parametrize('arguments', [
    {'steps': 2, 'start': 3}, {'steps': 2, 'log_every': 0}, {'steps': 2, 'checkpoint_every': 0},
    {'steps': 2, 'evaluate_every': -1}, {'steps': 1, 'start': -1}])
def test_bad_counts_are_refused(arguments):
  with pytest.raises(ValueError, match='got'):
    train.run(None, {}, {}, [], **arguments)


class Failing:
  """A full disk."""

  directory = 'nowhere'

  def latest(self):
    return None

  claim = totals = latest

  def save(self, *_):
    raise OSError('no space left')


@pytest.mark.parametrize(('what', 'phase'), [
    ('step', 'step 2, while computing and exchanging'), ('batches', 'step 2, while reading the next batch'),
    ('evaluate', 'step 3, while evaluating'), ('checkpoints', 'step 3, while saving a checkpoint')])
def test_errors_say_where_they_came_from(what, phase):
  """A program of XLA whose collective fails, or a file system, names no worker and no step."""
  p, calls = program.Program(2), itertools.count(1)
  first, fail = p.step, what == 'step'

  def step(*arguments):
    if next(calls) == 2 and fail:
      raise jax.errors.JaxRuntimeError('Gloo AllGather failed')
    return first(*arguments)

  def batches():
    yield from itertools.islice(program.make_batches(p.mesh), 2)
    if what == 'batches':
      raise OSError('a file is gone')
    yield next(program.make_batches(p.mesh))

  def evaluate(params, state):
    raise ValueError('no test set')

  options = {'evaluate': {'evaluate': evaluate}, 'checkpoints': {'checkpoints': Failing()}}.get(what, {})
  with pytest.raises((OSError, ValueError, jax.errors.JaxRuntimeError)) as caught:
    train.run(step, p.params, p.state, batches(), steps=3, progress=False, **options)
  assert caught.value.__notes__ == [f'on worker 0 of 1, in {phase}']
