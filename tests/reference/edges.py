"""What arrives in the codecs of edges, and error feedback there, row by row and entry by entry."""

import decimal
import math

import numpy as np


def kept(width, sparsity):
  """Entries from the one at floor(width * sparsity) of the sorted magnitudes on, counted from 1."""
  return width - max(1, math.floor(width * decimal.Decimal(repr(sparsity)))) + 1


def sparse_rows(x, sparsity):
  """The largest entries of each row, the first among equals, zeros elsewhere. NaN is as large as infinity."""
  out = np.zeros_like(x)
  size = lambda value: math.inf if math.isnan(value) else abs(float(value))
  for row, left in zip(x.reshape(-1, x.shape[-1]), out.reshape(-1, x.shape[-1]), strict=True):
    order = sorted(range(len(row)), key=lambda i: (-size(row[i]), i))
    for i in order[:kept(len(row), sparsity)]:
      left[i] = row[i]
  return out


def int4_rows(x):
  """Whole multiples, up to 7, of a seventh of each row's largest magnitude: (codes, what arrives)."""
  codes, out = np.zeros(x.shape, int), np.zeros_like(x)
  for i, row in enumerate(x):
    scale = np.float32(np.abs(row).max()) / np.float32(7)
    if scale > 0:
      codes[i] = np.round(row / scale)
      out[i] = codes[i].astype(np.float32) * scale
  return codes, out


def feedback(gradient, residual, drained, sparsity):
  """Remark 2 of the DCT paper: an entry's past is forgotten where `drained` says so, else it is added and goes along.

  Returns:
    What is sent, and the residual after it.
  """
  total = np.where(drained, gradient, gradient + residual).astype(np.float32)
  sent = sparse_rows(total, sparsity)
  return sent, np.where(sent != 0, np.float32(0), total)


def int8_product(x, w):
  """x @ w of whole numbers: rows of x and columns of w are multiples of a 127th of their largest magnitude."""
  def whole(a, axis):
    scale = np.abs(a).max(axis=axis, keepdims=True).astype(np.float32) / np.float32(127)
    return np.round(a / np.where(scale > 0, scale, 1)).astype(np.int64), scale

  (left, rows), (right, columns) = whole(x, 1), whole(w, 0)
  return (left @ right).astype(np.float32) * rows * columns
