"""What is made of the lines of a log."""

from dct_jax.train import report


def test_evaluations_are_columns_of_the_lines_that_have_them():
  history = [{'step': 10, 'loss': 0.5}, {'step': 20, 'loss': 0.4, 'eval/a': 1.0, 'eval/b': 2.0},
             {'step': 30, 'loss': 0.3, 'eval/a': 3.0, 'eval/b': 4.0}]
  assert report.evaluations(history) == {'step': [20, 30], 'a': [1.0, 3.0], 'b': [2.0, 4.0]}
