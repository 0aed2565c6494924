"""CIFAR-10 from its own binary files, a small stand-in that needs no files, and batches of random crops."""

from __future__ import annotations

import functools
import itertools
import os
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from dct_jax.data import text
from dct_jax.data.images import mnist

SHAPE = (3, 32, 32)  # of an image in the files
ROW = 1 + 3 * 32 * 32  # a label, then the image
Set = dict[str, np.ndarray]  # 'x': float32[rows, height, width, channels], normalized; 'y': int32[rows]


def read_bin(path: str | os.PathLike) -> tuple[np.ndarray, np.ndarray]:
  """Images (bytes, rows x 32 x 32 x 3) and labels of a file, plain, .gz or .xz.

  Raises:
    ValueError: if it does not hold whole rows, or a label is none of ten.
  """
  data = np.frombuffer(text.read_bytes(path), np.uint8)
  if not data.size or data.size % ROW:
    raise ValueError(f'{path} should hold rows of {ROW:,} bytes, got {data.size:,}: is it cut off?')
  rows = data.reshape(-1, ROW)
  labels = rows[:, 0]
  if labels.max() > 9:
    row = int(np.argmax(labels > 9))
    raise ValueError(f'{path} has the label {labels[row]} in row {row}: labels of CIFAR-10 are 0 to 9')
  return rows[:, 1:].reshape(-1, *SHAPE).transpose(0, 2, 3, 1), labels.astype(np.int32)


def load(directory: str | os.PathLike) -> dict[str, Set]:
  """The training and the test set from the .bin files of a directory, packed or not.

  Args:
    directory: with data_batch_1.bin, ..., test_batch.bin. Other names will do, and fewer files: those that
      begin with 'test' are the test set, all others the training set.

  Returns:
    {'train': set, 'test': set}; every channel has mean 0 and deviation 1 in the training set.

  Raises:
    FileNotFoundError: if there is no such directory, or one of the sets is not in it.
    ValueError: as `read_bin`.
  """
  files = _find(pathlib.Path(directory))
  tests = [x for x in files if x.name.startswith('test')]
  parts = {'train': [x for x in files if x not in tests], 'test': tests}
  for name, paths in parts.items():
    if not paths:
      raise FileNotFoundError(f'{directory} has no .bin file (nor .bin.gz, .bin.xz) for the {name} set')
  return normalize({name: _join(paths) for name, paths in parts.items()})


def _find(directory):
  """All .bin files in order; one that is there plain and packed counts once."""
  if not directory.is_dir():
    raise FileNotFoundError(f'there is no directory {directory}')
  found: dict[str, pathlib.Path] = {}
  for suffix in mnist.ENDS:
    for path in directory.glob(f'*.bin{suffix}'):
      found.setdefault(path.name.removesuffix(suffix), path)
  return [found[name] for name in sorted(found)]


def _join(paths):
  images, labels = zip(*map(read_bin, paths), strict=True)
  return {'x': np.concatenate(images), 'y': np.concatenate(labels)}


def digits() -> dict[str, Set]:
  """scikit-learn's digits, 8 x 8 x 1, normalized: a stand-in that comes with a package, not CIFAR."""
  return normalize({name: part | {'x': part['x'][..., None]} for name, part in mnist.digits().items()})


def normalize(data: dict[str, Set]) -> dict[str, Set]:
  """Shifts and scales the channels of all sets to mean 0 and deviation 1 in the training set."""
  x = data['train']['x']
  mean, deviation = (f(x, (0, 1, 2), dtype=np.float64).astype(np.float32) for f in (np.mean, np.std))
  return {name: part | {'x': (part['x'] - mean) / deviation} for name, part in data.items()}


def batches(data: Set, size: int, workers: int, seed: int, start: int = 0, *, mine: Sequence[int],
            flip: bool) -> Iterator[Set]:
  """Batches for ever, augmented: every epoch in an order of its own, crops by step and worker.

  They depend on the arguments alone, so that a resumed run goes on as if it had not stopped, and processes
  make those of their own workers only.

  Args:
    data: 'x' and 'y'.
    size: images of a worker.
    workers: of all processes; what is left of an epoch without a batch for each of them is left out.
    seed: of the run.
    start: step of the first batch.
    mine: workers whose images are made, one after the other.
    flip: as of `augment`.

  Raises:
    ValueError: if there are fewer images than a step takes.
  """
  rows, here = size * workers, list(mine)
  each = len(data['x']) // rows
  if not each:
    raise ValueError(f'a step of {workers=} takes {rows} images, got {len(data["x"])}')

  @functools.lru_cache(maxsize=1)
  def order(epoch):
    return np.random.default_rng([seed, epoch]).permutation(len(data['x']))

  for step in itertools.count(start):
    rows_of = order(step // each)[step % each * rows:][:rows].reshape(workers, -1)[here]
    images = [augment(data['x'][r], seed, step, w, flip=flip) for w, r in zip(here, rows_of, strict=True)]
    yield {'x': np.concatenate(images), 'y': data['y'][rows_of.reshape(-1)]}


def augment(images: np.ndarray, seed: int, step: int, worker: int, *, flip: bool) -> np.ndarray:
  """Crops images at random from a margin of zeros, and mirrors half of them.

  What comes out depends on the arguments alone, so that a resumed run goes on as if it had not stopped.

  Args:
    images: [n, height, width, channels]; the margin is an eighth of the height (4 pixels of 32, 1 of 8).
    seed: of the run.
    step: of the training.
    worker: whose images they are.
    flip: whether to mirror; a mirrored digit is no digit.
  """
  n, height, width, _ = images.shape
  margin = height // 8
  rng = np.random.default_rng([seed, step, worker])
  corners = rng.integers(0, 2 * margin + 1, (2, n)).T.tolist()
  mirrored = rng.integers(0, 2, n).astype(bool) & flip
  padded = np.pad(images, ((0, 0), (margin, margin), (margin, margin), (0, 0)))
  out = np.empty_like(images)
  for i, (y, x) in enumerate(corners):  # a slice at a time: ten times as fast as to gather pixels
    crop = padded[i, y:y + height, x:x + width]
    out[i] = crop[:, ::-1] if mirrored[i] else crop
  return out
