"""A layer of a Transformer, in two halves with the place of a cut between them."""

from __future__ import annotations

import flax.linen as nn
import jax

from dct_jax.models.attention import CrossAttention, Pair, SelfAttention
from dct_jax.models.dropout import Dropout


class Layer(nn.Module):
  """A layer in two halves: attention and the first half of the feed-forward network, then the second half.

  What is between them is where a model is cut: the hidden activations behind the ReLU, and the residual stream
  that goes around the network.

  Attributes:
    width: of the residual stream.
    hidden: width of the feed-forward network.
    heads: of attention.
    dropout: share of entries that are dropped before they are added to the residual stream.
    norm: 'post', normalize after adding; 'pre', before each part.
    cross: whether it looks at a memory, as a decoder's layer does.
  """

  width: int
  hidden: int
  heads: int
  dropout: float = 0.0
  norm: str = 'post'
  cross: bool = False

  def setup(self) -> None:
    self.attention, self.attention_norm = SelfAttention(self.width, self.heads), layer_norm()
    self.attention_dropout, self.contract_dropout = Dropout(self.dropout), Dropout(self.dropout)
    if self.cross:
      self.cross_attention, self.cross_norm = CrossAttention(self.width, self.heads), layer_norm()
      self.cross_dropout = Dropout(self.dropout)
    self.expand, self.contract = dense(self.hidden), dense(self.width)
    # The network's normalization is on the near side of a cut or on the far side, and named accordingly.
    if self.norm == 'pre':
      self.expand_norm = layer_norm()
    else:
      self.contract_norm = layer_norm()

  def front(self, x: jax.Array, mask: jax.Array, memory: Pair | None = None, memory_mask: jax.Array | None = None,
            past: Pair | None = None, step: jax.Array | int = 0,
            train: bool = False) -> tuple[jax.Array, jax.Array, Pair]:
    """Hidden activations, the residual stream, and keys and values of the positions seen so far.

    Args:
      x: float32[rows, length, width].
      mask: which positions see which, bool, broadcast to [rows, heads, length, positions].
      memory: from `keys_and_values`, for a layer with `cross`.
      memory_mask: which positions of the memory are seen, likewise.
      past: as of `SelfAttention`.
      step: likewise.
      train: whether to drop.
    """
    y, past = self.attention(self._before(x, 'attention'), mask, past, step)
    x = self._after(x, y, 'attention', train)
    if self.cross:
      assert memory is not None and memory_mask is not None, 'a layer with cross looks at a memory'
      y = self.cross_attention(self._before(x, 'cross'), memory, memory_mask)
      x = self._after(x, y, 'cross', train)
    return nn.relu(self.expand(self.expand_norm(x) if self.norm == 'pre' else x)), x, past

  def back(self, hidden: jax.Array, x: jax.Array, train: bool = False) -> jax.Array:
    """The layer's result, of the halves of `front`."""
    x = x + self.contract_dropout(self.contract(hidden), train)
    return x if self.norm == 'pre' else self.contract_norm(x)

  def keys_and_values(self, memory: jax.Array) -> Pair:
    """Of a memory, for `front`."""
    return self.cross_attention.keys_and_values(memory)

  def _before(self, x, part):
    return getattr(self, f'{part}_norm')(x) if self.norm == 'pre' else x

  def _after(self, x, y, part, train):
    x = x + getattr(self, f'{part}_dropout')(y, train)
    return x if self.norm == 'pre' else getattr(self, f'{part}_norm')(x)


def layer_norm() -> nn.LayerNorm:
  return nn.LayerNorm(epsilon=1e-5)


def dense(width: int) -> nn.Dense:
  return nn.Dense(width, kernel_init=nn.initializers.xavier_uniform())
