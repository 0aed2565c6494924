"""An LSTM translator with attention, in GNMT's shape."""

from __future__ import annotations

from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from dct_jax.models.attention import CrossAttention, Pair
from dct_jax.models.dropout import Dropout
from dct_jax.models.lstm_layer import Carry, LstmLayer
from dct_jax.models.transformer import PAD, Cache

LEAST, MOST = 2, 16  # layers: the first of a stack is special, and the paper has 8
GAIN = 2.0  # of LSTM layers at first: words of the source reach the output sooner


class Gnmt(nn.Module):
  """Translates with two stacks of LSTM layers.

  The encoder's first layer reads in both directions; from the third layer on, what a layer reads is added to what
  it gives. The decoder's first layer looks at the encoder's top, and what it sees goes to all layers above it,
  beside what they read from below.

  Two things are as in its public reimplementations, and not as in the paper. What is seen in a step goes to the layers
  above in the same step, and not to the first layer in the next one: attention of all steps is then one product
  outside of all loops. And attention is a scaled product, where the paper has a small network for each pair
  of words.

  Padding is behind the words, and changes nothing but results at its own positions.

  Attributes:
    source_vocab: ids of the source language, those of `models.transformer` that are no words included.
    target_vocab: of the target language.
    width: of embeddings, cells and outputs.
    layers: of the encoder and of the decoder, each.
    dropout: of what layers read.

  Examples:
    >>> import jax, jax.numpy as jnp
    >>> model = Gnmt(20, 30, width=16, layers=3)
    >>> source, target = jnp.array([[7, 8, 9, 2]]), jnp.array([[1, 5, 6]])
    >>> variables = jax.jit(model.init)(jax.random.key(0), source, target)
    >>> jax.jit(model.apply)(variables, source, target).shape
    (1, 3, 30)

    With rows of tables that are somewhere else, there are no embeddings among the parameters:

    >>> rows = {'source': jnp.ones((1, 4, 16)), 'target': jnp.ones((1, 3, 16))}
    >>> sorted(model.init(jax.random.key(0), source, target, rows=rows)['params'])
    ['attention', 'dec1', 'dec2', 'dec3', 'enc1', 'enc1_reverse', 'enc2', 'enc3', 'output']

  References:
    Wu et al., Google's Neural Machine Translation System, 2016: sections 3 and 3.2.
    MLPerf Training, RNN translation: the shape that public code has.
  """

  source_vocab: int
  target_vocab: int
  width: int = 1024
  layers: int = 8
  dropout: float = 0.2

  def __post_init__(self):
    if not LEAST <= self.layers <= MOST:
      raise ValueError(f'encoder and decoder have {LEAST} to {MOST} layers each, got {self.layers=}')
    if self.width < 1:
      raise ValueError(f'width must be at least 1, got {self.width=}')
    if not 0 <= self.dropout < 1:
      raise ValueError(f'dropout must be in [0, 1), got {self.dropout=}')
    super().__post_init__()

  def setup(self) -> None:
    self.source_embedding = nn.Embed(self.source_vocab, self.width, embedding_init=embedding_init)
    self.target_embedding = nn.Embed(self.target_vocab, self.width, embedding_init=embedding_init)
    self.enc1_reverse = LstmLayer(self.width, reverse=True, gain=GAIN)
    for place in (f'{stack}{i}' for stack in ('enc', 'dec') for i in range(1, self.layers + 1)):
      setattr(self, place, LstmLayer(self.width, gain=GAIN))
      setattr(self, f'{place}_dropout', Dropout(self.dropout))
    self.attention = CrossAttention(self.width, heads=1)
    self.output, self.output_dropout = nn.Dense(self.target_vocab), Dropout(self.dropout)

  def __call__(self, source: jax.Array, target: jax.Array, train: bool = False,
               rows: Mapping[str, jax.Array] | None = None) -> jax.Array:
    """Logits of the words that follow, float32[batch, target length, target vocabulary].

    Args:
      source: int32[batch, source length], ids; sentences end with `EOS`.
      target: int32[batch, target length], ids; sentences begin with `BOS`.
      train: whether to drop, by the key rngs={'dropout': key}.
      rows: embeddings of the words, float32[batch, length, width] as 'source' and 'target'; those of the model's
        own tables unless given.
    """
    if rows is None:
      rows = {'source': self.source_embedding(source), 'target': self.target_embedding(target)}
    memory = self.attention.keys_and_values(self._encode(rows['source'], source != PAD, train))
    return self._decode(rows['target'], (None,) * self.layers, memory, source != PAD, train)[0]

  def start(self, source: jax.Array, room: int, rows: int = 1) -> Cache:
    """A `Cache` to write translations with: what layers carry is its past.

    Args:
      source: int32[batch, source length], ids.
      room: words of a translation; it takes no more memory to write more of them.
      rows: translations of each sentence, next to each other in the cache's rows.
    """
    del room
    there = source != PAD
    memory = self.attention.keys_and_values(self._encode(self.source_embedding(source), there, False))
    nothing = jnp.zeros((rows * source.shape[0], self.width))
    return Cache(jnp.int32(0), there, memory, ((nothing, nothing),) * self.layers)

  def advance(self, cache: Cache, words: jax.Array) -> tuple[jax.Array, Cache]:
    """Logits of the words that follow, float32[rows, target vocabulary], and the new cache.

    Args:
      cache: from `start`, or from the step before.
      words: int32[rows], the last ones; `BOS` at first.
    """
    x = self.target_embedding(words[:, None])
    logits, past = self._decode(x, cache.past, cache.memory, cache.source_mask, False)
    return logits[:, 0], cache._replace(step=cache.step + 1, past=past)

  def _encode(self, x: jax.Array, there: jax.Array, train: bool) -> jax.Array:
    """The encoder's top, float32[batch, source length, width]."""
    x = self.enc1_dropout(x.swapaxes(0, 1), train)  # time first, as layers have it
    # Only what comes from behind has met padding before it meets words.
    x = jnp.concatenate([self.enc1(x), self.enc1_reverse(x, there.T)], -1)
    for i in range(2, self.layers + 1):
      x, _ = self._layer(f'enc{i}', x, x if i > 2 else None, None, train)
    return x.swapaxes(0, 1)

  def _decode(self, x: jax.Array, carries: tuple[Carry | None, ...], memory: Pair, there: jax.Array,
              train: bool) -> tuple[jax.Array, tuple[Carry | None, ...]]:
    """Logits, and what layers carry on that have something to carry."""
    x, carry = self._layer('dec1', x.swapaxes(0, 1), None, carries[0], train)
    seen = self.attention(x.swapaxes(0, 1), memory, there[:, None, None]).swapaxes(0, 1)
    carried = [carry]
    for i in range(2, self.layers + 1):
      read = jnp.concatenate([x, seen], -1)
      x, carry = self._layer(f'dec{i}', read, x if i > 2 else None, carries[i - 1], train)
      carried.append(carry)
    return self.output(self.output_dropout(x.swapaxes(0, 1), train)), tuple(carried)

  def _layer(self, place, x, around, carry, train):
    """A layer's result with what goes around it: of a whole sequence, or of one time step further."""
    layer, x = getattr(self, place), getattr(self, f'{place}_dropout')(x, train)
    if carry is None:
      y = layer(x)
    else:
      carry = layer.advance(x[0], carry)
      y = carry[0][None]
    return y if around is None else y + around, carry


def embedding_init(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> jax.Array:
  """Rows of a table: uniform within 1; the paper's are 25 times smaller, and learn more slowly in short trainings."""
  return jax.random.uniform(key, shape, dtype, -1.0, 1.0)
