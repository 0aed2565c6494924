"""Algorithm 1 of the DCT paper (DCT-DP), literally, for several layers and workers."""

import numpy as np

from . import collectives, select, wire


class DctDpOracle:
  """The state of all workers: errors, thresholds and the iteration number.

  Everything kept per worker and layer is indexed [worker][layer]. The threshold of a layer that
  travels whole is None. `masks` and `sent` describe the last step.
  """

  def __init__(self, num_workers, shapes, sparsity, lifespan, value_codec='float32',
               dense_below=0):
    self.num_workers = num_workers
    self.shapes = [tuple(shape) for shape in shapes]
    self.sparsity = sparsity
    self.lifespan = lifespan
    self.value_codec = value_codec
    self.dense_below = dense_below
    self.k = 0
    self.error = [[np.zeros(shape, np.float32) for shape in self.shapes]
                  for _ in range(num_workers)]
    self.tau = [[None] * len(self.shapes) for _ in range(num_workers)]
    self.masks = None
    self.sent = None

  def step(self, grads):
    """One iteration: takes grads[worker][layer], returns the mean update of each layer."""
    self.masks, self.sent = [], []
    for worker in range(self.num_workers):
      pairs = [self.compress(worker, layer, grads[worker][layer])
               for layer in range(len(self.shapes))]
      self.masks.append([mask for mask, _ in pairs])
      self.sent.append([sent for _, sent in pairs])
    self.k += 1
    return collectives.mean_of(self.sent)

  def compress(self, worker, layer, grad):
    """Lines 2 to 11 for one layer of one worker: its mask and what it sends."""
    w = np.asarray(grad, np.float32) + self.error[worker][layer]
    if w.shape != self.shapes[layer]:
      raise ValueError(f'layer {layer} has shape {w.shape}, not {self.shapes[layer]}')
    if w.size < self.dense_below:
      mask = np.ones(w.shape, bool)
    else:
      if self.k % self.lifespan == 0:
        self.tau[worker][layer] = select.threshold(w, select.rank(w.size, self.sparsity))
      mask = select.dct_mask(w, self.tau[worker][layer])
    # The receivers see rounded values, so the error keeps what rounding took away.
    sent = np.where(mask, wire.cast(w, self.value_codec), np.float32(0))
    self.error[worker][layer] = w - sent
    return mask, sent
