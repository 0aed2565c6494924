"""The networks for small images that --model chooses from."""

from dct_jax.models.densenet import DenseNet
from dct_jax.models.resnet import ResNet


def make_model(config):
  """The network of a configuration; without a depth it is a small one, for CIFAR or for digits."""
  known = {
      'resnet': lambda: ResNet(
          config.depth or (20 if config.data else 8), width=config.width, stem_stride=config.stem_stride),
      'densenet': lambda: DenseNet(
          config.depth or (22 if config.data else 10), config.growth, config.bottleneck,
          stem_stride=config.stem_stride),
  }
  if config.model not in known:
    raise ValueError(f'model must be one of {tuple(known)}, got {config.model=}')
  return known[config.model]()
