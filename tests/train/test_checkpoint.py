"""Checkpoints: bit for bit, onto other numbers of workers, and what is refused."""

import gc
import pathlib
import shutil
import time
import zlib

import jax
import numpy as np
import optax
import program
import pytest
from marks import slow

import dct_jax
from dct_jax import train
from dct_jax.train import checksums, replicas

CONFIG = {'sparsity': 0.95, 'layers': (96,), 'name': 'a'}


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  """Four workers after 10 steps: the directory and what was in memory."""
  path = tmp_path_factory.mktemp('saved')
  p = program.Program(4)
  result = p.run(10, checkpoints=train.Checkpoints(path, CONFIG))
  held = jax.device_get((result.params, result.opt_state))
  on = p.run(15, result.params, result.opt_state, start=10)
  return path, held, on, result.history


def restore(path, workers, config=CONFIG, tx=None, **kwargs):
  p = program.Program(workers, tx)
  return p, train.Checkpoints(path, config).restore(p.params, p.state, p.specs, p.mesh, **kwargs)


def assert_same_bits(a, b):
  a, b = jax.tree.leaves(jax.device_get(a)), jax.tree.leaves(jax.device_get(b))
  assert len(a) == len(b)
  for x, y in zip(a, b, strict=True):
    assert (x.shape, x.dtype, x.tobytes()) == (y.shape, y.dtype, y.tobytes())


def test_restores_bit_for_bit_and_trains_on_alike(saved):
  path, held, on, before = saved
  p, (params, state, step) = restore(path, 4)
  assert step == 10
  assert_same_bits((params, state), held)
  assert jax.tree.structure((params, state)) == jax.tree.structure(held)
  assert np.abs(np.asarray(state[0].residual[0])).sum() > 0
  again = p.run(15, params, state, start=step)
  assert [x['loss'] for x in again.history] == [x['loss'] for x in on.history]
  assert_same_bits((again.params, again.opt_state), (on.params, on.opt_state))
  assert before[-1]['loss'] != again.history[-1]['loss']


def test_byte_totals_go_on(saved, tmp_path):
  p = program.Program(4)
  whole = p.run(6).history[-1]['total_sent_bytes']
  p.__init__(4)
  checkpoints = train.Checkpoints(tmp_path, {})
  p.run(4, checkpoints=checkpoints)
  p.__init__(4)
  params, state, step = checkpoints.restore(p.params, p.state, p.specs, p.mesh)
  rest = p.run(6, params, state, start=step, checkpoints=checkpoints)
  assert rest.history[-1]['total_sent_bytes'] == whole
  assert checkpoints.latest() == 6


@pytest.mark.parametrize('workers', [1, 3, *slow(2, 8)])
@pytest.mark.parametrize('conserve', ['sum', 'mean'])
def test_another_number_of_workers_conserves(saved, workers, conserve):
  path, (params, state), _, _ = saved
  p, (new_params, new_state, _) = restore(path, workers, conserve=conserve)
  assert_same_bits(new_params, params)
  assert_same_bits(new_state[1], state[1])  # momentum
  for old, new in zip(state[0].residual, new_state[0].residual, strict=True):
    old, new = old.reshape(4, -1, *old.shape[1:]), np.asarray(new)
    new = new.reshape(workers, -1, *new.shape[1:])
    scale = workers / 4 if conserve == 'mean' else 1
    np.testing.assert_allclose(new.sum(0), old.sum(0) * scale, rtol=1e-5, atol=1e-6)
    for j in range(workers):
      want = old[j::workers].astype(np.float64).sum(0) * scale
      np.testing.assert_array_equal(new[j], want.astype(np.float32))
  tau, new_tau = state[0].compressor.tau, np.asarray(new_state[0].compressor.tau)
  assert new_tau.tolist() == [tau[j % 4] for j in range(workers)]
  assert np.asarray(new_state[0].worker).tolist() == list(range(workers))
  p.run(12, new_params, new_state, start=10)


def test_other_state_of_workers_is_summed(tmp_path):
  # Momentum before the exchange is of local gradients: every worker has its own.
  make = lambda: optax.chain(optax.trace(0.9), program.make_optimizer())
  checkpoints = train.Checkpoints(tmp_path, {})
  result = program.Program(4, make()).run(3, checkpoints=checkpoints)
  old = np.asarray(result.opt_state[0].trace['w1']).reshape(4, 16, 96)
  _, (_, state, _) = restore(tmp_path, 2, {}, make())
  new = np.asarray(state[0].trace['w1']).reshape(2, 16, 96)
  np.testing.assert_array_equal(
      new, [(old[j::2].astype(np.float64)).sum(0).astype(np.float32) for j in range(2)])


@pytest.mark.parametrize(('change', 'message'), [
    ({'sparsity': 0.9}, r"'sparsity' was 0.95, got 0.9"),
    ({'layers': (96, 2)}, r"'layers' was \[96\], got \[96, 2\]"),
    ({'seed': 1}, r"'seed' was 'not there', got 1")])
def test_another_configuration_is_refused(saved, change, message):
  with pytest.raises(ValueError, match=message):
    restore(saved[0], 4, CONFIG | change)


@pytest.mark.parametrize(('tx', 'message'), [
    (optax.chain(dct_jax.dct_dp(0.95, 4, 'data'), optax.sgd(0.05)), 'trace'),
    (optax.chain(dct_jax.dct_dp(0.95, 4, 'data', dense_below=0), optax.sgd(0.05, 0.9)), 'tau'),
    (optax.chain(dct_jax.dense_mean('data'), optax.sgd(0.05, 0.9)), 'the run does not')])
def test_another_optimizer_is_refused(saved, tx, message):
  with pytest.raises(ValueError, match=f'another model or optimizer.*{message}'):
    restore(saved[0], 4, tx=tx)


def test_missing_checkpoints_are_said_to_be_missing(saved, tmp_path):
  assert train.Checkpoints(tmp_path / 'none', CONFIG).latest() is None
  with pytest.raises(FileNotFoundError, match='there is no checkpoint'):
    restore(tmp_path / 'none', 4)
  with pytest.raises(FileNotFoundError, match=r'steps \[10\], got step=3'):
    restore(saved[0], 4, step=3)


# Seen twice, on a busy machine: an unraisable exception after this test, of an origin not found;
# orbax reads arrays in the background.
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
@pytest.mark.parametrize('pattern', ['arrays/**/d/*', 'notes/metadata'])
def test_damage_is_said_to_be_damage(tmp_path, pattern):
  program.Program(2).run(1, checkpoints=train.Checkpoints(tmp_path, {}))
  victims = [f for f in pathlib.Path(tmp_path, '1').glob(pattern) if f.is_file()]
  assert victims
  for victim in victims:
    victim.write_bytes(victim.read_bytes()[:10])
  with pytest.raises(ValueError, match='step 1 .* is damaged'):
    restore(tmp_path, 2, {})
  time.sleep(0.3)  # let it come now, and not in the next test
  gc.collect()


def test_earlier_steps_are_not_written_over(saved):
  path, (params, state), _, _ = saved
  with pytest.raises(ValueError, match='step 10 already, got step=10'):
    train.Checkpoints(path, CONFIG).save(10, params, state)


def test_only_the_latest_are_kept(tmp_path):
  checkpoints = train.Checkpoints(tmp_path, {}, keep=2)
  program.Program(2).run(4, checkpoints=checkpoints, checkpoint_every=1)
  assert sorted(int(p.name) for p in tmp_path.iterdir() if p.is_dir()) == [3, 4]


@pytest.mark.parametrize('arguments', [
    {'config': {}, 'keep': 0}, {'config': {'a': object()}}])
def test_bad_arguments_are_refused(tmp_path, arguments):
  with pytest.raises(ValueError, match='got'):
    train.Checkpoints(tmp_path, **arguments)


def test_bad_conserve_is_refused(saved):
  with pytest.raises(ValueError, match="conserve='all'"):
    restore(saved[0], 4, conserve='all')


def test_replicas_that_differ_are_named():
  workers = np.array([4, 5, 6])
  replicas._compare(['a', 'b'], workers, np.array([[1, 2], [1, 2], [1, 2]]))
  with pytest.raises(RuntimeError, match=r'1 of 2 .* b, of which workers \[4, 6\] have 0x2, workers \[5\] have 0x3'):
    replicas._compare(['a', 'b'], workers, np.array([[1, 2], [1, 3], [1, 2]]))


def test_the_mean_of_the_last_checkpoints(tmp_path):
  p = program.Program(2)
  checkpoints = train.Checkpoints(tmp_path, CONFIG, keep=3)
  params, state, seen = p.params, p.state, []
  for end in (1, 2, 3, 4):
    result = p.run(end, params, state, start=end - 1, checkpoints=checkpoints)
    params, state = result.params, result.opt_state
    seen.append(jax.device_get(params))
  mean = lambda held: jax.tree.map(
      lambda *x: np.mean(np.stack(x), 0, dtype=np.float64).astype(np.float32), *held)
  for last, held in [(1, seen[3:]), (2, seen[2:]), (9, seen[1:])]:  # of four, three are kept
    assert_same_bits(checkpoints.mean_params(params, p.mesh, last=last), mean(held))
  # Of steps 2, 3 and 4, the last one always counts.
  assert_same_bits(checkpoints.mean_params(params, p.mesh, last=9, every=3), mean(seen[2:]))
  with pytest.raises(ValueError, match='last=0'):
    checkpoints.mean_params(params, p.mesh, last=0)
  with pytest.raises(FileNotFoundError):
    train.Checkpoints(tmp_path / 'empty', CONFIG).mean_params(params, p.mesh)


def flip(path, rng):
  """One bit of a file."""
  data = bytearray(path.read_bytes())
  data[rng.integers(len(data))] ^= 1 << rng.integers(8)
  path.write_bytes(data)


@pytest.fixture(scope='module')
def twice(tmp_path_factory):
  """Two workers, saved after one step and after two: the directory, and what was in memory each time."""
  path, p, held = tmp_path_factory.mktemp('twice'), program.Program(2), {}
  checkpoints, params, state = train.Checkpoints(path, {}), p.params, p.state
  for end in (1, 2):
    result = p.run(end, params, state, start=end - 1, checkpoints=checkpoints)
    params, state = result.params, result.opt_state
    held[end] = jax.device_get((params, state))
  return path, held


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
@pytest.mark.parametrize('seed', [0, *slow(*range(1, 20))])
def test_no_bit_that_flips_is_restored(twice, tmp_path, seed, caplog):
  """Ten flips, each alone: the checkpoint is refused, or nothing that counts has changed."""
  rng, (path, held) = np.random.default_rng(seed), twice
  p, refused = program.Program(2), 0
  for i in range(10):
    copy = shutil.copytree(path, tmp_path / str(i))
    flip(rng.choice(sorted(f for f in (copy / '2').rglob('*') if f.is_file() and f.stat().st_size)), rng)
    params, state, step = train.Checkpoints(copy, {}).restore(p.params, p.state, p.specs, p.mesh)
    assert_same_bits((params, state), held[step])
    refused += step == 1
    assert (copy / 'damaged-2').exists() == (step == 1) == ('step 2' in caplog.text)
    caplog.clear()
  assert refused


def test_an_array_that_has_changed_is_named(twice, monkeypatch):
  """Whatever the file system and its codecs have let through."""
  monkeypatch.setattr(checksums, 'crc', lambda array, crc=checksums.crc: crc(array) + (array.shape == (96, 4)))
  with pytest.raises(ValueError, match=r"no checkpoint in .* is whole: .*step 2.*: params\['w2'\], .*have changed"):
    restore(twice[0], 2, {})
  with pytest.raises(ValueError, match=r'step 1 .* damaged'):
    restore(twice[0], 2, {}, step=1)


def test_every_part_of_an_array_has_a_checksum():
  mesh = dct_jax.make_mesh(4)
  whole = np.arange(48.0, dtype=np.float32).reshape(8, 6)
  put = lambda *spec: jax.device_put(whole, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec)))
  arrays = {'rows': put('data'), 'whole': put(), 'number': jax.numpy.float32(3)}
  sums = checksums.of(arrays)
  assert {k: len(v['crc']) for k, v in sums.items()} == {'rows': 4, 'whole': 1, 'number': 1}
  assert sums['rows']['crc'] == [zlib.crc32(whole[i:i + 2].tobytes()) for i in range(0, 8, 2)]
  held = {'rows': whole, 'whole': whole, 'number': np.float32(3)}
  assert checksums.damaged(held, sums) == []
  assert checksums.damaged({**held, 'rows': whole[[2, 3, 0, 1, 4, 5, 6, 7]], 'other': whole}, sums) == ['rows', 'other']
  notes = checksums.seal({'step': 3, 'totals': {'a': 1.5}})
  assert checksums.sealed(notes) and not checksums.sealed({**notes, 'step': 4}) and not checksums.sealed({'step': 3})
