"""Parallel text for translation: lines, subwords, pairs of sentences, and batches of few shapes."""

from dct_jax.data.translation.batching import batches, in_order
from dct_jax.data.translation.pairs import Pairs, TranslationSets, first, load

__all__ = [
    'Pairs', 'TranslationSets', 'batches', 'first', 'in_order', 'load',
    'buckets', 'subwords', 'synthetic',  # modules
]
