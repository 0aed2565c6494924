"""The encoder-decoder Transformer, with places to cut it at inside its feed-forward networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from dct_jax.models.dropout import Dropout
from dct_jax.models.transformer_layer import Layer, layer_norm
from dct_jax.models.transformer_sections import TransformerSection, check, sections, split_names

__all__ = ['BOS', 'EOS', 'PAD', 'UNK', 'Cache', 'TransformerSection', 'Transformer', 'sections', 'split_names']

PAD, BOS, EOS, UNK = range(4)  # ids of what is no word; those of words follow
NORMS = ('post', 'pre')
Boundary = Callable[[jax.Array], jax.Array]


class Cache(NamedTuple):
  """What a decoder remembers of sentences that it writes word by word."""

  step: jax.Array  # int32, words so far
  source_mask: jax.Array  # bool[batch, source length], what is no padding
  memory: tuple  # keys and values of the source, for each layer: float32[batch, source length, heads, ...]
  past: tuple  # keys and values of earlier words, likewise: float32[rows, room, heads, ...]; or what LSTMs carry


class Transformer(nn.Module):
  """Translates; its defaults are the shape of fairseq's model for IWSLT'14.

  Padding may be anywhere, and changes nothing but results at its own positions. Positions are counted without
  it, and have no upper limit.

  Attributes:
    source_vocab: ids of the source language, `PAD` to `UNK` included.
    target_vocab: of the target language.
    width: of embeddings and of the residual stream.
    hidden: of feed-forward networks.
    heads: of attention.
    layers: of the encoder and of the decoder, each; or a pair of numbers.
    dropout: of embeddings and of what is added to the residual stream.
    norm: 'post', normalize after adding to the residual stream; 'pre', before each part, and at the end of both
      stacks.
    share_embeddings: whether the decoder's input and output are one matrix.
    boundaries: where the model is cut: 'enc1', in the feed-forward network of the encoder's first layer after
      its ReLU, 'dec5', in that of the decoder's fifth, ... -> function or module. It is applied in decoding
      too: a boundary that works row by row gives the same for a word at a time.

  Examples:
    >>> import jax, jax.numpy as jnp
    >>> model = Transformer(20, 30, width=16, hidden=32, layers=1)
    >>> source, target = jnp.array([[7, 8, 9, EOS]]), jnp.array([[BOS, 5, 6]])
    >>> variables = jax.jit(model.init)(jax.random.key(0), source, target)
    >>> jax.jit(model.apply)(variables, source, target).shape
    (1, 3, 30)

    In training, with a key for dropout, in two pieces:

    >>> first, last = sections('dec1', layers=1)
    >>> more = {'train': True, 'rngs': {'dropout': jax.random.key(1)}}
    >>> crossing = model.apply(first.params(variables), source, target, section=first, **more)
    >>> logits = model.apply(last.params(variables), source, target, section=last, inputs=crossing, **more)
    >>> bool(jnp.all(logits == model.apply(variables, source, target, **more)))
    True

  References:
    Vaswani et al., Attention Is All You Need, 2017.
    Ott et al., fairseq: A Fast, Extensible Toolkit for Sequence Modeling, 2019.
  """

  source_vocab: int
  target_vocab: int
  width: int = 512
  hidden: int = 1024
  heads: int = 4
  layers: int | tuple[int, int] = 6
  dropout: float = 0.3
  norm: str = 'post'
  share_embeddings: bool = True
  boundaries: Mapping[str, Boundary] | None = None

  def __post_init__(self):
    if self.norm not in NORMS:
      raise ValueError(f'norm must be one of {NORMS}, got {self.norm=}')
    if self.width % self.heads or self.width % 2:
      raise ValueError(f'the width divides into heads, and sines and cosines, got {self.width=} {self.heads=}')
    if min(np.ravel(self.layers)) < 1:
      raise ValueError(f'encoder and decoder need a layer each, got {self.layers=}')
    if not 0 <= self.dropout < 1:
      raise ValueError(f'dropout must be in [0, 1), got {self.dropout=}')
    unknown = sorted(set(self.boundaries or {}) - set(split_names(self.layers)))
    if unknown:
      raise ValueError(f'boundaries are at some of {split_names(self.layers)}, got {unknown=}')
    super().__post_init__()

  def setup(self) -> None:
    self.source_embedding = nn.Embed(self.source_vocab, self.width, embedding_init=_rows)
    self.target_embedding = nn.Embed(self.target_vocab, self.width, embedding_init=_rows)
    self.source_dropout, self.target_dropout = Dropout(self.dropout), Dropout(self.dropout)
    for place in split_names(self.layers):
      cross = place.startswith('dec')
      setattr(self, place, Layer(self.width, self.hidden, self.heads, self.dropout, self.norm, cross))
    if self.norm == 'pre':
      self.encoder_norm, self.decoder_norm = layer_norm(), layer_norm()
    if not self.share_embeddings:
      self.output = nn.Dense(self.target_vocab, use_bias=False, kernel_init=nn.initializers.xavier_uniform())

  def __call__(self, source: jax.Array, target: jax.Array, train: bool = False,
               section: TransformerSection | None = None, inputs: tuple[jax.Array, ...] = ()) -> Any:
    """Logits of the words that follow, float32[batch, target length, target vocabulary]; or a section's result.

    Args:
      source: int32[batch, source length], ids; sentences end with `EOS`.
      target: int32[batch, target length], ids; sentences begin with `BOS`.
      train: whether to drop, by the key rngs={'dropout': key}.
      section: from `sections`; all of the model unless given. It gives what `section.leaving` says.
      inputs: what the section before this one gives.
    """
    section = check(section or sections('', self.layers)[0], self.layers, inputs)
    hidden, x, memory = (*inputs, None, None, None)[:3]
    if section.begin:
      x = self._layer(section.begin).back(hidden, x, train)
    else:
      x = self._embed_source(source, train)
    for place in section.layers:
      if place == 'dec1':
        memory, x = self._end('encoder', x), self._embed_target(target, train)
      hidden, x = self._front(place, x, source, target, memory, train)
      if place == section.end:
        return (hidden, x, memory)[:len(section.leaving)]
      x = self._layer(place).back(hidden, x, train)
    return self._logits(x)

  def encode(self, source: jax.Array) -> jax.Array:
    """The encoder's memory, float32[batch, source length, width]."""
    x = self._embed_source(source, False)
    for place in split_names(self.layers):
      if place.startswith('enc'):
        hidden, x = self._front(place, x, source, None, None, False)
        x = self._layer(place).back(hidden, x)
    return self._end('encoder', x)

  def start(self, source: jax.Array, room: int, rows: int = 1) -> Cache:
    """A `Cache` to write translations with.

    Args:
      source: int32[batch, source length], ids.
      room: words of a translation, `BOS` included, at most.
      rows: translations of each sentence, next to each other in the cache's rows.
    """
    memory, decoder = self.encode(source), self._decoder()
    empty = jnp.zeros((rows * source.shape[0], room, self.heads, self.width // self.heads))
    pairs = tuple(self._layer(place).keys_and_values(memory) for place in decoder)
    return Cache(jnp.int32(0), source != PAD, pairs, ((empty, empty),) * len(decoder))

  def advance(self, cache: Cache, words: jax.Array) -> tuple[jax.Array, Cache]:
    """Logits of the words that follow, float32[rows, target vocabulary], and the new cache.

    Args:
      cache: from `start`, or from the step before.
      words: int32[rows], the last ones; `BOS` at first.
    """
    room = cache.past[0][0].shape[1]
    seen = jnp.arange(room) <= cache.step
    x = self.target_embedding(words[:, None]) * self.width**0.5 + sinusoids(room, self.width)[cache.step + 1]
    pasts = []
    for place, memory, past in zip(self._decoder(), cache.memory, cache.past, strict=True):
      layer = self._layer(place)
      hidden, x, past = layer.front(x, seen, memory, _keys(cache.source_mask), past, cache.step)
      x = layer.back(self._cut(place)(hidden), x)
      pasts.append(past)
    return self._logits(x)[:, 0], cache._replace(step=cache.step + 1, past=tuple(pasts))

  def _front(self, place, x, source, target, memory, train):
    """A layer up to its cut. Rows of padding are zeros there, so that nothing of them need cross it."""
    seen, layer = _keys(source != PAD), self._layer(place)
    if place.startswith('enc'):
      hidden, x, _ = layer.front(x, seen, train=train)
      words = source
    else:
      causal = jnp.tril(jnp.ones((target.shape[1],) * 2, bool))
      mask = causal & _keys(target != PAD)
      hidden, x, _ = layer.front(x, mask, layer.keys_and_values(memory), seen, train=train)
      words = target
    return self._cut(place)(jnp.where(words[..., None] != PAD, hidden, 0)), x

  def _embed_source(self, words, train):
    return self.source_dropout(_embed(self.source_embedding, words), train)

  def _embed_target(self, words, train):
    return self.target_dropout(_embed(self.target_embedding, words), train)

  def _end(self, stack, x):
    return getattr(self, f'{stack}_norm')(x) if self.norm == 'pre' else x

  def _logits(self, x):
    x = self._end('decoder', x)
    return self.target_embedding.attend(x) if self.share_embeddings else self.output(x)

  def _layer(self, place):
    return getattr(self, place)

  def _cut(self, place):
    return (self.boundaries or {}).get(place, lambda x: x)

  def _decoder(self):
    return [place for place in split_names(self.layers) if place.startswith('dec')]


def sinusoids(length: int, width: int) -> jax.Array:
  """Rows for positions 1, 2, ..., length, of sines and then cosines; before them, a row of zeros for padding.

  >>> (100 * sinusoids(2, 4) + 1e-3).astype(int).tolist()
  [[0, 0, 0, 0], [84, 0, 54, 100], [90, 0, -41, 100]]
  """
  rates = np.exp(np.arange(width // 2) * (-np.log(10_000) / max(width // 2 - 1, 1)))
  angles = np.arange(length + 1)[:, None] * rates
  table = np.concatenate([np.sin(angles), np.cos(angles)], 1) * (np.arange(length + 1) > 0)[:, None]
  return jnp.asarray(table, jnp.float32)


def _embed(table, words):
  """Words and where they are; padding is zeros and does not count."""
  there = words != PAD
  x = table(words) * (there[..., None] * table.features**0.5)
  return x + sinusoids(words.shape[1], table.features)[jnp.cumsum(there, 1) * there]


def _keys(there):
  """bool[batch, positions] as a mask of keys."""
  return there[:, None, None, :]


def _rows(key, shape, dtype=jnp.float32):
  """Of embeddings; that of padding is zero and, as an input, stays so."""
  return (jax.random.normal(key, shape, dtype) * shape[1] ** -0.5).at[PAD].set(0)
