"""`experiments/lstm_wikitext.py` from its command line, for a few steps of a small model."""

import re
import threading

import commands
import numpy as np
import pytest
from marks import slow

from dct_jax.train import read_metrics

pytest.importorskip('matplotlib')
SMALL = ('--workers=2', '--width=16', '--batch=4', '--length=8', '--negatives=64', '--evaluated=500',
         '--evaluate_every=25')


def run(*arguments):
  return commands.run('lstm_wikitext', *SMALL, *arguments, timeout=400)


@pytest.fixture(scope='module')
def text(tmp_path_factory):
  """A directory like WikiText's, small enough that a whole test set is predicted in no time."""
  from dct_jax.data.words import synthetic as synthetic_words

  folder = tmp_path_factory.mktemp('text')
  sets = synthetic_words.generate(8000, 600, 600, vocabulary=300)
  for name, ids in zip(('train', 'valid', 'test'), sets[:3], strict=True):
    (folder / f'{name}.txt').write_text('<unk> ' + ' '.join(sets.vocabulary[i] for i in ids) + '\n')
  return folder


@pytest.mark.slow
def test_exact_sums_train_alike(text, tmp_path):
  done = run(f'--data={text}', '--steps=50', '--method=dense,gather,union', f'--workdir={tmp_path}')
  assert done.returncode == 0, done.stderr
  assert 'words=' in done.stderr and 'valid_perplexity=' in done.stderr and 'rows B' in done.stdout
  logs = {name: read_metrics(tmp_path / name) for name in ('dense', 'gather', 'union')}
  for name in ('gather', 'union'):
    for key in ('loss', 'eval/test_perplexity', 'eval/train_loss'):
      mine, dense = ([line[key] for line in logs[which] if key in line] for which in (name, 'dense'))
      np.testing.assert_allclose(mine, dense, rtol=1e-4)
  assert logs['gather'][-1]['row_bytes'] < logs['dense'][-1]['row_bytes']
  learnt = [line['eval/valid_perplexity'] for line in logs['dense'] if 'eval/valid_perplexity' in line]
  assert learnt[-1] < learnt[0] < 300


@pytest.mark.slow
def test_processes_train_as_devices_also_after_a_kill(text, tmp_path):
  flags = (f'--data={text}', '--steps=150', '--evaluate_every=150', '--method=gather')
  devices = run(*flags, f'--workdir={tmp_path / "devices"}')
  assert devices.returncode == 0, devices.stderr
  processes = (*flags, '--launch=processes', '--checkpoint_every=10', f'--workdir={tmp_path / "killed"}')
  killed = threading.Thread(target=commands.kill_a_worker, args=(tmp_path / 'killed', 'gather', 20))
  killed.start()
  part = run(*processes)
  killed.join()
  assert part.returncode != 0 and commands.lines_of(tmp_path / 'killed/gather')[-1]['step'] < 150
  rest = run(*processes, '--resume')
  assert rest.returncode == 0, rest.stdout + rest.stderr
  one, several = (read_metrics(tmp_path / name / 'gather') for name in ('devices', 'killed'))
  for key in ('loss', 'eval/test_perplexity'):
    numbers = [[line[key] for line in lines if key in line] for lines in (one, several)]
    np.testing.assert_allclose(*numbers, rtol=1e-3)  # the order of additions differs


@pytest.mark.slow
def test_all_forms_train(text, tmp_path):
  done = run(f'--data={text}', '--steps=4', '--evaluate_every=4', '--method=s2,full,tied,top2,blocks', '--layers=2',
             '--lam=2', f'--workdir={tmp_path}')
  assert done.returncode == 0, done.stderr
  ends = {name: read_metrics(tmp_path / name)[-1] for name in ('s2', 'full', 'tied', 'top2', 'blocks')}
  assert all(1 < end['eval/test_perplexity'] < 400 for end in ends.values())
  assert 'row_bytes' not in ends['tied'] and ends['full']['row_bytes'] > 0  # a tied table has a dense gradient


@pytest.mark.slow
def test_the_synthetic_text_says_what_is_best(tmp_path):
  done = run('--steps=1', '--method=gather', '--tied', f'--workdir={tmp_path}')
  assert done.returncode == 0, done.stderr
  assert re.search(r'best possible perplexity 1\d\.\d\d', done.stdout)


@pytest.mark.parametrize(('flags', 'message'), [
    (('--rows=telepathy',), "got config.rows='telepathy'"),
    (('--feed_back',), 'feed_back is for a compressor'),
    *slow((('--rows=split',), 'rows=split needs a process'),
          (('--data=nowhere',), 'no such file or directory'),
          (('--softmax=hard',), "one of .'sampled', 'full'"),
          (('--compressor=zip',), "got config.compressor='zip'"),
          (('--negatives=2001',), 'negatives are different words|as many words to draw'),
          (('--evaluated=0',), '--evaluated must be at least 1'))])
def test_bad_settings_are_refused(flags, message, tmp_path):
  done = run('--steps=1', '--method=gather', f'--workdir={tmp_path}', *flags)
  assert done.returncode
  assert re.search(message, done.stderr), done.stderr
