"""Windows of running text: for training, by steps; for evaluation, every word once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from dct_jax.data.words.sampling import log_uniform

Batch = dict[str, np.ndarray]


def batches(text: np.ndarray, workers: int, *, vocabulary: int, rows: int = 20, length: int = 35,
            negatives: int = 1024, same_negatives: bool = False, seed: int = 0, step: int = 0, process: int = 0,
            processes: int = 1) -> Iterator[Batch]:
  """One process's windows of every step, for ever.

  The text is cut into workers * rows streams of equal length, and a step has the next `length` words of each of
  them. Nothing says where the window before has ended: a model begins each window from a zero state. Every pass over
  the text begins a few words further on, by a number less than `length` that seed and pass decide, so that other
  words are at the beginning of a window. Step t is the same whether the steps before it were taken or not. The shares
  of all processes, one after the other, are what one process alone would get.

  Args:
    text: int[words].
    workers: how many there are.
    vocabulary: number of words, of which negatives are drawn.
    rows: streams of a worker.
    length: words of a window.
    negatives: different words that a worker draws in a step, for sampled softmax.
    same_negatives: whether all workers draw the same ones.
    seed: of negatives, of where passes begin, and of dropout.
    step: the first one: where a run that is resumed stopped.
    process: number of this one.
    processes: how many share the workers.

  Returns:
    Batches with:

      * tokens: int32[workers * rows, length], what the model reads.
      * targets: int32[workers * rows, length], the words that come next.
      * negatives: int32[workers * negatives], of `log_uniform`, those of the first worker first.
      * seed: uint32[workers], for dropout.

    Here workers are those of this process.

  Raises:
    ValueError: for counts that make no sense, a text that is too short, ids outside of the vocabulary, less words
      than negatives, or workers that processes cannot share.
  """
  if min(workers, rows, length, negatives, processes) < 1 or step < 0:
    raise ValueError('there must be workers, rows, words and negatives, and no step is negative, got '
                     f'{workers=}, {rows=}, {length=}, {negatives=}, {processes=}, {step=}')
  if not 0 <= process < processes or workers % processes:
    raise ValueError(f'processes must share the workers equally, got {workers=}, {process=}, {processes=}')
  if negatives > vocabulary:
    raise ValueError(f'negatives are different words, got {negatives=} and {vocabulary=}')
  text = _checked(text, vocabulary)
  count = steps_of_a_pass(text, workers, rows=rows, length=length)
  streams = text[:len(text) // (workers * rows) * workers * rows].reshape(workers * rows, -1)
  share = workers // processes
  mine = range(process * share, (process + 1) * share)
  streams = streams[mine.start * rows:mine.stop * rows]

  def negatives_of(at, worker):
    rng = np.random.default_rng([seed, 1, at, 0 if same_negatives else worker])
    return log_uniform(rng, negatives, vocabulary)

  def steps():
    for at in itertools.count(step):
      epoch, window = divmod(at, count)
      begin = int(np.random.default_rng([seed, 0, epoch]).integers(length)) + window * length
      states = np.random.SeedSequence([seed, 2, at]).generate_state(workers)
      yield {'tokens': streams[:, begin:begin + length], 'targets': streams[:, begin + 1:begin + length + 1],
             'negatives': np.concatenate([negatives_of(at, worker) for worker in mine]),
             'seed': states[mine.start:mine.stop]}

  return steps()


def steps_of_a_pass(text: np.ndarray, workers: int, *, rows: int = 20, length: int = 35) -> int:
  """Number of steps in which `batches` goes over a text once.

  Raises:
    ValueError: if the text is too short for a single step.
  """
  stream = len(text) // (workers * rows)
  if stream < 2 * length:  # a pass may begin length - 1 words late, and the last word has one after it
    raise ValueError(f'a text of {len(text):,} words is too short for {workers * rows} streams of two windows each, '
                     f'got {workers=}, {rows=}, {length=}')
  return (stream - length) // length


def in_order(text: np.ndarray, most: int | None = None, *, rows: int, length: int = 35) -> Iterator[Batch]:
  """Every word of a text once, in windows that each begin from a zero state, for evaluation.

  Args:
    text: int[words]; its first word is only read, never predicted.
    most: how many of the first words to predict, at most; all unless given.
    rows: windows of a batch.
    length: words of a window.

  Returns:
    Batches with `tokens` and `targets`, int32[rows, length], and `weight`, float32[rows, length]: 1, or 0 for what
    fills the last batch.

  Raises:
    ValueError: for counts that make no sense, or a text without a word to predict.
  """
  if min(rows, length, 1 if most is None else most) < 1 or len(text) < 2:
    raise ValueError(f'there must be words to predict, got {len(text):,} words, {most=}, {rows=}, {length=}')
  count = len(text) - 1 if most is None else min(most, len(text) - 1)
  size = rows * length
  columns = []
  for values in (text[:count], text[1:count + 1], np.ones(count)):
    filled = np.zeros(-(-count // size) * size, values.dtype)
    filled[:count] = values
    columns.append(filled.reshape(-1, rows, length))
  tokens, targets, weight = columns
  return ({'tokens': a.astype(np.int32), 'targets': b.astype(np.int32), 'weight': w.astype(np.float32)}
          for a, b, w in zip(tokens, targets, weight, strict=True))


def _checked(text, vocabulary):
  text = np.asarray(text)
  if text.ndim != 1 or not np.issubdtype(text.dtype, np.integer) or not len(text):
    raise ValueError(f'a text is int[words] with a word or more, got {text.dtype}{list(text.shape)}')
  if text.min() < 0 or text.max() >= vocabulary:
    raise ValueError(f'ids of words are from 0 to {vocabulary - 1}, got {text.min()} to {text.max()}')
  return text.astype(np.int32, copy=False)
