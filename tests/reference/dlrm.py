"""DLRM's forward pass and the updates of its tables, in plain NumPy loops."""

import numpy as np


def relu(x):
  return np.maximum(x, 0)


def interactions(vectors):
  """vectors [n, d] of one example: dot products of pairs, the later vector first."""
  return [vectors[i] @ vectors[j] for i in range(len(vectors)) for j in range(i)]


def logits(bottom, top, dense, rows):
  """bottom, top: lists of (weights [in, out], bias). dense [batch, features], rows [batch, fields, width]."""
  out = []
  for x, vectors in zip(np.asarray(dense, np.float64), np.asarray(rows, np.float64), strict=True):
    for w, b in bottom:
      x = relu(x @ w + b)
    first = [x] if len(bottom) else []
    mixed = np.concatenate([*first, interactions([*first, *vectors])])
    for i, (w, b) in enumerate(top):
      mixed = mixed @ w + b
      mixed = relu(mixed) if i < len(top) - 1 else mixed
    out.append(mixed[0])
  return np.array(out)


def sgd(table, ids, gradients, rate):
  dense = np.zeros_like(table)
  for i, g in zip(ids, gradients, strict=True):
    dense[i] += g
  return table - rate * dense


def adagrad(table, squares, ids, gradients, rate, eps=1e-8, row_wise=False):
  """One step; squares [rows, width] or [rows, 1]."""
  dense = np.zeros_like(table)
  for i, g in zip(ids, gradients, strict=True):
    dense[i] += g
  table, squares = table.copy(), squares.copy()
  for i in {int(i) for i in ids}:
    squares[i] += np.mean(dense[i] ** 2) if row_wise else dense[i] ** 2
    table[i] -= rate * dense[i] / (np.sqrt(squares[i]) + eps)
  return table, squares
