"""`experiments/resnet_cifar.py` from its command line, on digits, for a few steps."""

import shutil

import commands
import pytest

from dct_jax.train import read_metrics

pytest.importorskip('matplotlib')
pytest.importorskip('sklearn')


def run(*arguments):
  return commands.run('resnet_cifar', '--workers=2', *arguments, timeout=240)


@pytest.mark.slow
def test_learns_digits_and_goes_on_where_it_stopped(tmp_path):
  flags = ('--steps=12', '--evaluate_every=2', '--checkpoint_every=6', '--learning_rate=0.05')
  done = run(*flags, '--method=float32,3lc', f'--workdir={tmp_path / "whole"}')
  assert done.returncode == 0, done.stderr
  assert 'not CIFAR but a stand-in' in done.stderr
  rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()[1:3]}
  assert set(rows) == {'float32', '3lc'}
  lines = read_metrics(tmp_path / 'whole/float32')
  assert lines[-1]['loss'] < 0.8 * lines[0]['loss']
  assert lines[-1]['eval/train_loss'] != lines[-1]['loss']
  dense, sparse = (read_metrics(tmp_path / 'whole' / name)[-1] for name in rows)
  assert sparse['total_encoded_bytes'] < dense['total_encoded_bytes'] / 3

  shutil.copytree(tmp_path / 'whole/3lc', tmp_path / 'parts/3lc')
  shutil.rmtree(tmp_path / 'parts/3lc/checkpoints/12')
  (tmp_path / 'parts/3lc/metrics.jsonl').unlink()
  rest = run(*flags, '--method=3lc', '--resume', f'--workdir={tmp_path / "parts"}')
  assert rest.returncode == 0, rest.stderr
  losses = lambda name: {x['step']: (x['loss'], x['eval/test_loss'])
                         for x in read_metrics(tmp_path / name / '3lc')}
  whole = losses('whole')
  assert losses('parts') == {step: whole[step] for step in (8, 10, 12)}


@pytest.mark.slow
def test_a_densenet_learns_with_sparse_gradients(tmp_path):
  done = run('--model=densenet', '--steps=12', '--evaluate_every=6', '--learning_rate=0.05',
             '--method=float32,blocks,blocks_union,top16_q4', f'--workdir={tmp_path}')
  assert done.returncode == 0, done.stderr
  dense, blocks, union, top16 = (
      read_metrics(tmp_path / name) for name in ('float32', 'blocks', 'blocks_union', 'top16_q4'))
  for lines in (dense, blocks, top16):
    assert lines[-1]['eval/train_loss'] < lines[0]['eval/train_loss']
  assert union[-1]['eval/train_loss'] == pytest.approx(blocks[-1]['eval/train_loss'], rel=1e-3)
  for lines in (blocks, top16):
    assert lines[-1]['total_encoded_bytes'] < 0.2 * dense[-1]['total_encoded_bytes']


@pytest.mark.parametrize(('flag', 'message'), [
    ('--model=zip', 'model must be one of'), ('--feed_back', 'feed_back is for a compressor'),
    ('--depth=10', 'depth must be 6 n'), ('--data=nowhere', 'no such file or directory')])
def test_bad_settings_are_refused(flag, message, tmp_path):
  done = run('--steps=1', f'--workdir={tmp_path}', flag)
  assert done.returncode
  assert message in done.stderr
