"""Algorithm 2 of the DCT paper, line by line."""

import decimal
import math

import numpy as np


def threshold(row, sparsity):
  """The entry at floor(d * sparsity) of the sorted magnitudes, counted from 1."""
  ordered = sorted(abs(float(x)) for x in row)
  at = math.floor(len(row) * decimal.Decimal(repr(sparsity)))
  return ordered[max(at, 1) - 1]


def mask_of(activations, sparsity):
  mask = np.zeros(activations.shape, bool)
  for i, row in enumerate(activations):
    tau = threshold(row, sparsity)
    for j, x in enumerate(row):
      mask[i, j] = abs(float(x)) >= tau and x != 0  # a threshold of 0 does not turn zeros into payload
  return mask


def forward(activations, sparsity):
  return np.where(mask_of(activations, sparsity), activations, 0)


def backward(activations, gradients, sparsity):
  return np.where(mask_of(activations, sparsity), gradients, 0)
