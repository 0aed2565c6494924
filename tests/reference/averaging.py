"""Replicas that synchronize, in float64: elastic averaging, model averaging and blockwise model-update filtering."""

import numpy as np


class Easgd:
  """Both ends of every spring move by the same amount, taken before anything has moved."""

  def __init__(self, start, alpha):
    self.center, self.alpha = np.array(start, np.float64), alpha

  def synchronize(self, replicas):
    pulls = [self.alpha * (x - self.center) for x in replicas]
    for d in pulls:
      self.center = self.center + d
    return [x - d for x, d in zip(replicas, pulls, strict=True)]


class ModelAveraging:
  """Every replica goes a part of the way to the mean."""

  def __init__(self, start, alpha):
    del start
    self.center, self.alpha = None, alpha

  def synchronize(self, replicas):
    mean = np.mean(replicas, axis=0)
    return [(1 - self.alpha) * x + self.alpha * mean for x in replicas]


class Bmuf:
  """The mean is a noisy gradient of the center."""

  def __init__(self, start, momentum, step_size, alpha, nesterov):
    self.center, self.velocity = np.array(start, np.float64), np.zeros(np.shape(start))
    self.momentum, self.step_size, self.alpha, self.nesterov = momentum, step_size, alpha, nesterov

  def synchronize(self, replicas):
    delta = np.mean(replicas, axis=0) - self.center
    self.velocity = self.momentum * self.velocity + self.step_size * delta
    self.center = self.center + self.velocity
    target = self.center + (self.momentum * self.velocity if self.nesterov else 0)
    return [(1 - self.alpha) * x + self.alpha * target for x in replicas]


def run(method, start, updates, every):
  """[groups, ...] replicas after each step. `updates` has the steps' updates, [steps, groups, ...]."""
  replicas, seen = [np.array(start, np.float64)] * len(updates[0]), []
  for step, moves in enumerate(updates):
    replicas = [x + u for x, u in zip(replicas, moves, strict=True)]
    if (step + 1) % every == 0:
      replicas = method.synchronize(replicas)
    seen.append(np.stack(replicas))
  return seen
