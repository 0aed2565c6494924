"""Files of metrics, the table and the figure made of them."""

import json

import program
import pytest

from dct_jax import train
from dct_jax.train import report


def test_lines_and_events_are_written_and_appended(tmp_path):
  with train.MetricsWriter(tmp_path) as writer:
    program.Program(2).run(3, metrics=writer)
    assert len((tmp_path / 'metrics.jsonl').read_text().splitlines()) == 3  # flushed already
  with train.MetricsWriter(tmp_path) as writer:
    writer.write(4, {'loss': 1.0})
  lines = [json.loads(x) for x in (tmp_path / 'metrics.jsonl').read_text().splitlines()]
  assert [line['step'] for line in lines] == [1, 2, 3, 4]
  assert lines[2]['total_sent_bytes'] > lines[0]['total_sent_bytes'] > 0
  assert len(list(tmp_path.glob('events.out.tfevents.*'))) >= 1
  assert sum(f.stat().st_size for f in tmp_path.glob('events.*')) > 500


def test_what_was_read_can_be_written_again(tmp_path):
  with train.MetricsWriter(tmp_path) as writer:
    writer.write(7, {'loss': float('inf'), 'more': 1.0})
    writer.write(8, train.read_metrics(tmp_path)[-1] | {'more': 2.0})
  assert train.read_metrics(tmp_path)[-1] == {'step': 8, 'loss': None, 'more': 2.0}


def test_a_torn_line_does_not_spoil_the_next(tmp_path):
  (tmp_path / 'metrics.jsonl').write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
  with train.MetricsWriter(tmp_path) as writer:
    writer.write(2, {'loss': float('nan')})
    writer.write(3, {'loss': 5.0})
    writer.write(3, {'loss': 4.0})  # a resumed run repeats steps
  assert train.read_metrics(tmp_path) == [
      {'step': 1, 'loss': 2.0}, {'step': 2, 'loss': None}, {'step': 3, 'loss': 4.0}]


@pytest.fixture
def histories():
  line = lambda step, sent: {
      'step': step, 'eval/train_loss': 1 / step, 'eval/test_loss': 2 / step,
      'total_encoded_bytes': 10 * step, 'total_dense_bytes': 1000 * step, 'total_sent_bytes': sent}
  return {'dense': [line(1, 5_000_000), line(2, 9_000_000)], 'dct': [line(1, 100), {'step': 2}]}


def test_table(histories):
  lines = report.table({'dense': histories['dense']}).splitlines()
  assert lines[0].split()[:4] == ['train', 'loss', 'test', 'loss']
  assert lines[1].split() == ['dense', '0.50000', '1.00000', '10', '100.0x', '4,500,000', '9.00']


def test_figure(histories, tmp_path):
  pytest.importorskip('matplotlib')
  report.plot(histories, tmp_path / 'a.png')
  assert (tmp_path / 'a.png').read_bytes()[:4] == b'\x89PNG'
