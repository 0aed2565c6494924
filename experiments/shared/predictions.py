"""Probabilities in files, a row of the test set each."""

import pathlib

import jax
import numpy as np


def write(path, probabilities, step):
  """Writes probabilities in their order, by process 0: .csv and .parquet with numbers of rows, else one a line.

  Args:
    path: of the file.
    probabilities: float[rows].
    step: of the checkpoint that they are by, to be told.
  """
  if jax.process_index():
    return
  path, numbers = pathlib.Path(path), np.asarray(probabilities, np.float32)
  if path.suffix in ('.csv', '.parquet'):
    import polars as pl
    table = pl.DataFrame({'row': np.arange(len(numbers)), 'probability': numbers})
    (table.write_csv if path.suffix == '.csv' else table.write_parquet)(path)
  else:
    np.savetxt(path, numbers, '%.9g')
  print(f'{path}: {len(numbers):,} probabilities, by the checkpoint of step {step}')
