"""What models are judged by. NumPy and sacrebleu; no JAX in here."""

from dct_jax.measures.clicks import auc, entropy, log_loss, of_clicks
from dct_jax.measures.translation import bleu, perplexity
from dct_jax.measures.words import of_words

__all__ = ['auc', 'bleu', 'entropy', 'log_loss', 'of_clicks', 'of_words', 'perplexity']
