"""Algorithm 2 of the DCT paper, line by line. It says nothing of NaN: here it counts as infinitely large."""

import decimal
import math

import numpy as np


def magnitude(x):
  """What entries are ordered by. Nothing orders NaN: it is as large as infinity."""
  return math.inf if math.isnan(x) else abs(float(x))


def threshold(row, sparsity):
  """The entry at floor(d * sparsity) of the sorted magnitudes, counted from 1."""
  ordered = sorted(magnitude(x) for x in row)
  at = math.floor(len(row) * decimal.Decimal(repr(sparsity)))
  return ordered[max(at, 1) - 1]


def mask_of(activations, sparsity):
  mask = np.zeros(activations.shape, bool)
  for i, row in enumerate(activations):
    tau = threshold(row, sparsity)
    for j, x in enumerate(row):
      mask[i, j] = magnitude(x) >= tau and x != 0  # a threshold of 0 does not turn zeros into payload
  return mask


def forward(activations, sparsity):
  return np.where(mask_of(activations, sparsity), activations, 0)


def backward(activations, gradients, sparsity):
  return np.where(mask_of(activations, sparsity), gradients, 0)


def int8_rows(x):
  """What arrives when rows cross as whole multiples of a scale: NaN in all of a row that has one."""
  out = np.zeros_like(x)
  for i, row in enumerate(x):
    largest = np.abs(row).max()
    if np.isnan(row).any():
      out[i] = np.nan
    elif np.isinf(largest):  # beside infinity all else is zero, but for the very largest numbers
      scale = np.float32(2.0**125)
      out[i] = np.where(np.isinf(row), row, np.round(row / scale) * scale)
    elif largest > 0:
      scale = np.float32(largest) / np.float32(127)
      out[i] = np.round(row / scale) * scale
  return out


def float16(x):
  """What arrives of an activation in float16: what is finite stays so."""
  most = np.float32(65504)
  return np.where(np.isfinite(x), np.clip(x, -most, most), x).astype(np.float16).astype(np.float32)


def scaled_float16(x):
  """What arrives of a gradient in float16, all of it divided by a power of two that its finite numbers decide."""
  largest = np.max(np.abs(x[np.isfinite(x)]), initial=0)
  scale = np.float32(2.0 ** math.floor(math.log2(largest))) if largest else np.float32(1)
  return float16(x / scale) * scale
