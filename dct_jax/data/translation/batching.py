"""Batches of sentence pairs in a few shapes: for training, by steps; for evaluation, every pair once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from dct_jax.data.translation import ragged
from dct_jax.data.translation.buckets import Buckets, Shape
from dct_jax.data.translation.pairs import Pairs
from dct_jax.data.translation.subwords import BOS, EOS, PAD

Batch = dict[str, np.ndarray]


def batches(pairs: Pairs, buckets: Buckets, seed: int, *, step: int = 0, process: int = 0,
            processes: int = 1) -> Iterator[Batch]:
  """One process's rows of every step, for ever.

  Each epoch (of buckets.steps) has an order of its own, which the seed alone decides, and has every pair
  exactly once. The shares of all processes, one after the other, are the batch that one process alone would
  get. Step t is the same whether the steps before it were taken or not.

  Args:
    pairs: the training set.
    buckets: that `buckets.choose` made for it.
    seed: of the orders.
    step: the first one: where a run that is resumed stopped.
    process: number of this one.
    processes: how many share a batch.

  Returns:
    Batches of S source and T target tokens a row, of one of the shapes:

      * source: int32[rows, S].
      * target_in: int32[rows, T], BOS first; what the decoder reads.
      * target_out: int32[rows, T], EOS last; what it shall say.
      * weight: float32[rows, T], rows / (target tokens) of the batch over all processes, and 0 where there is
        filling: the mean over all rows of sum(weight * loss, axis=1) is the mean loss of a token.
      * seed: uint32[rows], for dropout: a number of seed and step, plus the row's in the whole batch.

    Filling is PAD. A row to spare is EOS to BOS, without weight, since attention to nothing at all is NaN.

  Raises:
    ValueError: if rows cannot be shared equally, a step is negative, or the buckets are of another set.
  """
  _check(pairs, buckets, step, process, processes)
  return _steps(pairs, buckets, seed, step, process, processes)


def in_order(pairs: Pairs, buckets: Buckets, *, process: int = 0,
             processes: int = 1) -> Iterator[tuple[np.ndarray, Batch]]:
  """Every pair exactly once, shape by shape, for evaluation.

  Args:
    pairs: the set.
    buckets: that `buckets.choose` made for it; one shape gives the set's own order.
    process: number of this one.
    processes: how many share a batch.

  Returns:
    Which pair each row is (int32[rows], -1 for a row to spare), and a batch as `batches` has.

  Raises:
    ValueError: as `batches`.
  """
  _check(pairs, buckets, 0, process, processes)
  return _all(pairs, buckets, process, processes)


def _check(pairs, buckets, step, process, processes):
  if len(buckets.bucket) != pairs.rows:
    raise ValueError(f'buckets must be of the same set, got {len(buckets.bucket):,} pairs there and '
                     f'{pairs.rows:,} here')
  if not 0 <= process < processes or any(s.rows % processes for s in buckets.shapes) or step < 0:
    raise ValueError('processes must share all batches equally, and no step is negative, got '
                     f'{process=}, {processes=}, {step=}, rows={[s.rows for s in buckets.shapes]}')


def _steps(pairs, buckets, seed, step, process, processes):
  lengths = pairs.target.lengths
  first, done = divmod(step, buckets.steps)
  for epoch in itertools.count(first):
    rng = np.random.default_rng([seed, epoch])
    table, order = _deal(buckets, rng.permutation(pairs.rows)), rng.permutation(buckets.steps)
    for k in range(done if epoch == first else 0, buckets.steps):
      shape, rows = table[order[k]]
      base = np.random.SeedSequence([seed, epoch * buckets.steps + k]).generate_state(1)[0]
      yield _batch(pairs, lengths, shape, rows, base, process, processes)


def _all(pairs, buckets, process, processes):
  lengths = pairs.target.lengths
  for shape, rows in _deal(buckets, np.arange(pairs.rows)):
    share = _share(shape, process, processes)
    yield rows[share].astype(np.int32), _batch(pairs, lengths, shape, rows, 0, process, processes)


def _deal(buckets, order) -> list[tuple[Shape, np.ndarray]]:
  """Shape and pairs of each batch of an epoch, for pairs in some order; -1 is a row to spare."""
  table, carried, bucket = [], np.empty(0, np.int64), buckets.bucket[order]
  for number, (shape, count) in enumerate(zip(buckets.shapes, buckets.batches, strict=True)):
    rows = np.concatenate([carried, order[bucket == number]])
    spare = max(0, count * shape.rows - len(rows))  # of the last shape only
    rows = np.concatenate([rows, np.full(spare, -1)])
    carried = rows[count * shape.rows:]
    table += [(shape, r) for r in rows[:count * shape.rows].reshape(-1, shape.rows)]
  return table


def _share(shape, process, processes):
  share = shape.rows // processes
  return slice(process * share, (process + 1) * share)


def _batch(pairs, lengths, shape, all_rows, base, process, processes) -> Batch:
  share = _share(shape, process, processes)
  rows, tokens = all_rows[share], lengths[all_rows[all_rows >= 0]].sum()
  source = ragged.matrix(pairs.source, rows, shape.source, PAD)
  target = ragged.matrix(pairs.target, rows, shape.target, PAD)
  real = target != PAD
  before = np.where(real, np.roll(target, 1, axis=1), np.int32(PAD))
  before[:, 0], source[rows < 0, 0] = BOS, EOS
  number = np.arange(share.start, share.stop, dtype=np.uint32)
  return {'source': source, 'target_in': before, 'target_out': target,
          'weight': real * np.float32(shape.rows / tokens), 'seed': np.uint32(base) + number}
