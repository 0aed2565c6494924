"""Running text for language models: WikiText-2, and a synthetic one with a known entropy."""

from dct_jax.data.words.sampling import expected_counts, log_uniform
from dct_jax.data.words.sets import load
from dct_jax.data.words.texts import WordSets
from dct_jax.data.words.windows import batches, in_order, steps_of_a_pass

__all__ = [
    'WordSets', 'batches', 'expected_counts', 'in_order', 'load', 'log_uniform', 'steps_of_a_pass',
    'synthetic', 'wikitext',  # modules
]
