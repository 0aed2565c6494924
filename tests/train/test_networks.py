"""What a run would take on other networks: numbers that can be checked by hand."""

import pytest

from dct_jax.train import networks


def log(sent, seconds):
  """Three lines, of steps 10, 20 and 30; the quickest step is `seconds`."""
  times = (9.0, 1.5 * seconds, seconds)  # the first one compiles
  return [{'step': 10 * i, 'total_sent_bytes': 10 * i * sent, 'step_seconds': t}
          for i, t in enumerate(times, 1)]


def test_a_step_is_computation_rounds_and_bytes():
  history = log(sent=1_250_000, seconds=0.040)  # 10 Mbit
  assert networks.computation(history, workers=4, cores=2) == pytest.approx(0.020)
  assert networks.computation(history, workers=2, cores=8) == pytest.approx(0.040)  # no worker uses two cores
  found = networks.step_seconds(history, 4, ('10mbit', '1gbit'), latency=0.001, cores=2)
  assert found == {'10mbit': pytest.approx(0.020 + 0.002 + 1.0), '1gbit': pytest.approx(0.020 + 0.002 + 0.010)}


def test_rows_of_tables_travel_too():
  history = [line | {'total_row_bytes': 125_000 * line['step']} for line in log(sent=0, seconds=0.040)]
  found = networks.step_seconds(history, 4, ('10mbit',), latency=0.001, cores=4)
  assert found == {'10mbit': pytest.approx(0.040 + 5 * 0.001 + 0.1)}


def test_lines_have_their_times():
  history = log(sent=1_250_000, seconds=0.010)
  found = [line['network_seconds'] for line in networks.timed(history, 1, '100mbit', latency=0.0, cores=1)]
  assert found == pytest.approx([1.1, 2.2, 3.3])


def test_the_table_compares_with_the_first_run():
  histories = {'dense': log(sent=1_250_000, seconds=0.010), 'dct': log(sent=12_500, seconds=0.010)}
  made = networks.table(histories, {'dense': 2, 'dct': 2}, ('10mbit', '10gbit'), latency=0.0, cores=2)
  assert made['head'] == ['ms a step', 'computation', 'sent B/step', '10 Mbit/s', '10 Gbit/s']
  assert made['rows'] == [['dense', '10.0', '1,250,000', '1,010.0', '11.0'],
                          ['dct', '10.0', '12,500', '20.0 (50.5x)', '10.0 (1.1x)']]


def test_where_the_model_does_not_apply():
  history = log(sent=10, seconds=0.010)
  assert networks.applies({'a': history}, {'a': 2})
  assert not networks.applies({'a': history}, {'a': 1})  # nothing is sent
  assert not networks.applies({'a': history, 'b': [{'step': 1, 'total_sent_bytes': 1}]}, {'a': 2, 'b': 2})
  assert not networks.applies({'a': [{'step': 1, 'step_seconds': 1.0}]}, {'a': 2})
  with pytest.raises(ValueError, match="got rate='fast'"):
    networks.rate_text('fast')
