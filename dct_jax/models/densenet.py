"""DenseNet in the form for small images."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from dct_jax.models.resnet import GROUPS, conv


class DenseLayer(nn.Module):
  """A 3 x 3 convolution whose results join its inputs.

  Attributes:
    growth: filters of the convolution.
    bottleneck: whether a 1 x 1 convolution to 4 times as many filters comes before it.
  """

  growth: int
  bottleneck: bool

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    y = x
    if self.bottleneck:
      y = conv(4 * self.growth, size=1)(_activate(y, train))
    return jnp.concatenate([x, conv(self.growth)(_activate(y, train))], -1)


class DenseNet(nn.Module):
  """A network in which every layer reads what all layers before it have made: three groups of such layers.

  Between two groups a 1 x 1 convolution and a mean over 2 x 2 pixels make the images smaller. With a bottleneck
  that convolution also halves the number of channels, and the first convolution has twice the growth: the paper's
  DenseNet-BC. Without it is the paper's plain DenseNet, which begins with 16 channels.

  Attributes:
    depth: layers with parameters: 3 n + 4 for n layers in a group, 6 n + 4 with a bottleneck, as 22, 40, 100.
    growth: channels that a layer adds.
    bottleneck: as of `DenseLayer`.
    outputs: classes.
    stem_stride: of the first convolution. The paper's is 1; 2 leaves a quarter of the work, with the same parameters.

  Examples:
    >>> import jax
    >>> model = DenseNet(depth=40)
    >>> shapes = jax.eval_shape(model.init, jax.random.PRNGKey(0), jax.numpy.zeros((1, 32, 32, 3)))
    >>> sorted(shapes), sum(x.size for x in jax.tree.leaves(shapes['params']))
    (['batch_stats', 'params'], 1019722)

  References:
    Huang et al., Densely Connected Convolutional Networks, 2017: sections 3 and 4.
  """

  depth: int = 40
  growth: int = 12
  bottleneck: bool = False
  outputs: int = 10
  stem_stride: int = 1

  def __post_init__(self):
    each = 6 if self.bottleneck else 3
    if self.depth < each + 4 or self.depth % each != 4 % each:
      raise ValueError(f'depth must be {each} n + 4 with n of at least 1, got {self.depth=}')
    if self.growth < 1:
      raise ValueError(f'growth must be at least 1, got {self.growth=}')
    if self.stem_stride < 1:
      raise ValueError(f'stem_stride must be at least 1, got {self.stem_stride=}')
    super().__post_init__()

  @property
  def widest(self) -> int:
    """Most channels of an image on its way."""
    channels, most = self._first, 0
    for _ in range(GROUPS):
      most = max(most, channels + self._each * self.growth)
      channels = self._kept(channels + self._each * self.growth)
    return most

  @nn.compact
  def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
    """Logits; arguments as of `ResNet`."""
    x = conv(self._first, self.stem_stride)(x)
    for group in range(GROUPS):
      if group:
        x = nn.avg_pool(conv(self._kept(x.shape[-1]), size=1)(_activate(x, train)), (2, 2), (2, 2))
      for _ in range(self._each):
        x = DenseLayer(self.growth, self.bottleneck)(x, train)
    return nn.Dense(self.outputs)(jnp.mean(_activate(x, train), (1, 2)))

  @property
  def _first(self):
    return 2 * self.growth if self.bottleneck else 16

  @property
  def _each(self):
    """Layers of a group."""
    return (self.depth - 4) // (GROUPS * (2 if self.bottleneck else 1))

  def _kept(self, channels):
    """Channels behind a group."""
    return channels // 2 if self.bottleneck else channels


def _activate(x, train):
  return nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))
