"""What is made of the lines of a log."""

from dct_jax.train import report, results


def test_evaluations_are_columns_of_the_lines_that_have_them():
  history = [{'step': 10, 'loss': 0.5}, {'step': 20, 'loss': 0.4, 'eval/a': 1.0, 'eval/b': 2.0},
             {'step': 30, 'loss': 0.3, 'eval/a': 3.0, 'eval/b': 4.0}]
  assert report.evaluations(history) == {'step': [20, 30], 'a': [1.0, 3.0], 'b': [2.0, 4.0]}


def test_what_a_run_has_no_result_of_stays_empty():
  last = {'step': 2, 'eval/a': 0.5, 'total_encoded_bytes': 20, 'total_dense_bytes': 40, 'total_sent_bytes': 60}
  head, row = report.table({'run': [last]}, ('a', 'b')).splitlines()
  assert head.split()[:2] == ['a', 'b']
  assert row.split() == ['run', '0.50000', '10', '2.0x', '30', '0.00']


def test_bytes_of_rows_are_shown_where_there_are_tables():
  _, first, second = report.row_table({'a': [{'row_bytes': 1200.0, 'sent_bytes': 30}],
                                       'b': [{'sent_bytes': 4000}]}).splitlines()
  assert first.split() == ['a', '1,200', '30'] and second.split() == ['b', '4,000']


def test_lines_know_their_table():
  made = results.table(['', 'ms'], [['pack', 1.5], ['addition', '12.25']])
  text = report.lines(made)
  assert text.splitlines() == ['             ms', '    pack    1.5', 'addition  12.25'] and text.made == made


def test_what_goes_nowhere_is_not_compressed():
  last = {'step': 2, 'total_encoded_bytes': 20, 'total_dense_bytes': 40, 'total_sent_bytes': 0}
  assert report.table({'run': [last]}, ()).splitlines()[1].split() == ['run', '10', '0', '0.00']


def test_all_that_a_worker_has_sent():
  lines = {'dense': [{'step': 2, 'total_sent_bytes': 4_000_000}],
           'stages': [{'step': 2, 'total_sent_bytes': 0, 'total_row_bytes': 10_000, 'total_crossed_bytes': 126_000}]}
  assert report.sent_table({'dense': lines['dense']}) == ''
  rows = [row.split() for row in report.sent_table(lines).splitlines()[1:]]
  assert rows == [['dense', '2,000,000', '0', '0', '4.00'], ['stages', '0', '5,000', '63,000', '0.14']]


def test_cuts_inside_of_a_worker_send_nothing():
  bytes_of = {f'activation_{k}_bytes': 10.0 for k in ('forward', 'backward', 'dense')}
  rows = report.activation_table({'inside': [bytes_of], 'stages': [bytes_of | {'total_crossed_bytes': 20}],
                                  'none': [{}]}).splitlines()
  assert [row.split()[-1] for row in rows] == ['sent', 'no', 'yes', '0']
  assert report.activation_table({'none': [{}], 'dense': [{'activation_dense_bytes': 0.0}]}) == ''
