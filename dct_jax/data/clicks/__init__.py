"""Click logs: Criteo, Frappe, and a synthetic one with a known best loss."""

from dct_jax.data.clicks.rows import Clicks, ClickSets, batches, in_order, padded, take
from dct_jax.data.clicks.sets import load

__all__ = [
    'ClickSets', 'Clicks', 'batches', 'in_order', 'load', 'padded', 'take',
    'criteo', 'frappe', 'synthetic', 'vocabulary',  # modules
]
