"""PowerSGD as its paper has it, for one matrix: Algorithm 1 with the sums of Algorithm 2."""

import numpy as np


def orthonormal(x):
  """Gram and Schmidt, column by column."""
  out = np.array(x, np.float64)
  for i in range(out.shape[1]):
    for j in range(i):
      out[:, i] -= (out[:, j] @ out[:, i]) * out[:, j]
    length = np.sqrt(np.sum(out[:, i] ** 2))
    out[:, i] = out[:, i] / length if length > 0 else 0
  return out


def step(gradients, residuals, q):
  """One step of several workers.

  Args:
    gradients: [workers, rows, columns].
    residuals: likewise.
    q: [columns, rank], the same for all.

  Returns:
    The mean that all read, new residuals, new q.
  """
  pending = [np.asarray(g, np.float64) + e for g, e in zip(gradients, residuals, strict=True)]
  p = orthonormal(sum(m @ q for m in pending))
  new = sum(m.T @ p for m in pending) / len(pending)
  mean = p @ new.T
  return mean, [m - mean for m in pending], new
