"""Training and test sets for linear models, from whichever source, ready to be cut into batches."""

from __future__ import annotations

import os

import numpy as np

from dct_jax.data.linear import libsvm, urls
from dct_jax.data.linear import synthetic as synthetic_linear
from dct_jax.data.linear.csr import Csr, binary_labels, normalize_rows, take_rows

DATASETS = ('libsvm', 'urls', 'synthetic')


def load(dataset: str, data: str | os.PathLike = '', test: str | os.PathLike = '', *, num_features: int = 0,
         rows: int = 100_000, positive_below: float = 0.0, normalize: bool = True, test_share: float = 0.1,
         seed: int = 0, cache_dir: str | os.PathLike | None = None) -> dict[str, Csr]:
  """Loads `train` and `test`, with labels -1 and +1, the training rows shuffled.

  Args:
    dataset: 'libsvm' (a file, and perhaps another one for the test), 'urls' (a file of labels and URLs), or
      'synthetic' (no file; not real data).
    data: path of the file.
    test: path of the test set, for libsvm; part of the first file unless given.
    num_features: 0 is what the file or the source has by itself.
    rows: for synthetic data, of both sets together.
    positive_below: for several classes, see `binary_labels`; 0 if there are two.
    normalize: whether rows are divided by their length.
    test_share: of the rows, where there is no test set.
    seed: of the shuffle; for synthetic data also of the rows.
    cache_dir: for libsvm; see `read_libsvm_sets`.

  Raises:
    ValueError: for an unknown set, or a missing path.
  """
  if dataset not in DATASETS:
    raise ValueError(f'dataset must be one of {DATASETS}, got {dataset=}')
  if dataset != 'synthetic' and not data:
    raise ValueError(f'{dataset=} needs the path of its file, got {data=}')
  if dataset == 'libsvm':
    paths = [data, test] if test else [data]
    sets = libsvm.read_libsvm_sets(paths, cache_dir=cache_dir, num_features=num_features or None)
  elif dataset == 'urls':
    sets = [urls.read_urls(data, num_features=num_features or urls.NUM_FEATURES)]
  else:
    spec = synthetic_linear.SyntheticLinear(seed=seed)
    spec = spec._replace(num_features=num_features) if num_features else spec
    sets = [synthetic_linear.generate(spec, rows)]
  sets = [binary_labels(s, positive_below or None) for s in sets]
  sets = [normalize_rows(s) for s in sets] if normalize else sets
  order = np.random.default_rng([seed, 0]).permutation(len(sets[0].labels))
  if len(sets) == 2:
    return {'train': take_rows(sets[0], order), 'test': sets[1]}
  kept = len(order) - int(test_share * len(order))
  return {'train': take_rows(sets[0], order[:kept]), 'test': take_rows(sets[0], order[kept:])}
