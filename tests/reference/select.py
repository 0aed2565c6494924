"""What the selectors keep, by sorting."""

import decimal
import math

import numpy as np


def rank(n, eta):
  """max(1, floor(n * eta)) with eta as it is written: rank(100, 0.29) is 29."""
  # float() first, because NumPy scalars do not print as numbers.
  return max(1, math.floor(n * decimal.Decimal(repr(float(eta)))))


def threshold(x, rank):  # pylint: disable=redefined-outer-name
  """The rank-th smallest magnitude, counted from 1."""
  return np.sort(np.abs(x), axis=None)[rank - 1]


def dct_mask(x, tau):
  """Where the magnitude reaches tau; zeros are never payload."""
  x = np.asarray(x)
  return (np.abs(x) >= tau) & (x != 0)


def evenly(items, keep):
  """`keep` of some things, or all: of the first n there are n keep / have, in 32 binary places, rounded up."""
  have = len(items)
  if keep >= have:
    return items
  share = -(-(keep << 32) // have)
  return items[[i for i in range(have) if (i + 1) * share >> 32 > i * share >> 32]]


def top_k_mask(x, k):
  """The k largest magnitudes, the lowest index first among equals; zeros are never selected."""
  x = np.asarray(x)
  magnitudes = np.abs(x).ravel().tolist()
  order = sorted(range(len(magnitudes)), key=lambda i: (-magnitudes[i], i))
  mask = np.zeros(len(magnitudes), bool)
  for i in order[:k]:
    mask[i] = magnitudes[i] != 0
  return mask.reshape(x.shape)


def bucket_top_k_mask(x, bucket, k):
  """top_k_mask inside each consecutive bucket of a flat array; the last may be short."""
  x = np.asarray(x)
  mask = np.zeros(x.shape, bool)
  for start in range(0, len(x), bucket):
    mask[start:start + bucket] = top_k_mask(x[start:start + bucket], k)
  return mask


def block_top_k_blocks(x, block, k):
  """The indices, increasing, of the k blocks with the largest sum of squares."""
  x = np.asarray(x).ravel()
  # A short last block needs no padding: zeros add nothing to a sum. In float64 no square of
  # a float32 underflows, so a sum of 0 means an all-zero block.
  energy = [float(np.sum(np.square(x[start:start + block].astype(np.float64))))
            for start in range(0, len(x), block)]
  order = sorted(range(len(energy)), key=lambda i: (-energy[i], i))
  return np.array(sorted(i for i in order[:k] if energy[i] > 0), np.int64)
