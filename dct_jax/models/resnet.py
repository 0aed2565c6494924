"""ResNet in the form for small images."""

from __future__ import annotations

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

GROUPS = 3


class Block(nn.Module):
  """Two 3 x 3 convolutions around which the input goes.

  Attributes:
    filters: of both convolutions.
    stride: of the first one.
  """

  filters: int
  stride: int

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    norm = partial(nn.BatchNorm, use_running_average=not train, momentum=0.9)
    y = nn.relu(norm()(conv(self.filters, self.stride)(x)))
    y = norm()(conv(self.filters)(y))
    return nn.relu(y + _shortcut(x, self.filters, self.stride))


class ResNet(nn.Module):
  """A residual network of basic blocks: three groups of them, each with twice the filters of the one before.

  Shortcuts have no parameters: where the shape changes, every other pixel and zeros for the new filters
  (option A of the paper). A block's convolutions pad by one pixel on each side also where they skip, as the
  paper's do; the 'SAME' of XLA would pad by one pixel on one side there.

  Attributes:
    depth: 6 n + 2 layers with parameters, for n blocks in a group: 8, 14, 20, ..., 110.
    outputs: classes.
    width: factor of the paper's 16, 32 and 64 filters.
    stem_stride: of the first convolution. The paper's is 1; 2 leaves a quarter of the work, with the same
      parameters.

  Examples:
    >>> import jax
    >>> model = ResNet(depth=20)
    >>> shapes = jax.eval_shape(model.init, jax.random.PRNGKey(0), jax.numpy.zeros((1, 32, 32, 3)))
    >>> sorted(shapes), sum(x.size for x in jax.tree.leaves(shapes['params']))
    (['batch_stats', 'params'], 269722)

  References:
    He et al., Deep Residual Learning for Image Recognition, 2015: section 4.2.
  """

  depth: int = 110
  outputs: int = 10
  width: int = 1
  stem_stride: int = 1

  def __post_init__(self):
    if self.depth < 8 or self.depth % 6 != 2:
      raise ValueError(f'depth must be 6 n + 2 with n of at least 1, got {self.depth=}')
    if self.width < 1:
      raise ValueError(f'width must be at least 1, got {self.width=}')
    if self.stem_stride < 1:
      raise ValueError(f'stem_stride must be at least 1, got {self.stem_stride=}')
    super().__post_init__()

  @property
  def widest(self) -> int:
    """Most channels of an image on its way."""
    return 16 * self.width * 2 ** (GROUPS - 1)

  @nn.compact
  def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
    """Logits.

    Args:
      x: float[images, height, width, channels].
      train: whether to normalize by these images, and to move the averages of 'batch_stats' (which is to be
        mutable then), rather than by the averages.
    """
    x = conv(16 * self.width, self.stem_stride)(x)
    x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))
    for group in range(GROUPS):
      for block in range((self.depth - 2) // (2 * GROUPS)):
        stride = 2 if group and not block else 1
        x = Block(16 * self.width * 2**group, stride)(x, train)
    return nn.Dense(self.outputs)(jnp.mean(x, (1, 2)))


def conv(filters: int, stride: int = 1, size: int = 3) -> nn.Conv:
  """A convolution without a bias that keeps the size of images, or skips pixels of them."""
  return nn.Conv(filters, (size, size), stride, padding=size // 2, use_bias=False,
                 kernel_init=nn.initializers.he_normal())


def _shortcut(x, filters, stride):
  new = filters - x.shape[-1]
  return jnp.pad(x[:, ::stride, ::stride], ((0, 0), (0, 0), (0, 0), (new // 2, new - new // 2)))


def is_kernel(variables: Any) -> Any:
  """Which leaves are kernels: only these are compressed and decay, not normalization, biases and averages."""
  return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == 'kernel', variables)
