"""Seconds of a step in which all nodes exchange gradients, by the cost model of collectives."""

from typing import NamedTuple

import numpy as np

from dct_jax.collectives import ALGORITHMS, Costs, Instance, costs

DENSE, DCT, SPARCML, THREE_LC, UNION = 'dense', 'DCT-DP', 'SparCML', '3LC', 'S2 / union_sum'
SPARSE_SUMS = ('recursive_double', 'split_all_gather', 'dsar')
# As benchmarks/README.md measured on two cores: seconds in which a residual is added to a coordinate, and what takes
# how many times as long: a pack, an exact threshold, and 3LC with s = 1.75.
ADD = 0.52e-9
PACK, THRESHOLD, ENCODE, DECODE = 0.96, 1.30, 1.69, 0.80


class Gradient(NamedTuple):
  """What is exchanged.

  Attributes:
    size: coordinates.
    sparsity: share of them that stays behind.
    value_bits: of a value in a message of DCT-DP.
    three_lc_bits: that 3LC takes for a coordinate.
    qsgd_bits: of the dense second half of SparCML's DSAR.
    block: coordinates that one bit of a bitmap speaks of, for S2 and union_sum.
    lam: numbers of S2's sketch for each of the union.
    alike: how alike nodes' choices are: 0 means independent, 1 identical.
    add: seconds in which a residual is added to a coordinate, of which compressors take multiples.
  """

  size: int
  sparsity: float = 0.99
  value_bits: int = 16
  three_lc_bits: float = 0.293
  qsgd_bits: int = 4
  block: int = 256
  lam: float = 0.5
  alike: float = 0.0
  add: float = ADD

  @property
  def entries(self) -> float:
    """That a node sends."""
    return (1 - self.sparsity) * self.size

  def union(self, workers: int) -> float:
    """Coordinates that a node or more sends."""
    apart = costs.random_union(self.size, 1 - self.sparsity, workers)
    return self.alike * self.entries + (1 - self.alike) * apart


def exchanges(gradient: Gradient, network: Costs) -> dict[str, float]:
  """Method -> seconds of rounds, bytes, entries and coordinates; the best algorithm that a method may choose."""
  k, union = gradient.entries, gradient.union(network.workers)
  message = k * gradient.value_bits / 8 + costs.index_bytes(k, gradient.size)
  single = Instance(network.workers, gradient.size, k, union, message, gradient.qsgd_bits)
  blocks = single._replace(unit=gradient.block)
  found = dict(zip(ALGORITHMS, costs.predict(network, single).tolist(), strict=True))
  of_blocks = dict(zip(ALGORITHMS, costs.predict(network, blocks).tolist(), strict=True))
  sketch = costs.s2_features(blocks, gradient.lam * union / k) @ np.array(network.table[0])
  return {DENSE: found['dense'], DCT: found['all_gather'], SPARCML: min(found[name] for name in SPARSE_SUMS),
          UNION: min(of_blocks['union'], float(sketch)), THREE_LC: _push_pull(gradient, network)}


def _push_pull(gradient, network):
  """Every node owns a slice: changes go to owners, and what these make of them to all."""
  latency, byte, *_ = network.table[0]
  sent = 2 * (network.workers - 1) / network.workers * gradient.size * gradient.three_lc_bits / 8
  return 2 * latency + byte * sent


def work(gradient: Gradient, workers: int) -> dict[str, float]:
  """Method -> seconds of compressing and decompressing, beside what the exchange has."""
  # A node encodes its gradient and its slice of the sum, and decodes as many slices as there are nodes, and the sum.
  three_lc = ENCODE * (1 + 1 / workers) + 2 * DECODE
  adds = {DENSE: 0.0, DCT: PACK, SPARCML: THRESHOLD + PACK, UNION: THRESHOLD + PACK, THREE_LC: three_lc}
  return {name: count * gradient.add * gradient.size for name, count in adds.items()}
