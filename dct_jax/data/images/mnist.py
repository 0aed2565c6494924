"""MNIST from its own idx files, and a small stand-in that needs no files."""

from __future__ import annotations

import math
import os
import pathlib

import numpy as np

from dct_jax.data import text

ENDS = ('', '.gz', '.xz')
PIXELS = 28 * 28
Set = dict[str, np.ndarray]  # 'x': float32[rows, 784] in [0, 1]; 'y': int32[rows]


def read_idx(path: str | os.PathLike) -> np.ndarray:
  """Reads an idx file of bytes, plain, .gz or .xz.

  Raises:
    ValueError: if it is not such a file, or not all there.
  """
  data = text.read_bytes(path)
  if len(data) < 4 or data[:3] != b'\0\0\x08':  # 8: unsigned bytes; the next one counts dimensions
    raise ValueError(f'{path} is not an idx file of bytes, it begins with {data[:4]!r}')
  start = 4 + 4 * data[3]
  if len(data) < start:
    raise ValueError(f'{path} ends within its header')
  shape = tuple(np.frombuffer(data[4:start], '>u4').tolist())
  if len(data) - start != math.prod(shape):
    raise ValueError(f'{path} should hold {shape} bytes, got {len(data) - start}')
  return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def load(directory: str | os.PathLike) -> dict[str, Set]:
  """The training and the test set from the four files of the original, packed or not.

  Args:
    directory: with train-images-idx3-ubyte, train-labels-idx1-ubyte, and the same with t10k.

  Returns:
    {'train': set, 'test': set}.

  Raises:
    FileNotFoundError: naming the file that is missing.
    ValueError: if images and labels do not fit each other.
  """
  return {name: _read_set(pathlib.Path(directory), prefix)
          for name, prefix in [('train', 'train'), ('test', 't10k')]}


def _read_set(directory, prefix):
  images = read_idx(_find(directory, f'{prefix}-images-idx3-ubyte'))
  labels = read_idx(_find(directory, f'{prefix}-labels-idx1-ubyte'))
  if images.shape != (labels.size, 28, 28):
    raise ValueError(f'{directory} has images of shape {images.shape} and {labels.size} labels')
  return {'x': (images.reshape(-1, PIXELS) / 255).astype(np.float32), 'y': labels.astype(np.int32)}


def _find(directory, name):
  for suffix in ENDS:
    path = directory / (name + suffix)
    if path.exists():
      return path
  raise FileNotFoundError(f'there is no {name}, nor one that ends in .gz or .xz, in {directory}')


def digits_stand_in() -> dict[str, Set]:
  """scikit-learn's digits in MNIST's shape: a stand-in that comes with a package, not MNIST.

  1,440 training and 357 test images, each pixel of 8 x 8 as 3 x 3, in a margin of 2.
  """
  large = lambda x: np.pad(np.kron(x, np.ones((1, 3, 3), np.float32)), ((0, 0), (2, 2), (2, 2)))
  return {name: {'x': large(part['x']).reshape(-1, PIXELS), 'y': part['y']}
          for name, part in digits().items()}


def digits() -> dict[str, Set]:
  """scikit-learn's digits, 1,440 to train and 357 to test; here 'x' is float32[rows, 8, 8] in [0, 1]."""
  from sklearn import datasets
  images, labels = datasets.load_digits(return_X_y=True)
  x = (images.reshape(-1, 8, 8) / 16).astype(np.float32)
  order = np.random.default_rng(0).permutation(len(x))
  return {name: {'x': x[rows], 'y': labels[rows].astype(np.int32)}
          for name, rows in [('train', order[:1440]), ('test', order[1440:])]}
