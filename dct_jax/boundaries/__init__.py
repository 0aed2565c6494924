"""Boundaries: where a model is cut, and what crosses. A boundary is `x -> x` with its own backward pass."""

from dct_jax.boundaries.cut import Cut
from dct_jax.boundaries.sparse import SparseBoundary, row_mask, row_threshold, sparse_boundary

__all__ = ['Cut', 'SparseBoundary', 'row_mask', 'row_threshold', 'sparse_boundary']
