"""Scripts that make a page's tables, from logs of runs that are there already."""

import json

import commands
import pytest

pytest.importorskip('matplotlib')

CLICKS = {'train_loss': 0.4, 'train_accuracy': 0.8, 'test_loss': 0.5, 'test_accuracy': 0.75, 'test_auc': 0.7,
          'test_ne': 0.9}
DP = 'tracking=0.0-value_codec=float32-0'
SCRIPTS = {
    'dlrm_tables': (('--tables=2', '--seeds=0'), {
        'baseline-0': (CLICKS, {}),
        **{f'dp_sparsity={s}-{DP}': (CLICKS | {'test_loss': 0.51}, {}) for s in (0.75, 0.9, 0.95, 0.98, 0.995)}}),
    'resnet_tables': (('--designs=float32,3lc', '--shares=100'), {
        f'{design}-1': ({'train_loss': 0.2, 'test_loss': 0.3, 'test_accuracy': accuracy},
                        {'loss': 0.2, 'dense_bytes': 5000.0, 'push_bytes': sent, 'pull_bytes': sent / 4})
        for design, accuracy, sent in (('float32', 0.9, 4000.0), ('3lc', 0.89, 100.0))}),
    'transformer_tables': (('--sparsities=0.9', '--mp_workers=2'), {
        name: ({'train_loss': 2.0, 'test_loss': 3.0, 'test_nll': 2.5, 'test_bleu': bleu},
               {f'enc5/{k}_bytes': size for k, size in sizes.items()})
        for name, bleu, sizes in (('baseline', 35.0, {}), (
            '90-2-workers', 35.5, {'forward': 100.0, 'backward': 60.0, 'dense': 800.0, 'beside': 200.0}))}),
    'lstm_tables': (('--seeds=0,1', '--lambdas=1'), {
        **{f'dense-seed_{s}': ({'valid_perplexity': 140.0, 'test_perplexity': 150.0 + s}, {}) for s in range(2)},
        'S2-lambda_1': ({'valid_perplexity': 150.0, 'test_perplexity': 160.0}, {'s2_lambda': 3.3})}),
}
ROWS = {  # some cells of a row: names of the table and of the row -> what they must have
    'dlrm_tables': {('table2', '99.5%'): {'test loss': '0.5100 ± 0.0000', 'test loss better by %': '-2.00 ± 0.00',
                                          's': '12', 'paper: test loss': '0.4547 (-0.20%)'}},
    'resnet_tables': {('designs', '3lc'): {'%, 1 steps': '89.00', 'difference': '-1.00', 'bits pushed': '0.800',
                                           'paper': '15.9, 7.97, 1.53; 93.32 (-0.05); 0.812'},
                      ('losses', 'float32'): {'train loss': '0.2000', 'test loss': '0.3000'}},
    'transformer_tables': {('table4', '90%, 2 workers'): {'test BLEU': '35.50', 'BLEU against the baseline': '+0.50',
                                                          'paper: train loss, test loss, BLEU': '3.159, 3.879, 35.23'},
                           ('traffic', '90%, 2 workers'): {'cut': 'enc5', 'times less': '10.0', 'in all': '3.57'}},
    'lstm_tables': {('lambdas', 'S2, lambda 1'): {'lambda of a worker': '3.30', 'against the mean': '+6.3%',
                                                  'passes': 'no'},
                    ('lambdas', 'dense, seed 1'): {'test': '151.0', 'passes': 'yes'}},
}


@pytest.mark.parametrize('name', SCRIPTS)
def test_tables_go_to_a_file(name, tmp_path):
  flags, runs = SCRIPTS[name]
  for run, (found, more) in runs.items():
    (tmp_path / run).mkdir()
    line = {'step': 1, **more, **{f'eval/{k}': v for k, v in found.items()}}
    (tmp_path / run / 'metrics.jsonl').write_text(json.dumps(line) + '\n')
    (tmp_path / run / 'seconds').write_text('12.0')
  done = commands.run(name, *flags, '--steps=1', f'--workdir={tmp_path}', f'--results={tmp_path / "found.json"}')
  assert done.returncode == 0, done.stderr
  made = json.loads((tmp_path / 'found.json').read_text())['tables']
  for (table, row), wanted in ROWS[name].items():
    cells, = (r for r in made[table]['rows'] if r[0] == row)
    assert dict(zip(made[table]['head'], cells, strict=True)) | wanted == dict(
        zip(made[table]['head'], cells, strict=True))
  assert all(cell in done.stdout for cell in made[table]['head'])
