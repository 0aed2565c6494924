"""Words in pieces: byte-pair encoding by sentencepiece, learnt from text and kept on the disk."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dct_jax.data.translation import ragged
from dct_jax.data.translation.ragged import Ragged

PAD, BOS, EOS, UNK = range(4)  # filling, begin and end of a sentence, characters that were not in the text
VERSION = 1  # of what is kept


class Subwords(NamedTuple):
  """A vocabulary of pieces."""

  processor: Any  # sentencepiece's
  lower: bool  # whether text is lower-cased before it is encoded

  @property
  def size(self) -> int:
    """How many ids there are, with PAD, BOS, EOS and UNK."""
    return self.processor.get_piece_size()


def learn(lines: Sequence[str], size: int, cache_dir: str | os.PathLike | None = None, *,
          lower: bool = False) -> Subwords:
  """Learns pieces from text; later calls with the same text and options open what was kept.

  Nothing but runs of blanks is normalized (they become one), so that decoded text is the text. In particular
  `lower` is Unicode's lower case, not sentencepiece's case folding, which writes ss for the German sharp s.

  Args:
    lines: of the training set, and of no other.
    size: how many ids there shall be; fewer come out if the text has not so many pieces.
    cache_dir: where models are kept, by a hash of text and options; nowhere if it is None.
    lower: whether to lower-case.

  Raises:
    ImportError: without sentencepiece.
    ValueError: if there is no text, or the size is too small for its characters.

  Examples:
    >>> words = learn(['the cat sat on the mat', 'the mat sat'], 30)
    >>> ids = encode(words, ['the cat', 'the mat'])
    >>> int(ids.row(0)[-1]) == EOS
    True
    >>> decode(words, [ids.row(0), ids.row(1)])
    ['the cat', 'the mat']

  References:
    Sennrich et al, `Neural Machine Translation of Rare Words with Subword Units
    <https://arxiv.org/abs/1508.07909>`_, 2016
  """
  sentencepiece = _sentencepiece()
  lines = [line.lower() for line in lines] if lower else lines
  if not any(line.strip() for line in lines):
    raise ValueError('there is no text to learn pieces from')
  digest = hashlib.sha256(json.dumps([VERSION, sentencepiece.__version__, size, lower]).encode())
  for line in lines:
    digest.update(line.encode() + b'\n')
  kept = cache_dir and pathlib.Path(cache_dir) / f'subwords-{digest.hexdigest()[:16]}.model'
  if kept and kept.exists():
    model = kept.read_bytes()
  else:
    model = _train(sentencepiece, lines, size)
    _keep(kept, model)
  return Subwords(sentencepiece.SentencePieceProcessor(model_proto=model), lower)


def _sentencepiece():
  try:
    import sentencepiece
  except ImportError as error:
    raise ImportError("subwords need sentencepiece: pip install 'dct_jax[experiments]'") from error
  return sentencepiece


def _train(sentencepiece, lines, size):
  model = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type='bpe', vocab_size=size,
        hard_vocab_limit=False, character_coverage=1.0, normalization_rule_name='identity', pad_id=PAD,
        bos_id=BOS, eos_id=EOS, unk_id=UNK,
        num_threads=1,  # the number is part of the model, and models shall be equal everywhere
        minloglevel=2)  # else it tells pages on the console
  except RuntimeError as error:
    raise ValueError(f'no pieces can be learnt from this text, got {size=}: {error}') from error
  return model.getvalue()


def _keep(path, model):
  """Whole or not at all; processes that learn the same at once write the same."""
  if path:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f'.{os.getpid()}.partial')
    partial.write_bytes(model)
    partial.replace(path)


def encode(words: Subwords, lines: Sequence[str]) -> Ragged:
  """Ids of the lines' pieces, each row with EOS at its end; an empty line is EOS alone."""
  lines = [line.lower() for line in lines] if words.lower else list(lines)
  rows = words.processor.encode(lines, out_type=int, add_eos=True)
  return ragged.from_rows(rows, map(len, rows))


def decode(words: Subwords, rows: Iterable[np.ndarray]) -> list[str]:
  """Text of rows of ids, as it is written: no blanks but those of the text.

  Args:
    words: which they are of.
    rows: each up to its first EOS, or its end; PAD and BOS are left out. What is no id (a model's vocabulary
      may have been rounded up) counts as UNK, which reads ⁇.
  """
  cleaned = []
  for row in rows:
    ids = np.asarray(row)
    ids = ids[:np.argmax(ids == EOS)] if np.any(ids == EOS) else ids
    ids = ids[(ids != PAD) & (ids != BOS)]
    cleaned.append(np.where((ids >= 0) & (ids < words.size), ids, UNK).tolist())
  return words.processor.decode(cleaned) if cleaned else []
