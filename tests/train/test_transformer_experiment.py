"""`experiments/transformer_iwslt.py` from its command line, for a few steps of a small model."""

import shutil

import commands
import pytest

from dct_jax.train import read_metrics

pytest.importorskip('matplotlib')
pytest.importorskip('sacrebleu')
pytest.importorskip('sentencepiece')
SMALL = ('--width=16', '--hidden=32', '--heads=2', '--layers=2', '--tokens=512', '--vocabulary=300',
         '--evaluated=20', '--warmup=20', '--beam=2', '--average=2', '--shapes=1')
LSTM = tuple(flag for flag in SMALL if not flag.startswith('--average'))


def run(*arguments, name='transformer_iwslt', small=SMALL):
  return commands.run(name, *small, *arguments, timeout=400)


@pytest.fixture(scope='module')
def text(tmp_path_factory):
  """A directory of parallel text, small enough that a whole test set is translated in seconds."""
  from dct_jax.data.translation import synthetic as synthetic_translation

  folder = tmp_path_factory.mktemp('text')
  sets = synthetic_translation.generate(rows=600, valid_rows=30, test_rows=40)
  for name, lines in zip(('train', 'valid', 'test'), sets[:3], strict=True):
    (folder / f'{name}.de').write_text('\n'.join(lines.source) + '\n')
    (folder / f'{name}.en').write_text('\n'.join(lines.target) + '\n')
  return folder


@pytest.mark.slow
def test_learns_shows_translations_and_goes_on_where_it_stopped(text, tmp_path):
  flags = (f'--data={text}', '--method=mp3', '--splits=enc1,dec2', '--steps=12', '--evaluate_every=4',
           '--checkpoint_every=4')
  done = run(*flags, f'--workdir={tmp_path / "whole"}')
  assert done.returncode == 0, done.stderr
  assert 'tokens=' in done.stderr and 'valid_perplexity=' in done.stderr and 'got   :' in done.stderr
  assert 'kept 600 of 600 pairs' in done.stdout
  whole = tmp_path / 'whole/mp3'
  assert 'beam:2' in (whole / 'bleu.txt').read_text() and 'version' in (whole / 'bleu.txt').read_text()
  assert len((whole / 'translations.txt').read_text().splitlines()) == 40
  lines = read_metrics(whole)
  assert lines[-1]['eval/valid_nll'] < lines[0]['eval/valid_nll']
  assert {'eval/test_bleu', 'eval/test_loss', 'enc1/forward_bytes', 'dec2/beside_bytes'} <= set(lines[-1])
  assert lines[-1]['enc1/forward_bytes'] < 0.2 * lines[-1]['enc1/dense_bytes']

  shutil.copytree(whole, tmp_path / 'parts/mp3')
  shutil.rmtree(tmp_path / 'parts/mp3/checkpoints/12')
  (tmp_path / 'parts/mp3/metrics.jsonl').unlink()
  rest = run(*flags, '--resume', f'--workdir={tmp_path / "parts"}')
  assert rest.returncode == 0, rest.stderr
  again = read_metrics(tmp_path / 'parts/mp3')[-1]
  names = [k for k in again if k.startswith('eval/')]
  assert [again[k] for k in names] == [lines[-1][k] for k in names]


@pytest.mark.slow
def test_stages_learn_what_one_piece_does_with_shared_embeddings(text, tmp_path):
  """Cuts in the encoder and in the decoder, embeddings of the target in two stages, dropout and all."""
  flags = (f'--data={text}', '--method=mp3', '--splits=enc1,dec2', '--steps=4', '--evaluate_every=2',
           '--workers=2')
  one = run(*flags, f'--workdir={tmp_path / "one"}')
  several = run(*flags, '--stages=3', f'--workdir={tmp_path / "stages"}')
  assert one.returncode == 0, one.stderr
  assert several.returncode == 0, several.stderr
  ends = [read_metrics(tmp_path / name / 'mp3')[-1] for name in ('one', 'stages')]
  for name in ('loss', 'eval/test_nll', 'eval/valid_nll', 'eval/train_loss'):
    assert ends[1][name] == pytest.approx(ends[0][name], rel=2e-5)
  assert ends[1]['eval/test_bleu'] == pytest.approx(ends[0]['eval/test_bleu'], abs=0.5)
  assert ends[1]['shared_bytes'] > 0
  crossing = sum(ends[0][f'{cut}/{what}_bytes'] for cut in ('enc1', 'dec2') for what in ('forward', 'beside'))
  assert ends[1]['activation_forward_bytes'] == pytest.approx(crossing, rel=0.02)  # heads


@pytest.mark.slow
def test_stages_in_processes_report_losses(text, tmp_path):
  done = run(f'--data={text}', '--method=mp3', '--splits=enc1,dec2', '--steps=2', '--stages=3',
             '--launch=processes', f'--workdir={tmp_path}')
  assert done.returncode == 0, done.stdout
  assert 'no BLEU: no process has the whole model' in done.stdout
  last = read_metrics(tmp_path / 'mp3')[-1]
  assert last['step'] == 2 and last['eval/test_nll'] > 0 and 'eval/test_bleu' not in last
  assert '[0] mp3' in done.stdout  # the table


@pytest.mark.slow
def test_another_compressor_and_the_full_size_model_take_steps(text, tmp_path):
  done = run(f'--data={text}', '--method=3lc', '--workers=2', '--steps=3', f'--workdir={tmp_path / "3lc"}',
             '--width=64', '--hidden=128', '--adam=local')  # layers below 1,024 entries travel whole
  assert done.returncode == 0, done.stderr
  last = read_metrics(tmp_path / '3lc/3lc')[-1]
  assert last['total_encoded_bytes'] < 0.1 * last['total_dense_bytes']
  full = run(f'--data={text}', '--method=iwslt', '--steps=2', '--vocabulary=300', '--tokens=256', '--beam=1',
             '--evaluated=2', '--shapes=1', f'--workdir={tmp_path / "full"}', small=())
  assert full.returncode == 0, full.stderr
  assert read_metrics(tmp_path / 'full/iwslt')[-1]['step'] == 2


@pytest.mark.slow
def test_rows_of_embeddings_learn_the_same_through_every_exact_reducer(text, tmp_path):
  """And a run with tables goes on where it stopped: they are saved with the state."""
  flags = (f'--data={text}', '--workers=2', '--evaluate_every=3', '--checkpoint_every=3')
  methods = '--method=gnmt_dense,gnmt_gather,gnmt_union,gnmt_s2'
  done = run(*flags, '--steps=6', methods, f'--workdir={tmp_path}', small=LSTM)
  assert done.returncode == 0, done.stderr
  dense, gather, union, sketch = (
      read_metrics(tmp_path / f'gnmt_{name}') for name in ('dense', 'gather', 'union', 's2'))
  for lines in (gather, union):
    for name in ('loss', 'eval/valid_nll', 'eval/test_nll'):
      assert lines[-1][name] == pytest.approx(dense[-1][name], rel=1e-5)
    assert 0 < lines[-1]['row_bytes'] < dense[-1]['row_bytes']
  assert dense[-1]['eval/test_nll'] < dense[0]['eval/valid_nll']
  assert sketch[-1]['eval/test_nll'] == pytest.approx(dense[-1]['eval/test_nll'], rel=0.2)
  assert sketch[-1]['eval/test_nll'] != dense[-1]['eval/test_nll']

  shutil.rmtree(tmp_path / 'gnmt_gather/checkpoints/6')
  (tmp_path / 'gnmt_gather/metrics.jsonl').unlink()
  rest = run(*flags, '--steps=6', '--method=gnmt_gather', '--resume', f'--workdir={tmp_path}', small=LSTM)
  assert rest.returncode == 0, rest.stderr
  again = read_metrics(tmp_path / 'gnmt_gather')
  assert again[-1]['step'] == 6 and again[-1]['eval/test_nll'] == gather[-1]['eval/test_nll']


@pytest.mark.slow
def test_sparse_gradients_of_the_lstm_translator(text, tmp_path):
  done = run(f'--data={text}', '--workers=2', '--steps=6', '--evaluate_every=3', '--width=32', '--block=64',
             '--method=gnmt_blocks,gnmt_blocks_union,gnmt_blocks_s2,gnmt_top2', f'--workdir={tmp_path}', small=LSTM)
  assert done.returncode == 0, done.stderr
  blocks, union, sketch, top2 = (
      read_metrics(tmp_path / f'gnmt_{name}')[-1] for name in ('blocks', 'blocks_union', 'blocks_s2', 'top2'))
  assert union['eval/test_nll'] == pytest.approx(blocks['eval/test_nll'], rel=1e-5)
  assert sketch['s2_union_lambda'] <= sketch['s2_lambda']
  for lines in (blocks, top2):
    assert lines['total_encoded_bytes'] < 0.2 * lines['total_dense_bytes']


@pytest.mark.parametrize(('flags', 'message'), [
    (('--model=zip',), 'model must be transformer or gnmt'), (('--rows=union',), 'only gnmt has tables'),
    (('--model=gnmt', '--splits=enc1'), 'only a Transformer is cut'),
    (('--model=gnmt', '--rows=zip', '--average=1'), 'rows must be one of'),
    (('--model=gnmt', '--rows=union', '--average=2'), '--rows wants --average=1'),
    (('--compressor=block_top_k', '--collective=zip'), 'collective must be one of'),
    (('--compressor=block_top_k', '--collective=union_sum', '--feed_back'), 'feed_back is for a compressor'),
    (('--splits=enc9',), 'a model is cut at some of'), (('--data=nowhere',), 'nowhere'),
    (('--compressor=zip',), 'compressor must be one of'),
    (('--adam=both',), 'adam must be one of'),
    (('--tokenize=zip',), 'tokenize must be one of'),
    (('--beam=0',), '--beam must be at least 1'),
    (('--splits=enc1', '--stages=3'), '--stages=3 wants 2 splits')])
def test_bad_settings_are_refused(flags, message, tmp_path):
  done = run('--method=baseline', '--steps=1', f'--workdir={tmp_path}', *flags)
  assert done.returncode
  assert message in done.stderr
