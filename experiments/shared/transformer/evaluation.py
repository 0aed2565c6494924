"""What a translation model has learnt: losses, BLEU, and translations to read."""

import functools
import sys

import jax
import numpy as np
from absl import logging

from dct_jax import measures
from dct_jax.data import translation
from dct_jax.data.translation import buckets, subwords
from dct_jax.models import decoding
from shared.transformer.setup import make_model

TRAIN_PAIRS = 1000  # of the training set, that its losses are of
MOST_SHAPES = 3  # of batches; a set is seen once, compiling takes longer than filling
SAMPLES = 3  # translations that are shown at every evaluation


class Evaluation:
  """Evaluates on the way and at the end.

  Args:
    config: of the run.
    setup: from `shared.transformer.setup.make_setup`.
    sets: from `data.translation.load`.
    workdir: where `samples.txt`, `translations.txt` and `bleu.txt` go.
  """

  def __init__(self, config, setup, sets, workdir):
    self._config, self._setup, self._sets, self._workdir = config, setup, sets, workdir
    self._model = make_model(config, (sets.source_words.size, sets.target_words.size))
    self._search = functools.cache(lambda beam: decoding.beam_search(  # each is compiled once
        self._model, lambda n: 2 * n + 10, beam, config.length_penalty))
    self._pairs = {'train': translation.first(sets.train, TRAIN_PAIRS), 'valid': sets.valid, 'test': sets.test,
                   'samples': translation.first(sets.valid, config.evaluated)}
    self._shapes = {  # now: a pair that is too long must not show after all training
        name: buckets.choose(pairs, config.tokens, multiple=config.workers * config.microbatches,
                             count=min(config.shapes, MOST_SHAPES)) for name, pairs in self._pairs.items()}

  def on_the_way(self, params, state):
    """Losses of training and validation set; BLEU of greedy translations of the latter's first sentences."""
    out = self._losses(params, state, 'train') | self._losses(params, state, 'valid')
    whole = _whole(self._setup.whole(params, state))
    if whole is None:
      return out
    texts = self._translate(whole, 'samples', beam=1)
    out['valid_bleu'], _ = self._bleu(texts, self._sets.lines.valid.target[:self._config.evaluated])
    self._show(texts)
    return out

  def at_the_end(self, params, state=None):
    """What is seen on the way, and of the test set losses and BLEU with beam search; names as in the log."""
    out = self.on_the_way(params, state) | self._losses(params, state, 'test')
    whole = _whole(self._setup.whole(params, state))
    if whole is None:
      logging.warning('no BLEU: no process has the whole model')
    else:
      texts = self._translate(whole, 'test', self._config.beam)
      out['test_bleu'], signature = self._bleu(texts, self._sets.lines.test.target)
      if jax.process_index() == 0:
        (self._workdir / 'translations.txt').write_text('\n'.join(texts) + '\n')
        how = f'beam:{self._config.beam} lenpen:{self._config.length_penalty}'
        (self._workdir / 'bleu.txt').write_text(f'{out["test_bleu"]:.2f} {signature} {how}\n')
    return {f'eval/{k}': v for k, v in out.items()}

  def _losses(self, params, state, name):
    pairs, sums = self._pairs[name], np.zeros(2)
    for _, batch in translation.in_order(pairs, self._shapes[name]):
      sums += np.sum(self._setup.predict(params, state, batch), axis=0, dtype=np.float64)
    smooth, plain = sums / len(pairs.target.tokens)
    return {f'{name}_loss': smooth, f'{name}_nll': plain, f'{name}_perplexity': measures.perplexity(plain)}

  def _translate(self, params, name, beam):
    """Texts of translations, in the order of the pairs."""
    rows = [np.zeros(0, np.int32)] * self._pairs[name].rows
    for where, batch in translation.in_order(self._pairs[name], self._shapes[name]):
      found = np.asarray(self._search(beam)(params, batch['source']).ids[:, 0])  # the best of a beam
      for place, row in zip(where, found, strict=True):
        if place >= 0:
          rows[place] = row
    return subwords.decode(self._sets.target_words, rows)

  def _bleu(self, texts, references):
    return measures.bleu(texts, references, tokenize=self._config.tokenize, lowercase=self._config.lower)

  def _show(self, texts):
    if jax.process_index():
      return
    lines = [f'{title}: {text}' for i in range(min(SAMPLES, len(texts))) for title, text in (
        ('source', self._sets.lines.valid.source[i]), ('wanted', self._sets.lines.valid.target[i]),
        ('got   ', texts[i]))]
    print('', *lines, sep='\n', file=sys.stderr)
    with open(self._workdir / 'samples.txt', 'a') as file:
      print(*lines, '', sep='\n', file=file)


def _whole(params):
  """The whole model on this process's first device; of stages, if they are all here; else None."""
  home = jax.local_devices()[0]
  local = lambda tree: jax.tree.map(lambda x: jax.device_put(x.addressable_data(0), home), tree)
  if 'params' in params:
    return local(params)
  if jax.process_count() > 1:
    return None
  whole = {}
  for stage in sorted(params):
    for name, part in local(params[stage])['params'].items():
      whole[name] = {**whole.get(name, {}), **part}  # a layer that is cut is in two stages
  return {'params': whole}
