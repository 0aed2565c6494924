"""The idx reader on files made here, and on MNIST itself where it is at hand."""

import gzip
import lzma
import os
import pathlib

import numpy as np
import pytest

from dct_jax.data.images import mnist


def idx(array):
  return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, '>u4').tobytes() + array.tobytes()


def write_set(directory, prefix, rows, pack=lambda data: data, suffix=''):
  rng = np.random.default_rng(rows)
  images = rng.integers(0, 256, (rows, 28, 28), np.uint8)
  labels = rng.integers(0, 10, rows).astype(np.uint8)
  for name, array in [('images-idx3', images), ('labels-idx1', labels)]:
    (directory / f'{prefix}-{name}-ubyte{suffix}').write_bytes(pack(idx(array)))
  return images, labels


@pytest.mark.parametrize(('pack', 'suffix'), [(bytes, ''), (gzip.compress, '.gz'), (lzma.compress, '.xz')])
def test_files_plain_and_packed(tmp_path, pack, suffix):
  images, labels = write_set(tmp_path, 'train', 7, pack, suffix)
  write_set(tmp_path, 't10k', 3, pack, suffix)
  data = mnist.load(tmp_path)
  np.testing.assert_array_equal(np.round(data['train']['x'] * 255).reshape(-1, 28, 28), images)
  np.testing.assert_array_equal(data['train']['y'], labels)
  assert data['train']['x'].dtype == np.float32 and data['train']['y'].dtype == np.int32
  assert data['test']['x'].shape == (3, 784)


@pytest.mark.parametrize(('data', 'message'), [
    (b'', 'not an idx file'), (b'PNG...', 'not an idx file'), (b'\0\0\x08\x02\0\0', 'within its header'),
    (idx(np.zeros((2, 3), np.uint8))[:-1], 'got 5'), (idx(np.zeros((2, 3), np.uint8)) + b'x', 'got 7')])
def test_broken_files_are_refused(tmp_path, data, message):
  path = tmp_path / 'file'
  path.write_bytes(data)
  with pytest.raises(ValueError, match=message):
    mnist.read_idx(path)


def test_sets_that_do_not_fit(tmp_path):
  write_set(tmp_path, 'train', 4)
  with pytest.raises(FileNotFoundError, match='t10k-images-idx3-ubyte'):
    mnist.load(tmp_path)
  write_set(tmp_path, 't10k', 4)
  (tmp_path / 't10k-labels-idx1-ubyte').write_bytes(idx(np.zeros(5, np.uint8)))
  with pytest.raises(ValueError, match='5 labels'):
    mnist.load(tmp_path)


def test_the_stand_in_has_the_shape():
  pytest.importorskip('sklearn')
  data = mnist.digits_stand_in()
  assert data['train']['x'].shape == (1440, 784) and data['test']['x'].shape == (357, 784)
  assert data['train']['x'].min() == 0 and data['train']['x'].max() == 1
  assert set(data['test']['y']) == set(range(10))


def test_mnist_itself():
  directory = pathlib.Path(os.environ.get('DCT_JAX_DATA', 'data')) / 'mnist'
  if not directory.is_dir():
    pytest.skip('MNIST is not here: set DCT_JAX_DATA to a directory that has mnist/ in it')
  data = mnist.load(directory)
  assert data['train']['x'].shape == (60_000, 784) and data['test']['x'].shape == (10_000, 784)
  np.testing.assert_array_equal(data['train']['y'][:10], [5, 0, 4, 1, 9, 2, 1, 3, 1, 4])
  np.testing.assert_array_equal(data['test']['y'][:10], [7, 2, 1, 0, 4, 1, 4, 9, 5, 9])
  assert abs(data['train']['x'].mean() - 0.1307) < 1e-4
