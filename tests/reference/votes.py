"""signSGD with majority vote: the sign of the sum of signs."""

import numpy as np


def majority(gradients):
  """[workers, ...] -> -1, 0 or 1 for every entry."""
  return np.sign(np.sum(np.sign(np.asarray(gradients, np.float64)), axis=0))
