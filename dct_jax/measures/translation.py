"""What translations are judged by: BLEU, by sacrebleu, and perplexity."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def bleu(hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str = '13a',
         lowercase: bool = False) -> tuple[float, str]:
  """Scores a whole test set.

  Args:
    hypotheses: translations, as plain text.
    references: the set's own, one for each.
    tokenize: sacrebleu's tokenizer. Take 'none' for sets that are tokenized, as IWSLT'14 is when fairseq's
      recipe has prepared it: scores that are published for it are of tokens.
    lowercase: whether case is ignored; for models of lower-cased text.

  Returns:
    The score, 0 to 100, and sacrebleu's signature, without which a score says little.

  Raises:
    ImportError: without sacrebleu.
    ValueError: if there are none, or not equally many, or for an unknown tokenizer.

  Examples:
    >>> score, signature = bleu(['a cat sat on the mat'], ['a cat sat on the mat'])
    >>> round(score, 1), signature.split('|')[:4]
    (100.0, ['nrefs:1', 'case:mixed', 'eff:no', 'tok:13a'])

  References:
    Post, `A Call for Clarity in Reporting BLEU Scores <https://arxiv.org/abs/1804.08771>`_, 2018
  """
  if not hypotheses or len(hypotheses) != len(references):
    raise ValueError('each reference must have a hypothesis, and there must be some, got '
                     f'{len(hypotheses):,} hypotheses and {len(references):,} references')
  try:
    from sacrebleu import metrics
  except ImportError as error:
    raise ImportError("BLEU needs sacrebleu: pip install 'dct_jax[experiments]'") from error
  if tokenize not in metrics.BLEU.TOKENIZERS:
    raise ValueError(f'tokenize must be one of {sorted(metrics.BLEU.TOKENIZERS)}, got {tokenize=}')
  # force: tokenized hypotheses are what 'none' is for, and need no warning.
  metric = metrics.BLEU(tokenize=tokenize, lowercase=lowercase, force=True)
  score = metric.corpus_score(list(hypotheses), [list(references)]).score
  return score, str(metric.get_signature())


def perplexity(nll: float) -> float:
  """How many words a model chooses between, as if all were equally likely.

  Args:
    nll: mean of -log p(word), in nats, without label smoothing.

  Returns:
    exp(nll); infinity where that is too large for a float.

  Examples:
    >>> round(perplexity(float(np.log(50))), 6)
    50.0
  """
  with np.errstate(over='ignore'):  # a model that has diverged has an answer, too
    return float(np.exp(nll))
