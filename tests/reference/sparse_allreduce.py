"""SparCML's reductions, literally (section 4.1). A vector is (values, present), NumPy arrays of size N."""

import numpy as np

NEUTRAL = {'sum': 0, 'max': -np.inf, 'min': np.inf, 'product': 1, 'or': 0}
APPLY = {'sum': np.add, 'max': np.maximum, 'min': np.minimum, 'product': np.multiply, 'or': np.bitwise_or}


def vector(indices, values, size, op='sum'):
  """The vector with these entries and neutral elements elsewhere."""
  neutral = {'max': 0, 'min': 2**32 - 1}.get(op, NEUTRAL[op]) if values.dtype == np.uint32 else NEUTRAL[op]
  dense = np.full(size, neutral, values.dtype)
  dense[indices] = values
  present = np.zeros(size, bool)
  present[indices] = True
  return dense, present


def combine(a, b, op):
  return APPLY[op](a[0], b[0]), a[1] | b[1]


def in_order(vectors, op='sum'):
  """One after the other: what an owner of a slice does, and whoever has gathered everything."""
  total = vectors[0]
  for v in vectors[1:]:
    total = combine(total, v, op)
  return total


def recursive_double(vectors, op='sum'):
  """Every worker's result. Round t: exchange with the worker at distance 2^t. Odd workers fold in first."""
  workers = len(vectors)
  two = 1 << (workers.bit_length() - 1)
  state = [combine(vectors[i], vectors[i + two], op) if i + two < workers else vectors[i] for i in range(two)]
  distance = 1
  while distance < two:
    state = [combine(state[min(i, i ^ distance)], state[max(i, i ^ distance)], op) for i in range(two)]
    distance *= 2
  return [state[i % two] for i in range(workers)]


def split_all_gather(vectors, op='sum'):
  """Every worker reduces its slice of ceil(N / P) coordinates, then all slices are put side by side."""
  size, workers = vectors[0][0].size, len(vectors)
  share = -(-size // workers)
  slices = []
  for owner in range(workers):
    part = slice(owner * share, min(size, (owner + 1) * share))
    slices.append(in_order([(v[part], p[part]) for v, p in vectors], op))
  return tuple(np.concatenate(x) for x in zip(*slices, strict=True))


def union(vectors, op='sum'):
  """Beyond the paper: an OR of who has what, then a plain reduction of the union's values, packed."""
  present = np.zeros(vectors[0][0].size, bool)
  for _, have in vectors:
    present |= have
  packed = split_all_gather([(values[present], have[present]) for values, have in vectors], op)[0]
  total = vectors[0][0].copy()
  total[present] = packed
  return total, present


def reduce(vectors, algorithm, op='sum'):
  if algorithm == 'recursive_double':
    return recursive_double(vectors, op)[0]
  if algorithm == 'union':
    return union(vectors, op)
  return split_all_gather(vectors, op) if algorithm in ('split_all_gather', 'dsar') else in_order(vectors, op)
