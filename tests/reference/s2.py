"""S2 Reducer's Algorithm 1, and the sum of the union, written from the paper and docs/wire_format.md alone."""

import numpy as np

from reference.qsgd import MASK, mix

GOLDEN = 0x9E3779B1


def keys(seed, step, rows):
  """One key for each row of a sketch."""
  word = lambda x: np.array([x & MASK], np.uint64)
  start = mix(mix(word(seed + GOLDEN)) ^ word(step))
  return [int(mix(start ^ word(j * GOLDEN))[0]) for j in range(rows)]


def place(index, key, buckets):
  """Bucket and sign of every entry, by its index."""
  h = mix((np.asarray(index, np.uint64) & np.uint64(MASK)) ^ np.uint64(key))
  return (h * np.uint64(buckets) >> np.uint64(32)).astype(np.int64), np.where(h & np.uint64(1), -1.0, 1.0)


def entries(ids, unit):
  """Indices of all entries of some blocks."""
  return (np.asarray(ids, np.uint64)[:, None] * np.uint64(unit) + np.arange(unit, dtype=np.uint64)).reshape(-1)


def sketch(ids, values, row_keys, buckets):
  """float32[r, buckets]: every entry is added, in order, with its sign."""
  table = np.zeros((len(row_keys), buckets), np.float32)
  flat = np.asarray(values, np.float32).reshape(-1)
  index = entries(ids, flat.size // max(len(ids), 1)) if len(ids) else np.zeros(0, np.uint64)
  for j, key in enumerate(row_keys):
    where, sign = place(index, key, buckets)
    for b, s, x in zip(where, sign, flat, strict=True):
      table[j, b] += np.float32(s) * x
  return table


def query(ids, unit, table, row_keys):
  """float32[blocks, unit]: the median over rows of what buckets say; of an even number, the mean of the middle two."""
  index, estimates = entries(ids, unit), []
  for row, key in zip(table, row_keys, strict=True):
    where, sign = place(index, key, row.size)
    estimates.append(sign.astype(np.float32) * row[where])
  ordered, r = np.sort(np.stack(estimates), axis=0), len(row_keys)
  if r % 2:
    middle = ordered[r // 2]
  else:
    middle = (ordered[r // 2 - 1] + ordered[r // 2]) * np.float32(0.5)
  return middle.reshape(-1, unit)


def bitmap(ids, universe):
  """One bit a block, lowest first."""
  words = np.zeros(-(-universe // 32), np.uint32)
  for i in ids:
    words[i // 32] |= np.uint32(1 << (int(i) % 32))
  return words


def blocks_of(words, universe):
  return [i for i in range(universe) if words[i // 32] >> np.uint32(i % 32) & 1]


def s2(workers, universe, unit, row_keys, buckets):
  """Algorithm 1. `workers` is a list of (ids, values); returns the union's ids and their estimated sums."""
  bits = np.bitwise_or.reduce([bitmap(ids, universe) for ids, _ in workers])
  table = np.zeros((len(row_keys), buckets), np.float32)
  for ids, values in workers:
    table += sketch(ids, values, row_keys, buckets)
  union = blocks_of(bits, universe)
  return union, query(union, unit, table, row_keys)


def union_sum(workers, universe, unit):
  """The exact sums of the union's blocks, in the order of workers."""
  bits = np.bitwise_or.reduce([bitmap(ids, universe) for ids, _ in workers])
  union = blocks_of(bits, universe)
  rank = {block: i for i, block in enumerate(union)}
  total = np.zeros((len(union), unit), np.float32)
  for ids, values in workers:
    mine = np.zeros_like(total)
    for i, row in zip(ids, values, strict=True):
      mine[rank[int(i)]] = row
    total += mine
  return union, total


def draw_rows(workers, rows, width, count):
  """Ids and whole gradients of rows: ids repeat, some are no rows, and one row of worker 0 adds up to zero."""
  rng = np.random.default_rng(0)
  ids = (rows * rng.random((workers, count)) ** 3).astype(np.int32)
  values = rng.integers(-50, 50, (workers, count, width)).astype(np.float32)  # exact in any order
  ids[0, :2], values[0, 1] = rows - 6, -values[0, 0]
  ids[:, -1] = rows + 5
  return ids, values
