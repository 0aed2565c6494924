"""Hashed n-grams against a hash in plain Python."""

import collections

import numpy as np
import pytest
from reference import linear as reference

from dct_jax.data.linear import urls

STRINGS = [b'http://a.b/ab/ab', b'ab', b'', b'\xc3\xa4\xc3\xa4\xc3\xa4']


@pytest.mark.parametrize('binary', [True, False])
@pytest.mark.parametrize('num_features', [7, 1000, 2**22])
def test_ngrams(binary, num_features):
  data = urls.hash_ngrams(STRINGS, num_features, (2, 3), binary)
  for i, string in enumerate(STRINGS):
    counts = collections.Counter(reference.ngram_feature(string[a:a + n], num_features)
                                 for n in (2, 3) for a in range(len(string) - n + 1))
    part = slice(data.indptr[i], data.indptr[i + 1])
    assert data.indices[part].tolist() == sorted(counts)
    assert data.values[part].tolist() == [1 if binary else counts[k] for k in sorted(counts)]


def test_reads(tmp_path, monkeypatch):
  (tmp_path / 'a').write_bytes(b'0\thttp://a.b\n1\thttps://c.d/\tx\n')
  data = urls.read_urls(tmp_path / 'a')
  assert data.num_features == urls.NUM_FEATURES
  assert data.labels.tolist() == [0, 1]
  monkeypatch.setattr(urls, 'TOGETHER', 1)
  for a, b in zip(data, urls.read_urls(tmp_path / 'a'), strict=True):
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize('bad', [b'http://a.b', b'2\thttp://a.b', b'1\t', b'\thttp://a.b'])
def test_malformed(tmp_path, bad):
  (tmp_path / 'a').write_bytes(b'0\tx.y\n' + bad + b'\n')
  with pytest.raises(ValueError, match='line 2: expected'):
    urls.read_urls(tmp_path / 'a')
  assert len(urls.read_urls(tmp_path / 'a', max_malformed=1).labels) == 1


@pytest.mark.parametrize('options', [{'num_features': 0}, {'ngrams': ()}, {'ngrams': (0,)}])
def test_bad_options(tmp_path, options):
  with pytest.raises(ValueError, match='there must be'):
    urls.read_urls(tmp_path / 'a', **options)


def test_real_urls(shared_data):
  data = urls.read_urls(shared_data / 'urls/urls.tsv.xz', ngrams=(3,))
  assert len(data.labels) == 50_233
  assert data.indices.max() < data.num_features
  assert 0.2 < data.labels.mean() < 0.4
