"""Linear models in NumPy and plain Python, dense and slow; imports nothing of ours."""

import math

import numpy as np


def dense_rows(indptr, indices, values, size):
  out = np.zeros((len(indptr) - 1, size))
  for i in range(len(out)):
    for j in range(indptr[i], indptr[i + 1]):
      out[i, indices[j]] += values[j]
  return out


def loss_and_slope(loss, margins, labels):
  """Of each row: the loss and its derivative by the margin."""
  ym = labels * margins
  if loss == 'logistic':
    return np.logaddexp(0, -ym), -labels / (1 + np.exp(ym))
  if loss == 'hinge':
    return np.maximum(0, 1 - ym), np.where(ym < 1, -labels, 0.0)
  if loss == 'squared':
    return (margins - labels)**2 / 2, margins - labels
  raise ValueError(f'got {loss=}')


def gradient(loss, weights, x, labels):
  """Mean loss and its gradient."""
  values, slopes = loss_and_slope(loss, x @ weights, labels)
  return values.mean(), x.T @ slopes / len(labels)


def soft(w, amount):
  return np.sign(w) * np.maximum(np.abs(w) - amount, 0)


def sgd(loss, weights, batches, rate, penalty='none', strength=0.0):
  """Every weight pays its penalty in every step; a batch is a list of (x, labels), one of each worker."""
  for parts in batches:
    total = np.mean([gradient(loss, weights, x, y)[1] for x, y in parts], axis=0)
    weights = weights - rate * total
    if penalty == 'l1':
      weights = soft(weights, rate * strength)
    if penalty == 'l2':
      weights = weights * math.exp(-rate * strength)
  return weights


def objective(loss, weights, x, labels, penalty='none', strength=0.0):
  mean = loss_and_slope(loss, x @ weights, labels)[0].mean()
  return mean + strength * {'none': 0, 'l1': np.abs(weights).sum(), 'l2': (weights**2).sum() / 2}[penalty]


def scd_step(loss, weights, x, labels, picks, factor, penalty='none', strength=0.0):
  """New weights after a step of all picked coordinates at once, from the same old weights."""
  bound = {'logistic': 0.25, 'squared': 1.0}[loss]
  slopes, new = loss_and_slope(loss, x @ weights, labels)[1], weights.copy()
  for j in picks:
    slope, curvature = x[:, j] @ slopes / len(labels), bound * (x[:, j]**2).sum() / len(labels)
    if penalty == 'l2':
      slope, curvature = slope + strength * weights[j], curvature + strength
    step = factor / curvature
    new[j] = weights[j] - step * slope
    if penalty == 'l1':
      new[j] = soft(new[j], step * strength)
  return new


def ngram_feature(gram, num_features):
  """FNV-1a of the bytes from an offset that depends on their number, murmur3's finalizer, then a range."""
  h = (2166136261 + len(gram)) % 2**32
  for byte in gram:
    h = (h ^ byte) * 16777619 % 2**32
  h = (h ^ h >> 16) * 0x85EBCA6B % 2**32
  h = (h ^ h >> 13) * 0xC2B2AE35 % 2**32
  return (h ^ h >> 16) * num_features >> 32


def add_streams(streams, size):
  """Streams as lists of (index, value) -> their sum, dense."""
  out = np.zeros(size)
  for stream in streams:
    for index, value in stream:
      out[index] += value
  return out


def parse_libsvm_line(line):
  """-> (label, [(index, value), ...]), None for a blank line; raises ValueError for a malformed one."""
  words = line.partition(b'#')[0].split()
  if not words:
    return None
  pairs = []
  for word in words[1:]:
    index, value = word.split(b':')
    if b'_' in word or float(index) != int(float(index)) or not abs(float(value)) < 3.4e38:
      raise ValueError(word)
    pairs.append((int(float(index)), float(value)))
  indices = [i for i, _ in pairs]
  if b'_' in words[0] or indices != sorted(set(indices)) or not all(0 <= i < 2**32 - 1 for i in indices):
    raise ValueError(line)
  if not abs(float(words[0])) < 3.4e38:
    raise ValueError(line)
  return float(words[0]), pairs
