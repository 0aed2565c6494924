"""What the collectives compute, one worker after another."""

import numpy as np


def mean_of(workers):
  """The mean over workers of each layer: added in worker order in float32, times 1/P."""
  scale = np.float32(1 / len(workers))
  means = []
  for layers in zip(*workers, strict=True):
    total = np.zeros(np.shape(layers[0]), np.float32)
    for layer in layers:
      total = total + np.asarray(layer, np.float32)
    means.append(total * scale)
  return means
