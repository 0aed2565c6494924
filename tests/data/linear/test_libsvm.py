"""The libsvm reader: what it reads, what it refuses, and that it agrees with scikit-learn's."""

import gzip
import lzma

import numpy as np
import pytest
from reference import linear as reference

from dct_jax.data import text
from dct_jax.data.linear.csr import binary_labels, concatenate, normalize_rows, take_rows
from dct_jax.data.linear.libsvm import read_libsvm, read_libsvm_sets

GOOD = b'+1 1:0.5 3:-2e-1\n-1\n\n  -1 2:1 \t 4:+3.25  # a comment 9:9\r\n+1 4:7'


def check_good(data):
  np.testing.assert_array_equal(data.labels, [1, -1, -1, 1])
  np.testing.assert_array_equal(data.indptr, [0, 2, 2, 4, 5])
  np.testing.assert_array_equal(data.indices, [0, 2, 1, 3, 3])
  np.testing.assert_array_equal(data.values, np.array([0.5, -0.2, 1, 3.25, 7], np.float32))
  assert data.num_features == 4
  assert (data.indices.dtype, data.values.dtype, data.labels.dtype) == (np.uint32, np.float32, np.float32)


@pytest.mark.parametrize(('name', 'opened'), [('a.svm', open), ('a.gz', gzip.open), ('a.xz', lzma.open),
                                              ('packed_without_saying', gzip.open)])
def test_reads(tmp_path, name, opened):
  with opened(tmp_path / name, 'wb') as file:
    file.write(GOOD)
  check_good(read_libsvm(tmp_path / name))


@pytest.mark.parametrize('size', [1, 7, 16, 1000])
def test_reads_in_blocks(tmp_path, monkeypatch, size):
  (tmp_path / 'a').write_bytes(GOOD)
  whole = text.blocks
  monkeypatch.setattr(text, 'blocks', lambda path: whole(path, size))
  check_good(read_libsvm(tmp_path / 'a'))


def test_base_is_found_in_any_of_the_sets(tmp_path):
  (tmp_path / 'train').write_bytes(b'1 0:1 5:1\n')
  (tmp_path / 'test').write_bytes(b'0 1:1 7:2\n')
  train, test = read_libsvm_sets([tmp_path / 'train', tmp_path / 'test'])
  assert train.num_features == test.num_features == 8
  np.testing.assert_array_equal(test.indices, [1, 7])
  np.testing.assert_array_equal(read_libsvm(tmp_path / 'test').indices, [0, 6])
  np.testing.assert_array_equal(read_libsvm(tmp_path / 'test', zero_based=True).indices, [1, 7])
  with pytest.raises(ValueError, match='a feature 0 occurs'):
    read_libsvm(tmp_path / 'train', zero_based=False)


def test_features_beyond_the_model_are_dropped(tmp_path):
  (tmp_path / 'a').write_bytes(b'1 1:1 5:5\n-1 4:4 6:6\n1 2:2\n')
  data = read_libsvm(tmp_path / 'a', num_features=4)
  np.testing.assert_array_equal(data.indptr, [0, 1, 2, 3])
  np.testing.assert_array_equal(data.indices, [0, 3, 1])


@pytest.mark.parametrize('bad', [
    b'1 2:x', b'1 2:', b'1 :2', b'1 2', b'a 1:1', b'1 2:3:4', b'1 1.5:1', b'1 -1:1', b'1 3:1 2:1', b'1 2:1 2:1',
    b'1 1:nan', b'1 1:1e39', b'1 1:inf', b'nan 1:1', b'1,2 1:1', b'1 qid:3 1:1', b'1 5000000000:1', b'1 1:0x10',
    b'1 1:1_0', b'1:1 2:1', b'\xff\xfe', b'1 1:1.2.3'])
def test_malformed_lines(tmp_path, bad):
  lines = b'1 1:1\n\n' + bad + b'\n-1 2:2\n'
  (tmp_path / 'a').write_bytes(lines)
  with pytest.raises(ValueError, match=r'line 3: expected .*label index:value.*limit: 0'):
    read_libsvm(tmp_path / 'a')
  data = read_libsvm(tmp_path / 'a', max_malformed=1)
  np.testing.assert_array_equal(data.labels, [1, -1])
  np.testing.assert_array_equal(data.values, [1, 2])


def test_the_first_line_beyond_the_limit_is_named(tmp_path):
  (tmp_path / 'a').write_bytes(b'1 1:1\n' * 5 + b'x\ny\n' + b'1 1:1\n' + b'z\n')
  with pytest.raises(ValueError, match='line 9.*so far: 3, limit: 2'):
    read_libsvm(tmp_path / 'a', max_malformed=2)


@pytest.mark.parametrize('content', [b'', b'\n\n', b'# nothing\n'])
def test_empty(tmp_path, content):
  (tmp_path / 'a').write_bytes(content)
  with pytest.raises(ValueError, match='a has no rows'):
    read_libsvm(tmp_path / 'a', num_features=3)


def test_features_have_a_bound(tmp_path):
  """One wrong digit does not ask for a weight for every number below it."""
  path = tmp_path / 'a'
  path.write_text('1 1:1 4294967294:1\n')
  with pytest.raises(ValueError, match=r'a has a feature 4,294,967,294: .*num_features.*most_features=268435456'):
    read_libsvm(path)
  assert read_libsvm(path, num_features=9).indices.tolist() == [0]
  assert read_libsvm(path, most_features=2**32).num_features == 4294967294


def test_cache(tmp_path):
  path, cache = tmp_path / 'a', tmp_path / 'cache'
  path.write_bytes(GOOD)
  check_good(read_libsvm(path, cache_dir=cache))
  kept, = cache.iterdir()
  before = kept.stat().st_mtime_ns
  check_good(read_libsvm(path, cache_dir=cache))
  assert kept.stat().st_mtime_ns == before
  path.write_bytes(b'1 1:1\n')  # another file now
  assert len(read_libsvm(path, cache_dir=cache).labels) == 1


def test_agrees_with_sklearn(shared_data):
  datasets = pytest.importorskip('sklearn.datasets')
  path = shared_data / 'rcv1/rcv1_small.svm'
  x, y = datasets.load_svmlight_file(str(path))
  data = read_libsvm(path)
  np.testing.assert_array_equal(data.labels, y)
  np.testing.assert_array_equal(data.indptr, x.indptr)
  np.testing.assert_array_equal(data.indices, x.indices)
  np.testing.assert_array_equal(data.values, x.data.astype(np.float32))


def test_rows_and_labels(tmp_path):
  (tmp_path / 'a').write_bytes(b'0 1:3 2:4\n1 3:2\n2\n')
  data = read_libsvm(tmp_path / 'a')
  with pytest.raises(ValueError, match='3 classes'):
    binary_labels(data)
  np.testing.assert_array_equal(binary_labels(data, 2).labels, [1, 1, -1])
  two = take_rows(data, np.array([1, 0]))
  np.testing.assert_array_equal(two.indices, [2, 0, 1])
  np.testing.assert_array_equal(binary_labels(two).labels, [1, -1])
  np.testing.assert_allclose(normalize_rows(data).values, [0.6, 0.8, 1])
  both = concatenate([data, two])
  np.testing.assert_array_equal(both.indptr, [0, 2, 3, 3, 4, 6])


def damaged_lines(rng, count):
  """Lines of the format, some with a few bytes changed."""
  for _ in range(count):
    indices = np.sort(rng.choice(30, rng.integers(0, 5), replace=False))
    words = [str(rng.integers(-1, 2)), *(f'{i}:{rng.normal():.3g}' for i in indices)]
    line = bytearray(' '.join(words).encode())
    for _ in range(rng.integers(0, 3) if rng.random() < 0.4 else 0):
      line[rng.integers(len(line))] = rng.choice(list(b'0123456789.:+-e# \tx_\r'))
    yield bytes(line)


@pytest.mark.parametrize('seed', range(20))
def test_damaged_lines_against_a_slow_reader(tmp_path, seed):
  rng = np.random.default_rng(seed)
  lines = list(damaged_lines(rng, 60))
  (tmp_path / 'a').write_bytes(b'\n'.join(lines) + b'\n' * (seed % 2))
  rows, malformed = [], []
  for number, line in enumerate(lines, 1):
    try:
      row = reference.parse_libsvm_line(line)
      rows += [row] if row is not None else []
    except (ValueError, OverflowError):
      malformed.append(number)
  data = read_libsvm(tmp_path / 'a', zero_based=True, max_malformed=len(malformed))
  assert data.labels.tolist() == [np.float32(label) for label, _ in rows]
  assert np.diff(data.indptr).tolist() == [len(pairs) for _, pairs in rows]
  assert data.indices.tolist() == [i for _, pairs in rows for i, _ in pairs]
  np.testing.assert_array_equal(data.values, np.array([v for _, pairs in rows for _, v in pairs], np.float32))
  if malformed:
    with pytest.raises(ValueError, match=f'line {malformed[-1]}: expected'):
      read_libsvm(tmp_path / 'a', zero_based=True, max_malformed=len(malformed) - 1)
